"""Reads any file that can be compared: a job, an answer or trace, a memory snapshot, a profile, a record of a run, a log."""

from __future__ import annotations

from pathlib import Path

from everybyte.basics.errors import BadInput
from everybyte.ledger.answer import Answer
from everybyte.measure.answers import answer_of_file, find_rank
from everybyte.measure.comparing.side import Side, side_of_figures, side_of_history, side_of_profile, side_of_rank
from everybyte.measure.profiles.read import is_profile, read_profile
from everybyte.measure.recording.outside import read_record
from everybyte.measure.snapshots.read import GZIP, read_snapshot
from everybyte.measure.snapshots.timeline import history_of
from everybyte.measure.start_logs.read import read

PICKLE = b"\x80"
"""How pickles of protocol 2 and later begin."""
DOCUMENTS = (".yaml", ".yml", ".json", ".toml")
HEAD = 4096
RECORD = b'"everybyte_record"'
"""The first key of a record."""


def opened(path: str, label: str | None, option: str) -> tuple[Side, Answer | None]:
    """One side of a comparison, and the answer where the file is a job or holds one. `label` chooses the kind of rank of an answer, or the device of a snapshot
    by its number. Raises BadInput with the place for what cannot be read, and at `option` for an unknown label."""
    head = _head(path)
    if head[:1] == PICKLE or (head[:2] == GZIP and not path.endswith(".json.gz")):
        return _snapshot(path, label, option), None
    if path.endswith(".json") and RECORD in head:
        return side_of_figures("record", read_record(path)["figures"]), None
    if is_profile(head, path):
        return side_of_profile(max(read_profile(path), key=lambda one: (one.device != "cpu", one.allocated_peak))), None
    if path == "-" or path.endswith(DOCUMENTS) or not head:
        answer = answer_of_file(path)
        return side_of_rank(answer, find_rank(answer, label, option)), answer
    with Path(path).open("rb") as stream:
        found = read(stream, path)
    figures: dict[str, float] = {}
    for one in found.measured:
        figures[one.figure] = max(one.value, figures.get(one.figure, 0.0))
    return side_of_figures("log", figures), None


def _head(path: str) -> bytes:
    if path == "-":
        return b""
    try:
        with Path(path).open("rb") as file:
            return file.read(HEAD)
    except (OSError, ValueError):
        return b""  # the reader of jobs says what is wrong


def _snapshot(path: str, label: str | None, option: str) -> Side:
    """The device of a snapshot that held most, or the one that is asked for."""
    histories = {str(number): history_of(memory) for number, memory in read_snapshot(path).items()}
    if not histories:
        raise BadInput(path, "is a memory snapshot in which no device holds anything")
    if label is not None and label not in histories:
        raise BadInput(option, f"{path} says nothing of device {label!r}; it has {', '.join(histories)}")
    return side_of_history(histories[label] if label is not None else max(histories.values(), key=lambda one: one.allocated_peak))
