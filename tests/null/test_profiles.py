"""Profiles from strangers: each is read, or refused in one message, in bounded memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.cli.app import run
from everybyte.measure.profiles import read as reader
from everybyte.measure.profiles.read import read_profile

GPU_TRACE = """{"schemaVersion": 1, "traceEvents": [
 {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": 512, "Total Reserved": 2097152}},
 {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, "Bytes": -512, "Total Allocated": 0, "Total Reserved": 2097152}},
 {"ph": "X", "name": "aten::mm"}]}"""
TIMELINE = "[[1, 2, 3], [[0, 8, 0, 0, 0, 0, 0, 0, 0], [0, 8, 0, 0, 0, 4, 0, 0, 1], [0, 8, 0, 0, 0, 0, 0, 0, 0]]]"
RAW = "[[-1, 0, 8, 0], [5, 1, 4, 4], [6, 1, 1, 7], [7, 3, -4, 4]]"


def test_known_files(tmp_path: Path) -> None:
    """Peaks, categories at the peak and now come out as they were put in, in all forms."""
    file = tmp_path / "a.json"
    for text in (TIMELINE, RAW):
        file.write_text(text)
        (one,) = read_profile(file)
        assert (one.allocated_peak, one.at_peak) == (13, {"parameter": 8, "activation": 4, "unknown": 1})
    file.write_text(GPU_TRACE)
    (one,) = read_profile(file)
    assert (one.device, one.allocated_peak, one.allocated_now, one.reserved_peak) == ("0", 512, 0, 2 << 20)


@pytest.mark.parametrize(
    "text",
    [
        "[[",
        "[[1], 2]",
        "[[1, 2, 3, 99]]",
        "[" * 100_000,
        "{",
        '{"traceEvents": 7}',
        "[[0],[[0,1]]]",
        '[["a", 1, 2, 3]]',
        "[[1e400, 0, 0, 0]]",
        "[[1,2,3,4],[1,2,3,4]]",
    ],
)
def test_damaged_files(text: str, tmp_path: Path) -> None:
    """What is no profile, or not a whole one, is refused by its name."""
    file = tmp_path / "a.json"
    file.write_text(text)
    if text == "[[1,2,3,4],[1,2,3,4]]":  # two raw events are no damaged timeline
        assert read_profile(file)[0].allocated_peak == 6
        return
    with pytest.raises(BadInput, match=r"a\.json"):
        read_profile(file)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compressed file only so much is unpacked as is read at most."""
    monkeypatch.setattr(reader, "MOST_BYTES", 1 << 16)
    file = tmp_path / "a.json.gz"
    file.write_bytes(gzip.compress(b"[" + b" " * (1 << 22)))
    with pytest.raises(BadInput, match="larger than"):
        read_profile(file)


def test_the_picture_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """The HTML form holds no numbers; the message names the forms that do."""
    file = tmp_path / "a.html"
    file.write_text('<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head></html>')
    with pytest.raises(BadInput, match=r"\.raw\.json\.gz"):
        read_profile(file)


@pytest.mark.parametrize("command", ["read", "snapshot"])
def test_the_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`read` and `snapshot` take a profile by its content."""
    file = tmp_path / "a.json"
    file.write_text(GPU_TRACE)
    assert run([command, str(file), "--json"]) == 0
    assert "512" in capsys.readouterr().out
