"""PyTorch's caching allocator, replayed: sizes, pools, best fit, splitting, merging, the limit of the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.allocator.caching import CachingAllocator, OutOfMemory
from everybyte.allocator.endless import apart
from everybyte.allocator.reserved import EXPANDABLE, Reserved, peak_reserved
from everybyte.basics.allocations import EMPTY_CACHE
from everybyte.basics.units import MiB


def reserved_after(*sizes: int) -> int:
    """Reserved bytes after allocating the sizes, one after the other."""
    allocator = CachingAllocator()
    for key, size in enumerate(sizes, 1):
        allocator.malloc(key, size)
    return allocator.reserved


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((1,), 2 * MiB),
        ((MiB,), 2 * MiB),
        ((MiB, MiB), 2 * MiB),
        ((MiB, MiB, 1), 4 * MiB),
        ((MiB + 1,), 20 * MiB),
        ((9 * MiB, 9 * MiB), 20 * MiB),
        ((9 * MiB, 9 * MiB, 9 * MiB), 40 * MiB),
        ((10 * MiB,), 10 * MiB),
        ((10 * MiB + 1,), 12 * MiB),
    ],
)
def test_segments(sizes: tuple[int, ...], reserved: int) -> None:
    """Small requests share 2 MiB segments, those under 10 MiB share 20 MiB ones, larger ones get their own in steps of 2 MiB."""
    assert reserved_after(*sizes) == reserved


def test_blocks_are_multiples_of_512() -> None:
    """A byte takes a block of 512."""
    allocator = CachingAllocator()
    allocator.malloc(1, 1)
    assert allocator.allocated == 512


def test_a_rest_of_up_to_one_mib_stays_in_a_large_block() -> None:
    """11.5 MiB come from a segment of 12 MiB whose rest is not split off, and count as 12."""
    allocator = CachingAllocator()
    allocator.malloc(1, 11 * MiB + MiB // 2)
    assert allocator.allocated == 12 * MiB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    """Of free blocks of 30 and 20 MiB a request of 16 takes the smaller one, so that 30 are free for the next."""
    allocator = CachingAllocator()
    allocator.malloc(1, 30 * MiB)
    allocator.malloc(2, 20 * MiB)
    allocator.free(1)
    allocator.free(2)
    allocator.malloc(3, 16 * MiB)
    allocator.malloc(4, 30 * MiB)
    assert allocator.reserved == 50 * MiB


def test_neighbours_merge() -> None:
    """Two halves of a segment that are free again serve a request for the whole."""
    allocator = CachingAllocator()
    allocator.malloc(1, 40 * MiB)
    allocator.free(1)
    allocator.malloc(2, 20 * MiB)
    allocator.malloc(3, 20 * MiB)
    allocator.free(3)
    allocator.free(2)
    allocator.malloc(4, 40 * MiB)
    assert allocator.reserved == 40 * MiB


def test_a_full_device_gets_its_free_segments_back() -> None:
    """A request that does not fit beside cached segments is served after these are given back, once; if nothing is free it fails."""
    allocator = CachingAllocator(capacity=50 * MiB)
    allocator.malloc(1, 30 * MiB)
    allocator.free(1)
    allocator.malloc(2, 40 * MiB)
    assert (allocator.reserved, allocator.peak_reserved, allocator.retries) == (40 * MiB, 40 * MiB, 1)
    with pytest.raises(OutOfMemory, match="do not fit"):
        allocator.malloc(3, 20 * MiB)


def test_a_script_that_cannot_be_served_says_what_it_needs() -> None:
    """Where even empty caches do not help, the answer is what an endless device would reserve."""
    script = [(1, 30 * MiB), (2, 40 * MiB)]
    assert peak_reserved(script, capacity=50 * MiB) == peak_reserved(script) == Reserved(70 * MiB)


def test_emptying_the_cache() -> None:
    """(0, 0) gives free segments back, so that what follows does not add to them."""
    assert peak_reserved([(1, 30 * MiB), (1, 0), (2, 40 * MiB)]).peak == 70 * MiB
    assert peak_reserved([(1, 30 * MiB), (1, 0), EMPTY_CACHE, (2, 40 * MiB)]).peak == 40 * MiB


def test_small_tensors_are_summed_apart() -> None:
    """The small pool is as large as its tensors ever are together, in segments of 2 MiB; large events go on as they are."""
    large, small = apart([(1, MiB), (2, MiB), (3, 5 * MiB), (1, 0), (4, 100), (3, 0)])
    assert large == [(3, 5 * MiB), (3, 0)]
    assert small == 2 * MiB


@given(st.lists(st.tuples(st.integers(1, 60 * MiB), st.booleans()), max_size=60))
def test_reserved_covers_allocated(requests: list[tuple[int, bool]]) -> None:
    """Whatever is asked and freed, reserved bytes cover allocated ones, and freeing everything leaves nothing allocated and whole segments."""
    allocator = CachingAllocator()
    alive = []
    for key, (size, freed_at_once) in enumerate(requests, 1):
        allocator.malloc(key, size)
        assert size <= allocator.allocated <= allocator.reserved
        if freed_at_once:
            allocator.free(key)
        else:
            alive.append(key)
    for key in alive:
        allocator.free(key)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_expandable_segments_do_not_fragment() -> None:
    """What two freed tensors leave serves a larger one, where segments of fixed size would need another; pages are whole."""
    script = [(1, 30 * MiB), (2, 30 * MiB), (1, 0), (2, 0), (3, 60 * MiB)]
    assert peak_reserved(script).peak == 120 * MiB
    assert peak_reserved(script, EXPANDABLE).peak == 60 * MiB
    assert peak_reserved([(1, 21 * MiB)], EXPANDABLE).peak == 40 * MiB
