"""A trace as the allocator's replay takes it."""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.replay import serve, simulator
from everybyte.allocator.settings import DEFAULT, AllocatorSettings
from everybyte.basics.allocations import STREAM_BITS, Event
from everybyte.trace.request import Traced


def script(traced: Traced, before: Iterable[int] = ()) -> list[Event]:
    """The events of a trace; so many bytes are each taken before and never given back."""
    streams = {birth.id: birth.stream for birth in traced.births}
    taken = [(len(traced.births) + 1 + index, nbytes) for index, nbytes in enumerate(before)]
    return taken + [(number | streams[number] << STREAM_BITS, max(nbytes, 0)) for number, nbytes in traced.events]


def changes(traced: Traced, settings: AllocatorSettings = DEFAULT) -> list[int]:
    """By how much each event changes the allocated bytes: a block is what was asked for in multiples of 512 bytes, with a rest that is not worth a block of
    its own, which torch.cuda.memory_allocated counts as well."""
    allocator = simulator(settings)
    found: list[int] = []
    before = 0
    for key, nbytes in script(traced):
        serve(allocator, key, nbytes)
        found.append(allocator.allocated - before)
        before = allocator.allocated
    return found
