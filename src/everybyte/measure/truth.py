"""The measured runs that ship with the package (data/README.md says where they come from)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from os.path import dirname, join
from typing import Any

import msgspec

DATA = join(dirname(__file__), "data")


def load_records() -> Iterator[dict[str, Any]]:
    """All records, file by file in the order of their names."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for name in sorted(os.listdir(DATA)):
        if name.endswith(".jsonl"):
            with open(join(DATA, name), "rb") as file:
                yield from decoder.decode_lines(file.read())
