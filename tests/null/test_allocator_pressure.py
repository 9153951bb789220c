"""PyTorch's caching allocator where memory is scarce, streams share it, or settings change its rules: each rule by hand."""

from __future__ import annotations

import pytest

from everybyte.allocator.blocks import Action
from everybyte.allocator.caching import CachingAllocator, OutOfMemory
from everybyte.allocator.expandable import ExpandableSegments
from everybyte.allocator.replay import replay
from everybyte.allocator.settings import AllocatorSettings, read_alloc_conf
from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, finished, used_on
from everybyte.basics.units import GiB, MiB

OTHER = 1 << STREAM_BITS
"""Added to a key: the request is made on stream 1."""


def test_streams_do_not_share_memory() -> None:
    """What one stream has freed does not serve another, though it lies free."""
    allocator = replay([(1, 30 * MiB), (1, 0), (OTHER + 2, 30 * MiB)])
    assert (allocator.reserved, allocator.allocated) == (60 * MiB, 30 * MiB)


def test_a_block_in_use_elsewhere_is_free_when_that_stream_is_done() -> None:
    """A tensor that stream 1 still reads cannot be had again after it was freed, until that stream is done."""
    used = [(1, 30 * MiB), used_on(1, 1), (1, 0)]
    assert replay([*used, (2, 30 * MiB)]).reserved == 60 * MiB
    assert replay([*used, finished(1), (2, 30 * MiB)]).reserved == 30 * MiB
    assert replay([*used, finished(2), (2, 30 * MiB)]).reserved == 60 * MiB


def test_use_on_its_own_stream_means_nothing() -> None:
    """record_stream with the stream on which a tensor was made keeps nothing back."""
    assert replay([(1, 30 * MiB), used_on(1, 0), (1, 0), (2, 30 * MiB)]).reserved == 30 * MiB


def test_a_waiting_block_is_neither_allocated_nor_free() -> None:
    """Freed and still used on another stream, it counts as requested, not as allocated, and the block map says that it waits."""
    allocator = replay([(1, 30 * MiB), used_on(1, 1), (1, 0)])
    assert (allocator.allocated, allocator.requested) == (0, 30 * MiB)
    assert [block.state for segment in allocator.segments() for block in segment.blocks] == ["active_pending_free"]


def test_a_full_device_waits_for_other_streams() -> None:
    """Before it fails the allocator waits for every stream, and gives back what they used."""
    allocator = replay([(1, 30 * MiB), used_on(1, 1), (1, 0), (2, 40 * MiB)], capacity=50 * MiB)
    assert (allocator.reserved, allocator.retries) == (40 * MiB, 1)


def test_a_request_that_fails_can_be_told() -> None:
    """The error names the request's size, what is reserved and what there is; the log has it with the free bytes of the device."""
    log: list[Action] = []
    with pytest.raises(OutOfMemory) as told:
        replay([(1, 30 * MiB), (2, 40 * MiB)], capacity=50 * MiB, log=log)
    assert (told.value.size, told.value.reserved, told.value.limit) == (40 * MiB, 30 * MiB, 50 * MiB)
    assert log[-1] == Action("oom", 20 * MiB, 40 * MiB, 0, 2, 1)


def test_whole_blocks_are_not_split() -> None:
    """With max_split_size_mb:32 a free block of 60 MiB serves neither 20 MiB, which would split it, nor 35, for which it is 20 or more too large,
    but 45, whole."""
    settings = read_alloc_conf("max_split_size_mb:32")
    start = [(1, 60 * MiB), (1, 0)]
    assert replay([*start, (2, 20 * MiB)], settings).reserved == 80 * MiB
    assert replay([*start, (2, 35 * MiB)], settings).reserved == 96 * MiB
    whole = replay([*start, (2, 45 * MiB)], settings)
    assert (whole.reserved, whole.allocated) == (60 * MiB, 60 * MiB)


def test_a_full_device_gives_whole_blocks_back_first() -> None:
    """One block that is large enough goes back, and no other, without a retry; without the setting all that is free goes."""
    events = [(1, 40 * MiB), (2, 60 * MiB), (3, 12 * MiB), (1, 0), (2, 0), (3, 0), (4, 90 * MiB)]
    allocator = replay(events, read_alloc_conf("max_split_size_mb:32,max_non_split_rounding_mb:20"), 150 * MiB)
    assert (allocator.reserved, allocator.retries) == (102 * MiB, 0)
    assert replay(events, capacity=150 * MiB).retries == 1


@pytest.mark.parametrize(
    ("text", "nbytes", "allocated"),
    [
        ("roundup_power2_divisions:4", 1200 * 1024, 1280 * 1024),
        ("roundup_power2_divisions:4", 2 * MiB, 2 * MiB),
        ("roundup_power2_divisions:1", 5 * MiB, 5 * MiB),
        ("roundup_power2_divisions:[4:2,8:0,>:4]", 5 * MiB, 6 * MiB),
        ("roundup_power2_divisions:[4:2,8:0,>:4]", 9 * MiB, 9 * MiB),
        ("roundup_power2_divisions:[4:2,8:0,>:4]", 17 * MiB, 20 * MiB),
        ("roundup_power2_divisions:[4:2,8:0,>:4]", 700, 1024),
    ],
)
def test_rounding(text: str, nbytes: int, allocated: int) -> None:
    """Sizes are rounded to steps between two powers of two, by interval, and to 512 B where there are too few steps (the source's own example:
    1200 in quarters between 1024 and 2048 is 1280)."""
    assert replay([(1, nbytes)], read_alloc_conf(text)).allocated == allocated


