"""Numbers that a program reads from the fake device: those that are only told have a stand-in, those that decide are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from everybyte.basics.errors import EverybyteError
from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.run import run

LOGS = Path(__file__).with_name("programs") / "logs.py"
pytestmark = pytest.mark.usefixtures("compiler")


def trace(name: str) -> Traced:
    return run(TraceRequest(target=f"{LOGS}:{name}"))


def test_a_loss_that_is_logged_has_a_stand_in() -> None:
    """A loop that averages, guards, rounds and prints its loss is traced, and each line that read a number is named."""
    notes = trace("logging").notes
    assert len(notes) == 2
    assert all("logs.py:" in note and "1.0 stood for it" in note for note in notes)


def test_a_count_that_is_printed_has_a_stand_in() -> None:
    """A loop that counts its right answers for an accuracy is traced, and what it asserts of values holds."""
    (note,) = trace("counting").notes
    assert "logs.py:" in note


def test_the_best_of_numbers_is_unknown() -> None:
    """A loop that keeps its best loss is traced, and so is an optimizer that clamps by norms: its states are there."""
    traced = trace("keeping")
    assert any(birth.category == "optimizer_state" for birth in traced.births)


def test_a_number_of_the_programs_own_is_known() -> None:
    """What the program itself has put on the GPU may be read and compared; nothing is taken for granted of it."""
    assert not trace("knowing").notes


def test_a_scaled_loss_steps() -> None:
    """GradScaler takes the way of a step without overflow: the optimizer's states are there."""
    traced = trace("scaling")
    assert any(birth.category == "optimizer_state" for birth in traced.births)


@pytest.mark.parametrize("name", ["stopping", "writing_over", "sizing", "clamping", "cutting", "deciding"])
def test_a_number_that_decides_is_refused(name: str) -> None:
    """A number that a condition or a size hangs on is refused at the program's own line, with a way round."""
    with pytest.raises(EverybyteError, match=r"logs\.py:\d+: .*\n.*\n?.*a way round"):
        trace(name)
