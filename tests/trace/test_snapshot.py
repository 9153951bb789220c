"""A trace as a file: torch's own memory viewer opens it, and the page, the JSON and the picture hold what the trace holds."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from torch.cuda import _memory_viz

from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import BadInput
from everybyte.report.trace_file import write_trace
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.results.answer import answer_of, script

SETTINGS = [read_alloc_conf(text) for text in ("", "expandable_segments:True")]


def written(traced: Traced, path: Path, settings: object = SETTINGS[0]) -> bytes:
    """The file that `--export` writes."""
    write_trace(traced, answer_of(traced, TraceRequest(target="toy", gpu="rtx-4090")), str(path), settings)  # type: ignore[arg-type]
    return path.read_bytes()


@pytest.mark.parametrize("settings", SETTINGS, ids=["native", "expandable"])
def test_torchs_viewer_opens_the_snapshot(traced: Traced, tmp_path: Path, settings: object) -> None:
    """torch.cuda._memory_viz summarises, lists and plots the snapshot, whose pickle is of a protocol that the viewer in the browser reads."""
    content = written(traced, tmp_path / "trace.pickle", settings)
    assert content[:2] == b"\x80\x04"
    snapshot = pickle.loads(content)
    assert "allocated" in _memory_viz.segsum(snapshot)
    assert "entries" in _memory_viz.trace(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in plot(snapshot)


def test_the_snapshot_holds_what_lives_at_the_end(traced: Traced, tmp_path: Path) -> None:
    """The blocks in use add up to what lives when the program is over, and each names the operation that made it."""
    snapshot = pickle.loads(written(traced, tmp_path / "trace.pickle"))
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]
    last = len(script(traced))
    assert sum(block["requested_size"] for block in blocks) == sum(traced_sizes(traced, last).values())
    assert all(block["frames"][0]["name"] for block in blocks)


def traced_sizes(traced: Traced, position: int) -> dict[int, int]:
    """Bytes of each storage that lives after so many events, as they were asked for."""
    alive: dict[int, int] = {}
    for number, nbytes in traced.events[:position]:
        if nbytes > 0:
            alive[number] = nbytes
        else:
            del alive[number]
    return alive


def test_the_json_holds_the_whole_trace(traced: Traced, tmp_path: Path) -> None:
    """Every event and birth can be read back from the JSON, and its events lead to the same peak."""
    content = json.loads(written(traced, tmp_path / "trace.json"))
    assert [tuple(event) for event in content["events"]] == list(traced.events)
    assert [birth["id"] for birth in content["births"]] == [birth.id for birth in traced.births]
    assert content["marks"]["step 1"] < content["marks"]["end"]


def test_the_page_opens_offline(traced: Traced, tmp_path: Path) -> None:
    """The page loads nothing, and shows the course, the verdict, and the lines of the program that made the largest storages."""
    page = written(traced, tmp_path / "trace.html").decode()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)|@import|url\((?!["']?(#|data:))""", page)
    assert "Event by event: the peak is" in page
    assert "toy.py:" in page
    assert len(page) < 2_500_000


def test_another_ending_is_refused(traced: Traced, tmp_path: Path) -> None:
    """An ending that nothing writes is refused with those that something does."""
    with pytest.raises(BadInput, match=re.escape(".html, .json, .pickle, .png, .svg")):
        written(traced, tmp_path / "trace.txt")


def test_the_course_draws_the_peak(traced: Traced) -> None:
    """However few instants are drawn, the highest one of the trace is among them."""
    timeline = Timeline(traced)
    highest = max(sum(instant.living.values()) for instant in timeline.instants(len(traced.events)))
    for most in (2, 7, 50):
        instants = timeline.instants(most)
        assert len(instants) <= most + 1
        assert max(sum(instant.living.values()) for instant in instants) == highest
