"""Finds messages in a line and those that follow it, and reads their facts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from everybyte.measure.log_text import Line
from everybyte.measure.messages.form import Form, Message, facts_of_torch, forms
from everybyte.measure.sizes import SIZE, size

AHEAD = 12
"""Lines behind a line that may belong to its message: TensorRT-LLM's table is the longest."""
LONGEST = 1600
"""Characters of a message of PyTorch."""
_PROCESS = re.compile(rf"Process\s+(\d+)\s+has\s+({SIZE})\s+memory in use")
_RANK = re.compile(r"(?:\[rank|\[default|\brank[ =:]+|\bRank[ :]+|_TP|\bTP|\bLOCAL_RANK[ =])(\d+)")
_WHEN = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b")
_GIB_WITHOUT_UNIT = {"vllm.free_at_start": ("requested", "free", "capacity")}
"""Forms that print one unit behind several numbers."""
MOST_DIGITS = 18
OWN_OVERHEAD = (200 << 20, 6 << 30)
"""What a process has beside PyTorch's allocator: context, libraries, communicators. By it a container's own process is known under a foreign number."""


@cache
def triggers() -> tuple[str, ...]:
    """Words one of which a line has that begins a message."""
    return tuple({word: None for form in forms() for word in form.triggers})


def message_at(window: Sequence[Line]) -> Message | None:
    """The message that begins in the first line of a window, or None."""
    line = window[0]
    text = "\n".join(one.text for one in window)
    for form in forms():
        if any(word in line.text for word in form.triggers):
            found = form.pattern.search(text)
            if found is not None and found.start() <= len(line.text):
                return _message(form, found, line, text)
    return None


def _message(form: Form, found: re.Match[str], line: Line, text: str) -> Message:
    facts = {name: value for name, value in found.groupdict().items() if value is not None}
    numbers: dict[str, int | None] = {}
    for name in ("requested", "capacity", "allocated", "free", "process", "allowed"):
        if name in facts:
            numbers[name] = size(facts[name] + (" GiB" if name in _GIB_WITHOUT_UNIT.get(form.id, ()) else ""))
    for exact in ("exact", "exact2"):
        if exact in facts:
            numbers["requested"] = size(f"{facts[exact]} bytes")
    for name in ("capacity", "free"):
        if f"{name}_gib" in facts:
            numbers[name] = size(f"{facts[f'{name}_gib']} GiB")
    others: tuple[int, ...] = ()
    index = facts.get("index")
    if form.facts:
        said = text[_begin(text, found.start()) : found.start() + LONGEST]
        numbers, index = _facts_of_torch(said)
        others = tuple(nbytes for _, one in _PROCESS.findall(said) if (nbytes := size(one)))
        numbers, others = _processes(numbers, others, in_total="reserved in total" in said)
    rank = _RANK.search(line.text)
    when = _WHEN.search(line.text[:120])
    device = facts.get("device") or facts.get("device2") or (f"{form.device}{index}" if form.device and index is not None else None)
    counts = {name: int(facts[name][:MOST_DIGITS]) for name in ("needs", "has") if name in facts}
    return Message(
        form,
        line.number,
        line.text.strip()[:400],
        device=device,
        rank=int(rank.group(1)[:MOST_DIGITS]) if rank else None,
        others=others,
        when=when.group() if when else None,
        **numbers,
        **counts,
    )


def _begin(text: str, start: int) -> int:
    """Where the line of a match begins: some wordings put the size in front of the words that are looked for."""
    return text.rfind("\n", 0, start) + 1


def _facts_of_torch(said: str) -> tuple[dict[str, int | None], str | None]:
    numbers: dict[str, int | None] = {}
    index = None
    for name, pattern in facts_of_torch().items():
        found = pattern.search(said)
        if found is None:
            continue
        value = next(group for group in found.groups() if group is not None)
        if name == "index":
            index = value
        else:
            numbers[name] = size(value)
    rest = numbers.pop("rest", None)
    allocated = numbers.get("allocated")
    if numbers.get("reserved") is None and rest is not None and allocated is not None:
        numbers["reserved"] = allocated + rest
    return numbers, index


def _processes(numbers: dict[str, int | None], listed: tuple[int, ...], *, in_total: bool) -> tuple[dict[str, int | None], tuple[int, ...]]:
    """What this process and others hold, printed or by difference. `in_total`: the old frame, which says what is reserved in total and nothing of processes."""
    capacity, free, reserved, process = (numbers.get(name) for name in ("capacity", "free", "reserved", "process"))
    if process == 0:  # the driver tells nothing of processes
        numbers["process"] = process = None
    if process is None and reserved is not None:
        own = next((one for one in listed if OWN_OVERHEAD[0] <= one - reserved <= OWN_OVERHEAD[1]), None)
        if own is not None:
            numbers["process"] = process = own
            listed = _without(listed, own)
    if "other" in numbers:
        return numbers, listed
    if listed:
        numbers["other"] = sum(listed)
    elif capacity is not None and free is not None and process is not None:
        numbers["other"] = max(capacity - free - process, 0)
    elif capacity is not None and free is not None and reserved is not None and in_total:
        numbers["other"] = max(capacity - reserved - free, 0)
    return numbers, listed


def _without(listed: tuple[int, ...], own: int) -> tuple[int, ...]:
    at = listed.index(own)
    return (*listed[:at], *listed[at + 1 :])
