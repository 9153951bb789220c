"""A trace as files for other programs."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.trace.request import Traced


def as_json(traced: Traced) -> bytes:
    """The whole trace as JSON: births as objects, events as [id, bytes] pairs in the order of time, negative where a storage is freed."""
    births = [{name: getattr(birth, name) for name in birth.__struct_fields__} for birth in traced.births]
    marks = {mark.name: mark.position for mark in traced.marks}
    content: dict[str, Any] = {"births": births, "events": traced.events, "marks": marks, "operations": traced.operations, "notes": traced.notes}
    return msgspec.json.encode(content)
