"""A sign of life when something takes long, and none where nobody watches."""

from __future__ import annotations

import io
import sys
import time

import pytest

from everybyte.cli import progress
from everybyte.cli.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is watched."""

    def isatty(self) -> bool:
        """Somebody watches."""
        return True


def run(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float) -> str:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.05)
    monkeypatch.setattr(progress, "PERIOD_S", 0.01)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("answering", total=7) as bar:
        bar.advance()
        time.sleep(seconds)
    return stream.getvalue()


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience is over the share that is done is shown, and wiped at the end."""
    shown = run(monkeypatch, Terminal(), 0.2)
    assert "answering ██░░░░░░░░░░░░░░░░░░ 1 of 7" in shown
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""


def test_quick_work_and_pipes_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends soon shows nothing; a pipe never sees a sign of life."""
    assert run(monkeypatch, Terminal(), 0.0) == ""
    assert run(monkeypatch, io.StringIO(), 0.2) == ""


def test_the_line_is_away_while_an_answer_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed meanwhile stands at the beginning of an empty line of the terminal, not behind the sign of life."""
    stream = Terminal()
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(progress, "PERIOD_S", 0.01)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("answering", total=7) as bar:
        time.sleep(0.1)
        with bar.away():
            stream.write("the answer\n")
            time.sleep(0.05)
        time.sleep(0.05)
    before, _, after = stream.getvalue().partition("the answer\n")
    assert before.endswith("\r")
    assert before.split("\r")[-2].strip() == ""
    assert after.startswith("\ranswering")
