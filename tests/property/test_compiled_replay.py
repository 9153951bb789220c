"""The compiled replay against the one in Python: the same bytes, the same refusals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_allocator_scripts import script

from everybyte import read_job
from everybyte.allocator.endless import endless_peak, limited_peak
from everybyte.basics.allocations import EMPTY_CACHE, Event, finished, settled, used_on
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
    events = script(random.Random(seed), length=length, streams=streams, empties=not expandable, uses=False)
    assert compiled.endless_peak(events, expandable) == endless_peak(events, expandable)


@given(seed=st.integers(0, 2**32), streams=st.integers(1, 3), length=st.integers(0, 300), limit=st.integers(1, 400))
def test_random_scripts_near_the_limit(seed: int, streams: int, length: int, limit: int) -> None:
    """On a device that may be too small, both give as much back, as often, and fail alike."""
    events = script(random.Random(seed), length=length, streams=streams, uses=False)
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
            events = list(settled(events))
            peak, living = endless_peak(events, expandable) or (0, 0)
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


@pytest.mark.parametrize("event", [used_on(1, 1), finished(1)], ids=["use", "end of a stream's work"])
def test_uses_of_other_streams_are_left_to_others(event: Event) -> None:
    """Events that say how streams use memory are not replayed here: both say so before they answer something else."""
    events = [(1, 4 * MiB), event, (1, 0)]
    assert compiled.endless_peak(events, False) is None
    assert endless_peak(events, False) is None
    with pytest.raises(ValueError, match="streams"):
        compiled.limited_peak(events, 100 * MiB)


@pytest.mark.parametrize("events", [[(1, 2**63)], [(1,)], [1], [("a", 1)]], ids=repr)
def test_what_is_no_event(events: list[Event]) -> None:
    """What is no allocation and no free is refused, not read as one."""
    with pytest.raises((TypeError, ValueError, OverflowError)):
        compiled.endless_peak(events, False)
