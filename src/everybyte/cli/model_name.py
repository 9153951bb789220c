"""Names that say more than the model: ollama tags, repositories and files of GGUF weights."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.models import find_model
from everybyte.catalog.tags import find_tag

GGUF_WORD = r"(?:ud-)?(?:i?q[1-8]_\w+|tq[12]_0|bf16|f16|mxfp4)"
_REPOSITORY = re.compile(rf"(?P<base>.+?)(?:[-_]gguf)?:(?P<format>{GGUF_WORD})", re.IGNORECASE)
_FILE = re.compile(rf"(?P<base>.+?)[-._](?P<format>{GGUF_WORD})\.gguf", re.IGNORECASE)


class Named(NamedTuple):
    """What a name means, and which engine it is a name of."""

    model: str
    format: str
    engine: str


def meaning_of(name: str) -> Named | None:
    """`llama3.3:70b`, `bartowski/NAME-GGUF:Q4_K_M`, or `NAME-Q4_K_M.gguf` of another machine; None for a name that is just the model's."""
    tag = find_tag(name)
    if tag is not None:
        return Named(tag.model, tag.format, "ollama")
    if name.startswith("hf:") or os.path.exists(name):
        return None
    found = _REPOSITORY.fullmatch(name) or _FILE.fullmatch(os.path.basename(name))
    return None if found is None else Named(_packed_from(found["base"]), found["format"].casefold().removeprefix("ud-"), "llama.cpp")


def _packed_from(name: str) -> str:
    """The model that packed files were made from: under its own name, whoever packed it."""
    for known in (name, name.rpartition("/")[2]):
        try:
            return find_model(known).name
        except BadInput:
            continue
    return name


def name_model(raw: dict[str, Any], purpose: str) -> None:
    """Puts the model in the place of such a name, and the format and the engine where a serving job does not say them."""
    name = raw.get("model")
    found = meaning_of(name) if isinstance(name, str) else None
    if found is None:
        return
    raw["model"] = found.model
    if purpose == "serve":
        raw["serve"].setdefault("weights", {"format": found.format})
        raw["serve"].setdefault("engine", found.engine)
