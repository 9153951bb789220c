"""Names of ollama's library: which model a tag is, and in which format it is stored where the tag does not say."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from everybyte.catalog.names import read_table

_TAG = re.compile(r"([a-z0-9][a-z0-9._-]*):([a-z0-9][a-z0-9._-]*)", re.IGNORECASE)
_SIZE = re.compile(r"(?:[0-9]+x)?[0-9]+(?:\.[0-9]+)?[bm]")


class Tagged(NamedTuple):
    """What a tag means."""

    model: str
    format: str


def find_tag(name: str) -> Tagged | None:
    """`llama3.3:70b-instruct-q4_K_M` -> the model and its format; None for what is no tag of the library."""
    found = _TAG.fullmatch(name.strip())
    if found is None:
        return None
    family, words = found[1].casefold(), found[2].casefold().split("-")
    size = next((word for word in words if _SIZE.fullmatch(word)), "")
    row = _tags().get(f"{family}:{size}")
    if row is None:
        return None
    stored = next((word for word in words if re.fullmatch(r"i?q[2-8]_\w+|fp16|bf16", word)), row.format)
    return Tagged(row.model, stored)


def all_tags() -> tuple[str, ...]:
    """Every tag that is known."""
    return tuple(_tags())


@cache
def _tags() -> dict[str, Tagged]:
    return {tag: Tagged(model, stored) for tag, model, stored in read_table("ollama_tags.csv")[1:]}
