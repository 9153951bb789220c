"""Rules that hold for PyTorch's allocator whatever is asked of it, and the same from two other accounts of it: a slow one, and the quick loop."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_allocator import Full, PlainExpandable, PlainNative

from everybyte.allocator.caching import OutOfMemory
from everybyte.allocator.heap import Heap
from everybyte.allocator.quick import large_peak
from everybyte.allocator.replay import replay, serve, simulator
from everybyte.allocator.reserved import EXPANDABLE, peak_reserved
from everybyte.allocator.settings import AllocatorSettings
from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, Event, finished, peak_living, used_on
from everybyte.basics.units import MiB

SETTINGS = (
    AllocatorSettings(),
    EXPANDABLE,
    AllocatorSettings(max_split_bytes=24 * MiB),
    AllocatorSettings(roundup_divisions=(4,) * 16),
    AllocatorSettings(collect_above=0.4, memory_fraction=0.9),
)


def script(rng: random.Random, *, length: int = 70, streams: int = 2, least: int = 1, empties: bool = True, uses: bool = True) -> list[Event]:
    """Random events: sizes of all kinds, some again and again."""
    repeated = [rng.randint(max(least, 1), 45 * MiB) for _ in range(3)]
    alive: list[int] = []
    events: list[Event] = []
    for number in range(1, length + 1):
        chance = rng.random()
        if empties and chance < 0.03:
            events.append(EMPTY_CACHE)
        elif uses and chance < 0.08:
            events.append(finished(rng.randrange(streams)))
        elif uses and chance < 0.15 and alive:
            events.append(used_on(rng.choice(alive), rng.randrange(streams)))
        elif alive and chance > 0.55:
            events.append((alive.pop(rng.randrange(len(alive))), 0))
        else:
            key = (rng.randrange(streams) << STREAM_BITS) + number
            sizes = [rng.randint(least, max(least, MiB)), rng.randint(max(least, MiB), 10 * MiB), rng.randint(10 * MiB, 60 * MiB), *repeated]
            events.append((key, rng.choice(sizes)))
            alive.append(key)
    return events


def frees(events: Iterable[Event]) -> list[Event]:
    """The end of everything that still lives after the events."""
    alive = {}
    for key, nbytes in events:
        if nbytes > 0:
            alive[key] = True
        elif nbytes == 0:
            alive.pop(key, None)
    return [(key, 0) for key in alive]


def check(allocator: Heap) -> None:
    """What holds at any moment."""
    segments = allocator.segments()
    blocks = [block for segment in segments for block in segment.blocks]
    assert sum(segment.size for segment in segments) == allocator.reserved
    for a, b in pairwise(blocks):
        assert a.address + a.size <= b.address
    for segment in segments:
        assert sum(block.size for block in segment.blocks) == segment.size
        for a, b in pairwise(segment.blocks):
            assert a.address + a.size == b.address
            assert not a.state == b.state == "inactive"
    active = [block for block in blocks if block.state != "inactive"]
    assert all(block.requested <= block.size for block in active)
    assert sum(block.requested for block in active) == allocator.requested
    assert sum(block.size for block in active if block.state == "active_allocated") == allocator.allocated
    assert 0 <= allocator.inactive_split <= allocator.reserved - allocator.allocated


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "expandable", "whole blocks", "rounded", "collected"])
@given(seed=st.integers(0, 2**32), streams=st.integers(1, 3))
def test_what_always_holds(settings: AllocatorSettings, seed: int, streams: int) -> None:
    """After every event blocks do not overlap, fill their segments, free neighbours are one, sums are those of the blocks, peaks never sink; at the
    end nothing is left."""
    events = script(random.Random(seed), streams=streams)
    allocator = simulator(settings, total=1 << 36)
    peaks = (0, 0, 0)
    for event in [*events, *frees(events)]:
        serve(allocator, *event)
        check(allocator)
        before, peaks = peaks, (allocator.peak_requested, allocator.peak_allocated, allocator.peak_reserved)
        assert all(a <= b for a, b in zip(before, peaks, strict=True))
        assert peaks >= (allocator.requested, allocator.allocated, allocator.reserved)
    serve(allocator, *EMPTY_CACHE)
    assert (allocator.requested, allocator.allocated, allocator.reserved, allocator.segments()) == (0, 0, 0, ())


@pytest.mark.parametrize("kind", ["native", "whole blocks", "expandable"])
@pytest.mark.parametrize("capacity", [0, 250 * MiB])
def test_the_slow_account(kind: str, capacity: int) -> None:
    """Five hundred scripts each: every request gets the address, and the device the bytes, that a search from end to end through all that lives
    comes to; requests fail where they fail there."""
    settings = {"native": SETTINGS[0], "whole blocks": SETTINGS[2], "expandable": EXPANDABLE}[kind]
    for seed in range(500):
        ours = simulator(settings, capacity, total=1 << 36)
        plain = PlainExpandable(capacity) if kind == "expandable" else PlainNative(capacity, settings.max_split_bytes)
        for key, nbytes in script(random.Random(seed), uses=False):
            failed = False
            try:
                if key == 0:
                    plain.empty_cache()
                elif nbytes:
                    plain.malloc(key, nbytes)
                else:
                    plain.living.pop(key, None)
            except Full:
                failed = True
            try:
                if nbytes or key == 0 or key in ours._live:
                    serve(ours, key, nbytes)
                assert not failed
            except OutOfMemory:
                assert failed
            assert (ours.reserved, ours.retries) == (plain.reserved, plain.retries), seed
        held, living = sorted(ours._live.items()), sorted(plain.living.items())
        assert [(key, size) for key, (_, size, _, _) in held] == [(key, block.size) for key, block in living], seed
        if kind != "expandable":  # its ranges may lie anywhere
            assert [address for _, (address, _, _, _) in held] == [block.address for _, block in living], seed


@pytest.mark.parametrize("expandable", [False, True])
@given(seed=st.integers(0, 2**32))
def test_the_quick_loop(expandable: bool, seed: int) -> None:
    """Requests above 1 MiB on one stream: the loop that answers use comes to the allocator's peak."""
    events = script(random.Random(seed), length=120, streams=1, least=MiB + 1, empties=not expandable, uses=False)
    assert large_peak(events, expandable=expandable) == replay(events, AllocatorSettings(expandable_segments=expandable)).peak_reserved


@given(seed=st.integers(0, 2**32), capacity=st.integers(100, 400))
def test_reserved_on_a_device(seed: int, capacity: int) -> None:
    """On any device at least what lives is reserved, and no more than the device has unless it cannot be served."""
    events = script(random.Random(seed), uses=False)
    reserved = peak_reserved(events, capacity=capacity * MiB)
    assert reserved.peak >= peak_living(events)
    if reserved.peak > capacity * MiB:
        with pytest.raises(OutOfMemory):
            replay(events, capacity=capacity * MiB)


@pytest.mark.parametrize("settings", [AllocatorSettings(), EXPANDABLE], ids=["native", "expandable"])
def test_what_no_device_holds(settings: AllocatorSettings) -> None:
    """A mistaken job that asks for petabytes is answered with what lives at once."""
    events = [(number, 2**50 + number * MiB) for number in range(1, 200)]
    assert peak_reserved(events, settings).peak == peak_living(events)
