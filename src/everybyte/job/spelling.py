"""Values that can only mean one thing: `fsdp`, `zero-3`, `bfloat16`, `32k`. Command lines are read so; a job file says what the form says."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from os.path import dirname, join
from typing import Any

from msgspec import inspect

from everybyte.job.form import Job
from everybyte.job.shorthand import HEAD_KEY
from everybyte.job.words import KV_FORMATS, WEIGHT_FORMATS

OPEN_WORDS: dict[str, tuple[str, ...]] = {"serve.weights.format": WEIGHT_FORMATS, "serve.kv_dtype.k": KV_FORMATS, "serve.kv_dtype.v": KV_FORMATS}
"""Keys whose words the form leaves open, with the usual ones."""
_THOUSANDS = {"k": 1024, "m": 1024**2}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([km]?)", re.IGNORECASE)


def respelled(raw: dict[str, Any]) -> dict[str, Any]:
    """The job with every value in the form's own spelling where it can only mean one; `raw` is not changed."""
    return {key: _section(key, _whole(key, value)) for key, value in raw.items()}


def _whole(section: str, keys: Any) -> Any:
    """Parts of `train` and `serve` that a switch or a joint name stands for: `recompute: true`, `adapter: qlora`."""
    if not isinstance(keys, dict):
        return keys
    heads = HEAD_KEY.get(section, {})
    found = {key: {heads[key]: str(value).lower()} if key in heads and isinstance(value, bool) else value for key, value in keys.items()}
    adapter = found.get("adapter")
    if isinstance(adapter, dict) and adapter.get("kind") == "qlora":
        found["adapter"] = {**adapter, "kind": "lora"}
        found.setdefault("quantization", {"format": "nf4"})
    return found


def _section(path: str, value: Any) -> Any:
    if isinstance(value, dict) and path not in ("given", "model", "train.extra", "serve.extra"):
        return {key: _section(f"{path}.{key}", inner) for key, inner in value.items()}
    return spelled(path, value)


def spelled(path: str, value: Any) -> Any:
    """A value of a key path in the form's spelling; as it is where it could mean several things, or nothing."""
    if isinstance(value, bool | int) and path in _keys_of_words():
        value = str(value).lower()
    if not isinstance(value, str):
        return value
    found = _by_key().get(path, {}).get(fold(value))
    if found is not None:
        return found
    return count(value) if path in _keys_of_counts() and count(value) is not None else value


def count(text: str) -> int | None:
    """`32k` -> 32,768: tokens are counted in powers of two; None if it is no count."""
    found = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        return None
    number = float(found[1]) * _THOUSANDS.get(found[2].casefold(), 1)
    return int(number) if number == int(number) else None


def fold(word: str) -> str:
    """`ZeRO-3` -> `zero3`."""
    return re.sub(r"[^a-z0-9]", "", word.casefold())


@cache
def _by_key() -> dict[str, dict[str, str]]:
    """Key path -> folded word -> word of the form. A folded word that two words share has no entry."""
    found: dict[str, dict[str, str]] = {}
    for path, words in [*_words_of_the_form(), *OPEN_WORDS.items()]:
        meanings: dict[str, set[str]] = {}
        for word in words:
            meanings.setdefault(fold(word), set()).add(word)
        found[path] = {folded: words.pop() for folded, words in meanings.items() if len(words) == 1}
    for path, word, means in _table():
        found.setdefault(path, {}).setdefault(fold(word), means)
    return found


def _table() -> list[list[str]]:
    with open(join(dirname(__file__), "data", "spellings.csv"), encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


def _words_of_the_form() -> Iterator[tuple[str, tuple[str, ...]]]:
    for path, members in _leaves("", inspect.type_info(Job)):
        words = tuple(str(word) for member in members if isinstance(member, inspect.LiteralType) for word in member.values)
        if words:
            yield path, words


@cache
def _keys_of_words() -> frozenset[str]:
    return frozenset(path for path, words in _words_of_the_form() if len(words) > 1)


@cache
def _keys_of_counts() -> frozenset[str]:
    return frozenset(path for path, members in _leaves("", inspect.type_info(Job)) if any(isinstance(member, inspect.IntType) for member in members))


def _leaves(path: str, form: inspect.Type) -> Iterator[tuple[str, tuple[inspect.Type, ...]]]:
    """Key paths of the form, each with what its value may be."""
    members = form.types if isinstance(form, inspect.UnionType) else (form,)
    if path:
        yield path, tuple(members)
    for member in members:
        if isinstance(member, inspect.StructType):
            for field in member.fields:
                yield from _leaves(f"{path}.{field.encode_name}" if path else field.encode_name, field.type)
