"""What is known of a container image: which engine is inside, which program starts when no command is given, and the engine's version by its tag."""

from __future__ import annotations

import csv
import re
from fnmatch import fnmatchcase
from functools import cache
from os.path import dirname, join
from typing import NamedTuple


class Image(NamedTuple):
    """An image of an engine."""

    engine: str
    program: tuple[str, ...]
    """Words that come before the container's arguments; empty if the arguments name the program."""
    version: str
    """Of the engine; empty if the tag does not say (`latest`)."""


@cache
def _rows() -> list[list[str]]:
    with open(join(dirname(__file__), "images.csv"), encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


def image_of(reference: str) -> Image | None:
    """What is known of `vllm/vllm-openai:v0.8.5`; None for an image that holds no engine."""
    name = reference.casefold().partition("@")[0]
    _head, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    for pattern, engine, program, version in _rows():
        if fnmatchcase(name, pattern):
            found = re.match(version, tag) if version else None
            found = found or (re.search(version, tag) if version and not version.startswith("v?") else None)
            found = found or re.search(r"-cu\d+\.(\d+-\d+)\.ubuntu", name)
            return Image(engine, tuple(program.split()), _clean(found[1]) if found else "")
    return None


def _clean(version: str) -> str:
    """A version without the tail of an image tag: `0.5.1.post3` of `0.5.1.post3-cu126`."""
    return version.strip(".").replace("-", ".")
