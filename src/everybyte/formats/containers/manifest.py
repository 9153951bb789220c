"""Parts that manifests, custom kinds and values of charts share: words, environment, GPUs, flags from camelCase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from everybyte.formats.bag import normal
from everybyte.formats.command import Word
from everybyte.formats.containers.container import gpu_of_label, of_kubernetes
from everybyte.formats.documents.document import Document
from everybyte.formats.place import Given, Place
from everybyte.formats.serving.flag_table import flag_table

GPU_KEYS = ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.shared", "gpu")


DEEPEST = 12


def words_of(document: Document, path: str, value: Any, environment: dict[str, Given]) -> list[Word]:
    """A list of words with `$(NAME)` put in. A flag and its value in one string are two words."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    out: list[Word] = []
    for i, item in enumerate(items):
        place = document.place(f"{path}[{i}]" if isinstance(value, list) else path)
        text = of_kubernetes(text_of(item), environment)
        unknown = re.search(r"\$\((\w+)\)", text)
        why = f"{unknown[1]} is not set in the manifest" if unknown else ""
        head, blank, rest = text.strip().partition(" ")
        if blank and head.startswith("--") and "=" not in head and not rest.lstrip().startswith("--"):
            out += [Word(head, place, why), Word(rest.strip().strip("\"'"), place, why)]
        elif blank and head.startswith("-") and not _in_shell(out) and "{" not in text:
            out += [Word(part.strip("\"'"), place, why) for part in text.split()]
        else:
            out.append(Word(text, place, why))
    return out


def _in_shell(words: list[Word]) -> bool:
    return any(re.fullmatch(r"-\w*c", word.text) for word in words[:4])


def text_of(value: Any) -> str:
    """A value as the text of an argument."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def environment_of(document: Document, path: str, value: Any) -> dict[str, Given]:
    """`env` as a list of names and values (or a mapping); values from secrets and fields are not known."""
    found: dict[str, Given] = {}
    if isinstance(value, dict):
        return {
            str(name): Given(text_of(item), document.place(f"{path}.{name}")._replace(flag=str(name)))
            for name, item in value.items()
            if not isinstance(item, dict)
        }
    for i, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict) and "name" in item and item.get("value") is not None:
            name = str(item["name"])
            place = document.place(f"{path}[{i}]")
            found[name] = Given(of_kubernetes(text_of(item["value"]), found), Place(place.source, place.line, name))
    return found


def gpus_of(document: Document, path: str, container: dict[str, Any]) -> Word | None:
    """The GPUs that limits or requests ask for."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        asked = resources.get(part) if isinstance(resources, dict) else None
        for key in GPU_KEYS:
            if isinstance(asked, dict) and key in asked and str(asked[key]).isdigit() and int(asked[key]) > 0:
                return Word(str(asked[key]), document.place(f"{path}.resources.{part}.{key}"))
    return None


def gpu_of(document: Document, path: str, pod: dict[str, Any]) -> Given | None:
    """The GPU by the node's labels: a selector, or what an affinity asks for."""
    selector = pod.get("nodeSelector")
    where = document.place(f"{path}.nodeSelector")
    labels = list(selector.values()) if isinstance(selector, dict) else []
    labels += list(labels_in(pod.get("affinity"), 0)) + list(labels_in(pod.get("nodeSelectorTerms"), 0))
    return next((gpu for label in labels if (gpu := gpu_of_label(label, where)) is not None), None)


def labels_in(tree: Any, depth: int) -> Iterator[str]:
    """The values of every `values` below."""
    if depth > DEEPEST:
        return
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "values" and isinstance(value, list):
                yield from map(str, value)
            else:
                yield from labels_in(value, depth + 1)
    elif isinstance(tree, list):
        for item in tree:
            yield from labels_in(item, depth + 1)


def without_scheme(uri: str) -> str:
    """`hf://org/model` -> `org/model`."""
    return re.sub(r"^(hf|ollama|oci|pvc|modelcar)://", "", uri)


def part_of(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping below a key; empty if there is none."""
    part = tree.get(key)
    return part if isinstance(part, dict) else {}


def items_of(value: Any) -> list[Any]:
    """A list; empty if the value is none."""
    return value if isinstance(value, list) else []


def served(document: Document, path: str, model: Any) -> list[Word]:
    """`vllm serve MODEL`."""
    place = document.place(path)
    return [Word("vllm", place), Word("serve", place), *([Word(without_scheme(str(model)), place)] if model else [])]


def flags_of(document: Document, path: str, values: dict[str, Any]) -> list[Word]:
    """The keys of a mapping that vLLM has as flags, from camelCase."""
    known = flag_table("vllm.csv").names
    out: list[Word] = []
    for key, value in values.items():
        flag = kebab(str(key))
        if key == "extraArgs":
            out += words_of(document, f"{path}.extraArgs", value, {})
        elif normal(flag) in known and normal(flag) != "model":
            out += flag_of(flag, value, document.place(f"{path}.{key}"))
    return out


def kebab(name: str) -> str:
    """`maxModelLen` -> `--max-model-len`."""
    return "--" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).casefold().replace("_", "-")


def flag_of(name: str, value: Any, place: Place) -> list[Word]:
    """A key of a mapping as a flag."""
    if value is None or value == "":
        return []
    if isinstance(value, bool):
        return [Word(name if value else "--no-" + name[2:], place)]
    if isinstance(value, dict | list):
        import json

        return [Word(name, place), Word(json.dumps(value), place)]
    return [Word(name, place), Word(str(value), place)]
