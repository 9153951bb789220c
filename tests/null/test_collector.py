"""Python's collector of cycles rests while an answer is made, and is as it was when that is done."""

from __future__ import annotations

import gc

import pytest

from everybyte.basics.collector import collector_paused


def test_rests_inside_and_works_behind_it() -> None:
    """Inside nothing is collected; behind it, also behind an error, everything is again."""
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_stays_off_for_who_has_turned_it_off() -> None:
    """A program that runs without the collector still does afterwards."""
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
