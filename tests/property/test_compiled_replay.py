"""The compiled replay against the one in Python: the same bytes, the same refusals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_allocator_scripts import script

from everybyte import read_job
from everybyte.allocator.endless import endless_peak, limited_peak
from everybyte.basics.allocations import EMPTY_CACHE, Event, Played, flat
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import MiB, TiB
from everybyte.estimator import accounted
from everybyte.measure.truth import load_records

compiled = pytest.importorskip("everybyte.allocator._compiled", reason="built without a C compiler")
EXPANDABLE = pytest.mark.parametrize("expandable", [False, True], ids=["native", "expandable"])
EVERY = 40
"""Of the records, one in so many: all have the same shape."""


@EXPANDABLE
@given(seed=st.integers(0, 2**32), streams=st.integers(1, 3), length=st.integers(0, 300))
def test_random_scripts(expandable: bool, seed: int, streams: int, length: int) -> None:
    """Whatever is asked, on however many streams: both come to the same peaks."""
    events = script(random.Random(seed), length=length, streams=streams, empties=not expandable)
    assert compiled.endless_peak(events, expandable) == endless_peak(events, expandable)


@given(seed=st.integers(0, 2**32), streams=st.integers(1, 3), length=st.integers(0, 300), limit=st.integers(1, 400))
def test_random_scripts_near_the_limit(seed: int, streams: int, length: int, limit: int) -> None:
    """On a device that may be too small, both give as much back, as often, and fail alike."""
    events = script(random.Random(seed), length=length, streams=streams)
    assert compiled.limited_peak(events, limit * MiB) == limited_peak(events, limit * MiB)


@EXPANDABLE
def test_scripts_of_records(expandable: bool) -> None:
    """The steps of measured runs: both come to the same peaks."""
    trained = [record["job"] for record in load_records() if "train" in record["job"]]
    for job in trained[::EVERY]:
        try:
            ranks = accounted(read_job(job))[2].ranks[:2]
        except Unsupported:
            continue
        for rank in ranks:
            events = [event for event in rank.bill.script() if event != EMPTY_CACHE or not expandable]
            peak, living = endless_peak(events, expandable)
            assert compiled.endless_peak(events, expandable) == (peak, living), job
            if not expandable and living < peak:
                assert compiled.limited_peak(events, (living + peak) // 2) == limited_peak(events, (living + peak) // 2), job


@EXPANDABLE
@pytest.mark.parametrize("events", [[(7, 0)], [(1, 4 * MiB), (1, 0), (1, 0)]], ids=["unknown", "twice"])
def test_what_does_not_live_cannot_be_freed(expandable: bool, events: list[Event]) -> None:
    """Freeing what is not there is a mistake of whoever wrote the script, and both say so."""
    for replayed in (compiled.endless_peak, endless_peak):
        with pytest.raises(KeyError):
            replayed(events, expandable)


@EXPANDABLE
def test_more_than_any_device_has(expandable: bool) -> None:
    """Where petabytes are asked for, both say what lives and nothing else."""
    events = [(number, 5 * TiB) for number in range(1, 9)] + [(3, 0), (9, 70 * TiB)]
    assert compiled.endless_peak(events, expandable) == endless_peak(events, expandable) == (105 * TiB, 105 * TiB)


@EXPANDABLE
@given(seed=st.integers(0, 2**32), copies=st.integers(1, 6))
def test_rows_that_are_played_several_times(expandable: bool, seed: int, copies: int) -> None:
    """Rows with keys come to the same as their events one by one, in C and in Python."""
    rng = random.Random(seed)
    rows = [(slot, rng.randint(1, 45 * MiB)) for slot in range(5)] + [(slot, 0) for slot in rng.sample(range(5), 3)]
    items: list[Event | Played] = [(rows, list(range(100 * copy + 1, 100 * copy + 6))) for copy in range(copies)]
    items.insert(rng.randint(0, copies), (99, 3 * MiB))
    told = compiled.endless_peak(items, expandable)
    assert told == endless_peak(items, expandable) == compiled.endless_peak(list(flat(items)), expandable)
    assert compiled.limited_peak(items, 150 * MiB) == limited_peak(items, 150 * MiB)


@pytest.mark.parametrize(
    "events", [[(1, 2**63)], [(1,)], [1], [("a", 1)], [([(3, 5)], [1])], [([(-1, 5)], [1])], [([1], [1])], [([(0, 5)], ["a"])], [(-1, 5)]], ids=repr
)
def test_what_is_no_event(events: list[Event]) -> None:
    """What is no allocation and no free is refused, not read as one."""
    with pytest.raises((TypeError, ValueError, OverflowError, IndexError)):
        compiled.endless_peak(events, False)
