"""The formats: their names, the modules that read them, and how they are told apart.

A module has one or several of these functions:

- `read_command(command, context) -> list[JobDraft]` for programs,
- `read_document(document, context) -> list[JobDraft]` for files,
- `commands_of(document_or_source, context) -> list[Command]` for files that start programs: scripts, compose files, manifests.

`data/signatures.csv` says what a format looks like; a module is loaded when its format was recognised.
"""

from __future__ import annotations

import csv
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from os.path import dirname, join
from types import ModuleType
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.formats.bag import normal
from everybyte.formats.command import Command
from everybyte.formats.documents.document import Document
from everybyte.formats.flags import is_flag

DATA = join(dirname(__file__), "data")

FORMATS: dict[str, str] = {
    "axolotl": "training.axolotl",
    "llama-factory": "training.llama_factory",
    "trl": "training.trl",
    "transformers": "training.trl",
    "accelerate": "training.accelerate",
    "deepspeed": "training.deepspeed",
    "peft": "training.peft",
    "megatron": "training.megatron",
    "ms-swift": "training.swift",
    "verl": "training.verl",
    "torchtitan": "training.torchtitan",
    "torchtune": "training.torchtune",
    "litgpt": "training.litgpt",
    "openrlhf": "training.openrlhf",
    "nemo": "training.nemo",
    "gpt-neox": "training.neox",
    "llm-foundry": "training.foundry",
    "unsloth": "training.unsloth",
    "vllm": "serving.vllm",
    "sglang": "serving.sglang",
    "llama.cpp": "serving.llamacpp",
    "ollama": "serving.ollama",
    "tgi": "serving.tgi",
    "tensorrt-llm": "serving.tensorrt_llm",
    "lmdeploy": "serving.lmdeploy",
    "compose": "containers.compose",
    "kubernetes": "containers.kubernetes",
    "llama-swap": "containers.llama_swap",
    "systemd": "containers.systemd",
    "engine-bundle": "containers.bundle",
    "launch-text": "containers.inside",
    "shell": "shell.script",
    "python": "shell.python",
}
"""Format (also the word of --as) -> module below everybyte.formats."""

STARTS_PROGRAMS = frozenset({"compose", "kubernetes", "llama-swap", "systemd", "shell", "python", "launch-text"})
"""Formats whose files name commands rather than settings."""

COMPANIONS = frozenset({"deepspeed", "accelerate", "peft"})
"""Formats that complete another file when one is given beside them, and are partial jobs when none is."""


class Signature(NamedTuple):
    """One mark of a format."""

    format: str
    kind: str
    """`program`: a pattern of a command's first words. `key`: a key of a document or a flag. `text`: a pattern of a line."""
    pattern: str
    weight: int


@cache
def signatures() -> tuple[Signature, ...]:
    """All marks, in the order of the file."""
    with open(join(DATA, "signatures.csv"), encoding="utf-8", newline="") as lines:
        return tuple(Signature(row[0], row[1], row[2], int(row[3])) for row in list(csv.reader(lines))[1:])


def module_of(name: str) -> ModuleType:
    """The module of a format. Raises BadInput for a name that is none."""
    if name not in FORMATS:
        raise BadInput("--as", f"there is no format {name!r}{did_you_mean(name, FORMATS)}; there are {', '.join(FORMATS)}")
    return import_module(f"everybyte.formats.{FORMATS[name]}")


def program_module(name: str) -> ModuleType:
    """The module that reads commands of a format. What only completes other files starts scripts, which are read as those of transformers."""
    return module_of("transformers" if name in COMPANIONS else name)


def format_of_command(command: Command) -> str | None:
    """The format whose program a command is; by its first words, else by its flags if the program is a script. None if it is none."""
    line = _program_line(command)
    for mark in signatures():
        if mark.kind == "program" and fnmatchcase(line, mark.pattern):
            return mark.format
    if not command.program.endswith((".py", ".sh")) and "." not in command.program:
        return None
    return best({normal(word.text.partition("=")[0]) for word in command.words[1:] if is_flag(word.text)}, {})


def format_of_document(document: Document) -> str | None:
    """The format of a file that is a mapping; None if it is none."""
    if not isinstance(document.value, dict):
        return None
    if "model_type" in document.value and "architectures" in document.value:
        return None  # a model's config.json
    leaves = {normal(key): value for key, value in _walk(document.value, "", 0)}
    return best(set(leaves), leaves)


def best(keys: set[str], values: dict[str, Any]) -> str | None:
    """The format that most of the keys speak for. A mark `kind=Deployment` asks for a value, `MODEL_ARGS*` for a beginning."""
    scores: dict[str, int] = {}
    for mark in signatures():
        if mark.kind == "key" and _holds(mark.pattern, keys, values):
            scores[mark.format] = scores.get(mark.format, 0) + mark.weight
    if not scores:
        return None
    name = max(scores, key=lambda format_: scores[format_])
    return name if scores[name] >= ENOUGH else None


ENOUGH = 4
"""Sum of weights from which a format is recognised: one key that only this format has, or several common ones."""


def _holds(pattern: str, keys: set[str], values: dict[str, Any]) -> bool:
    key, equals, wanted = pattern.partition("=")
    if equals:
        return key in values and fnmatchcase(str(values[key]), wanted)
    if "*" in key:
        return any(fnmatchcase(name, key) for name in keys)
    return key in keys


def _walk(tree: dict[str, Any], path: str, depth: int) -> list[tuple[str, Any]]:
    """Keys with their values, three levels deep."""
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        found.append((here, value))
        if isinstance(value, dict) and depth < 3:
            found += _walk(value, here, depth + 1)
    return found


def _program_line(command: Command) -> str:
    """The program's last path part and the words up to the first flag: `vllm serve Qwen/Qwen3-8B`."""
    words = []
    for index, word in enumerate(command.words):
        if index and is_flag(word.text):
            break
        words.append(word.text.replace("\\", "/") if index else command.program.replace("\\", "/").rpartition("/")[2])
    return " ".join(words)