def test_a_part_of_the_device() -> None:
    """per_process_memory_fraction ends the memory before the device does."""
    settings = read_alloc_conf("per_process_memory_fraction:0.5")
    assert replay([(1, 400 * MiB)], settings, GiB).reserved == 400 * MiB
    with pytest.raises(OutOfMemory):
        replay([(1, 600 * MiB)], settings, GiB)
    with pytest.raises(OutOfMemory):
        replay([(1, 600 * MiB)], settings, 900 * MiB, total=GiB)


def test_garbage_collection() -> None:
    """330 MiB are reserved where 300 are the threshold: before the next segment the one of 60 MiB goes that lay unused for longer than the average,
    the younger one of 100 stays; without a part of the device that is allowed, none goes."""
    events = [(1, 60 * MiB), (2, 100 * MiB), (1, 0), (3, 80 * MiB), (4, 90 * MiB), (2, 0), (5, 120 * MiB)]
    swept = replay(events, AllocatorSettings(collect_above=0.5, memory_fraction=0.5), 1200 * MiB)
    assert (swept.reserved, swept.peak_reserved, swept.retries) == (390 * MiB, 390 * MiB, 0)
    assert replay(events, AllocatorSettings(collect_above=0.5), 600 * MiB).reserved == 450 * MiB


def test_size_of_large_segments() -> None:
    """large_segment_size_mb: what requests between 1 and 10 MiB share."""
    assert replay([(1, 5 * MiB)], read_alloc_conf("large_segment_size_mb:48")).reserved == 48 * MiB


def test_pages_go_back_wherever_they_lie() -> None:
    """Expandable: of 100 MiB freed before a living block, the pages of 20 MiB that lie whole within go back, and are mapped again for the next."""
    settings = AllocatorSettings(expandable_segments=True)
    emptied = replay([(1, 95 * MiB), (2, 30 * MiB), (1, 0), EMPTY_CACHE], settings)
    assert emptied.reserved == 60 * MiB
    assert [s.size for s in emptied.segments()] == [60 * MiB]
    again = replay([(1, 95 * MiB), (2, 30 * MiB), (1, 0), EMPTY_CACHE, (3, 60 * MiB)], settings)
    assert again.reserved == 120 * MiB
    assert [s.size for s in again.segments()] == [60 * MiB, 60 * MiB]


def test_best_fit_leaves_what_can_grow() -> None:
    """Expandable: a free block before unmapped addresses is the last choice, though it is the smaller one."""
    settings = AllocatorSettings(expandable_segments=True)
    events = [(1, 50 * MiB), (2, 10 * MiB), (3, 60 * MiB), (1, 0), (3, 0)]
    allocator = replay([*events, (4, 20 * MiB)], settings)
    assert next(b.address for s in allocator.segments() for b in s.blocks if b.key == 4) == 0


def test_the_block_map() -> None:
    """Blocks of a segment in the order of their addresses, with what was asked and by whom."""
    allocator = replay([(1, 5 * MiB + 1), (2, 3 * MiB), (3, 4 * MiB), (2, 0), (OTHER + 9, 100)])
    large, small = allocator.segments()
    assert [(b.size, b.requested, b.state, b.key) for b in large.blocks] == [
        (5 * MiB + 512, 5 * MiB + 1, "active_allocated", 1),
        (3 * MiB, 0, "inactive", 0),
        (4 * MiB, 4 * MiB, "active_allocated", 3),
        (8 * MiB - 512, 0, "inactive", 0),
    ]
    assert (large.size, large.active, large.small, large.stream) == (20 * MiB, 9 * MiB + 512, False, 0)
    assert (small.size, small.small, small.stream, small.blocks[0].key) == (2 * MiB, True, 1, OTHER + 9)
    assert allocator.inactive_split == 3 * MiB + 8 * MiB - 512 + 2 * MiB - 512


def test_the_event_of_the_peak() -> None:
    """`peak_event` is the event at which most was reserved: replaying until then gives the block map of the peak."""
    events = [(1, 30 * MiB), (2, 40 * MiB), (1, 0), (2, 0), EMPTY_CACHE, (3, 10 * MiB)]
    peak = replay(events)
    assert (peak.peak_event, peak.peak_reserved, peak.reserved) == (1, 70 * MiB, 10 * MiB)
    assert sum(segment.size for segment in replay(events[: peak.peak_event + 1]).segments()) == 70 * MiB


def test_the_log() -> None:
    """What was done, in the words of PyTorch's snapshots: a segment before the block in it, a free that waits in two steps."""
    log: list[Action] = []
    replay([(1, 30 * MiB), used_on(1, 1), (1, 0), finished(1), EMPTY_CACHE], log=log)
    assert [(a.name, a.size, a.key, a.event) for a in log] == [
        ("segment_alloc", 30 * MiB, 0, 0),
        ("alloc", 30 * MiB, 1, 0),
        ("free_requested", 30 * MiB, 1, 2),
        ("free_completed", 30 * MiB, 1, 3),
        ("segment_free", 30 * MiB, 0, 4),
    ]
    log.clear()
    replay([(1, MiB), (1, 0), EMPTY_CACHE], AllocatorSettings(expandable_segments=True), log=log)
    assert [a.name for a in log] == ["segment_map", "alloc", "free_requested", "free_completed", "segment_unmap"]


def test_what_is_asked_and_what_is_held() -> None:
    """`requested` counts bytes as they were asked for, `allocated` blocks."""
    for allocator in (CachingAllocator(), ExpandableSegments()):
        allocator.malloc(1, 1)
        allocator.malloc(2, 5 * MiB + 1)
        allocator.free(1)
        assert (allocator.requested, allocator.allocated) == (5 * MiB + 1, 5 * MiB + 512)
        assert (allocator.peak_requested, allocator.peak_allocated) == (5 * MiB + 2, 5 * MiB + 1024)
