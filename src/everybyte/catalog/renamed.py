"""Names of models that are in the catalogue under another name: re-uploads, packed and tuned copies. The network is that of the named one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from everybyte.catalog.names import fold, read_table

SUFFIXES = "model_suffixes.csv"

_GGUF_TYPE = re.compile(r"[-_.](ud-)?(i?q\d(_[0-9a-z]+)*|tq\d_\d|f16|f32|bf16|mxfp4(_moe)?)$", re.IGNORECASE)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")
_SIZE = re.compile(r"\d(\.\d+)?[bm](?![a-z])|a\d+(\.\d+)?b", re.IGNORECASE)


class Relative(NamedTuple):
    """A model of the catalogue that another name means."""

    name: str
    reason: str


def relative(name: str, index: Mapping[str, str]) -> Relative | None:
    """The model of `index` (folded name -> catalogue name) that an unknown name means; None if no rule finds one.

    In this order: the name without its organisation, without what says how it is packed, tuned or filed, then the longest name of the catalogue with a size
    that it contains as whole words (`OpenHermes-2.5-Mistral-7B` is a Mistral-7B).
    """
    short = _short_index(tuple(dict.fromkeys(index.values())))
    for bare, reason in _shorter(name):
        found = index.get(fold(bare)) or index.get(fold(f"Meta-{bare}")) or short.get(fold(bare))
        if found is not None:
            return Relative(found, reason)
    return _contained(name, {**short, **index})


@cache
def _short_index(names: tuple[str, ...]) -> dict[str, str]:
    """Names of the catalogue without what says how they are tuned: `Ministral-3-3B` for `Ministral-3-3B-Instruct-2512`, where one model has that name."""
    meanings: dict[str, set[str]] = {}
    for name in names:
        bare = name.partition("::")[0].rpartition("/")[2]
        while (cut := _without_suffix(bare)) is not None:
            bare = cut[0]
            meanings.setdefault(fold(bare), set()).add(name)
    return {key: found.pop() for key, found in meanings.items() if len(found) == 1}


def _shorter(name: str) -> Iterator[tuple[str, str]]:
    """Shorter and shorter forms of a name, each with the reason why it means the same network."""
    path = name.replace("\\", "/").rstrip("/")
    bare = re.sub(r"\.(gguf|safetensors|bin)$", "", path.rpartition("/")[2], flags=re.IGNORECASE)
    bare, _, tag = bare.partition(":")
    if _SIZE.search(tag):
        size = re.split(r"-(?=i?q[0-9]|instruct|text|fp16|chat)", tag, flags=re.IGNORECASE)[0]
        yield f"{bare}-{size}", "a tag of ollama"
        return
    yield bare, "the same name of another organisation or folder"
    bare = _GGUF_TYPE.sub("", _SPLIT.sub("", bare))
    yield bare, "a GGUF file of it"
    reasons: list[str] = []
    while (cut := _without_suffix(bare)) is not None:
        bare, meaning = cut
        reasons.append(meaning)
        yield bare, ", ".join(dict.fromkeys(reasons))


def _without_suffix(name: str) -> tuple[str, str] | None:
    """The name without its longest known ending, and what the ending says."""
    folded = name.casefold().replace("_", "-")
    for suffix, meaning in _suffixes():
        if folded.endswith(f"-{suffix}") and len(name) > len(suffix) + 3:
            return name[: -len(suffix) - 1], meaning
    return None


@cache
def _suffixes() -> tuple[tuple[str, str], ...]:
    rows = [(row[0], row[1]) for row in read_table(SUFFIXES)[1:]]
    return tuple(sorted(rows, key=lambda row: -len(row[0])))


def _contained(name: str, index: Mapping[str, str]) -> Relative | None:
    """The longest name of the catalogue that stands inside `name` between separators and says a size."""
    words = [word for word in re.split(r"[^a-z0-9.]+", name.rpartition("/")[2].casefold()) if word]
    for length in range(len(words), 1, -1):
        for start in range(len(words) - length + 1):
            part = "-".join(words[start : start + length])
            if _SIZE.search(part) and (found := index.get(fold(part)) or index.get(fold(f"meta-{part}"))) is not None:
                return Relative(found, f"its name contains {part}")
    return None
