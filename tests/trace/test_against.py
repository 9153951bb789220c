"""What measure.py says of a job's trace beside what happened: courses that are alike agree wholly, and what differs is found where it is."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

from against import PROGRAM, Found, against_cpu, details, row, table, times, told
from align import align, only_one
from course import BUILDING, Request, StepTimeline, course_of
from jobs import JOBS, MARK_BYTES, tiny

from everybyte.basics.units import round_up
from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.results.snapshot import snapshot
from everybyte.trace.run import run

KiB, MiB = 2**10, 2**20
GPU = "NVIDIA H200"
MARK = [Request("mark", MARK_BYTES), Request("mark", 0)]
WEIGHT, X, Y, Z = (Request(name, size * KiB, name) for name, size in (("weight", 64), ("x", 8), ("y", 16), ("z", 8)))
STEP = [X, Y, Request("x", 0), Z, Request("y", 0), Request("z", 0)]
PROGRAM_OF_TWO = [WEIGHT, *MARK, *STEP, *MARK, *MARK, *STEP, *MARK, Request("weight", 0)]
TWIN = tiny(next(m for m in JOBS if m.name == "full-amp")).job


def test_marks_part_a_course() -> None:
    """The building ends at the first mark, each run at the next one's begin; the marks are no events, and the program's end is behind the last."""
    course = course_of(PROGRAM_OF_TWO)
    assert course.parts == {BUILDING: (0, 1), "run 1": (1, 7), "run 2": (7, 13)}
    assert course.sizes("run 2") == [8 * KiB, 16 * KiB, -8 * KiB, 8 * KiB, -16 * KiB, -8 * KiB]
    assert course.peak("run 2") == (88 * KiB, 9)


def test_a_course_agrees_with_itself() -> None:
    """All events of all parts agree, and nothing is told of a peak."""
    found = Found("same", course_of(PROGRAM_OF_TWO), course_of(PROGRAM_OF_TWO))
    assert [part.share for part in found.parts] == [1, 1, 1]
    assert "100.00%" in row(found)
    assert "+0.00%" in row(found)
    assert list(details(found))[-1].endswith("both hold the same")


def test_frees_in_a_row_have_no_order() -> None:
    """Two courses that free the same in a row, in another order, agree; where something is made in between, they do not."""
    taken = [X, Y, WEIGHT]
    one = course_of([*taken, Request("x", 0), Request("weight", 0)])
    other = course_of([*taken, Request("weight", 0), Request("x", 0)])
    between = course_of([*taken, Request("x", 0), Z, Request("weight", 0)])
    assert align(one, other, BUILDING).share == 1
    assert align(one, between, BUILDING).agreed == 4


def changed(at: int, *requests: Request) -> StepTimeline:
    """The second step with other requests from a position on."""
    step = [*STEP[:at], *requests, *STEP[at + len(requests) :]]
    return course_of([WEIGHT, *MARK, *STEP, *MARK, *MARK, *step, *MARK])


def test_a_changed_size_is_found_in_its_place() -> None:
    """A storage of another size is named in the run where it differs, by what made it on each side, and so is the difference of the peak."""
    found = Found("changed", course_of(PROGRAM_OF_TWO), changed(1, Request("y", 24 * KiB, "larger y")))
    building, first, second = found.parts
    assert (building.differences, first.differences) == ([], [])
    assert [(list(d.ours), list(d.theirs)) for d in second.differences] == [([8], [8]), ([11], [11])]
    assert only_one(found.real, found.traced, "run 2") == [(24 * KiB, -1, "larger y"), (16 * KiB, 1, "y")]
    assert found.peaks == (88 * KiB, 96 * KiB)
    told_places = "\n".join(details(found))
    assert "traced          +24,576 larger y" in told_places
    assert "happened        +16,384 y" in told_places


def test_an_event_that_one_side_lacks_is_found_in_its_place() -> None:
    """Where a storage and its end are missing, those two events alone are told; all others agree."""
    without = [one for one in STEP if one.key != "y"]
    found = Found("less", course_of(PROGRAM_OF_TWO), course_of([WEIGHT, *MARK, *STEP, *MARK, *MARK, *without, *MARK]))
    *before, last = found.parts
    assert [part.share for part in before] == [1, 1]
    assert (last.events, last.agreed) == ((6, 4), 4)
    assert [found.real.made[found.real.events[position][0]] for d in last.differences for position in d.ours] == ["y", "y"]
    assert not [position for d in last.differences for position in d.theirs]


@pytest.fixture(scope="module")
def twin(compiler: None) -> Traced:
    """The loop that measures a job, small, on a fake H200."""
    with told(TWIN, "cuda"):
        return run(TraceRequest(target=PROGRAM, gpu=GPU, steps=times(TWIN)))


def saved_in(folder: Path, content: dict[str, Any]) -> Path:
    """A folder as measure.py leaves it."""
    (folder / "twin.pickle").write_bytes(pickle.dumps(content))
    result = {"name": "twin", "job": TWIN, "environment": {"gpu": GPU, "alloc_conf": "", "versions": {"torch": "0.1"}}}
    (folder / "results.jsonl").write_text(json.dumps(result) + "\n", encoding="utf-8")
    return folder


def test_a_trace_agrees_with_its_own_snapshot(twin: Traced, tmp_path: Path) -> None:
    """A snapshot that a trace has written holds what the trace of the same job makes, run by run; it has no cuBLAS workspaces, and these are what is told.
    Its segments are those of the simulator. Other versions are named."""
    head, line, *rest = table(saved_in(tmp_path, pickle.loads(snapshot(twin))), "", verbose=True)
    assert head.startswith("job")
    assert line.split()[0] == "twin"
    assert "100.00%" in line
    assert re.search(r" (\d+) of \1$", line)
    for part in ("building", "run 2", "run 3"):
        assert any(re.match(rf"  {part}: (\d+) events, \1 traced, 100.00% agree", text) for text in rest)
    traced_alone = [text for text in rest if text.split()[1] == "traced"]
    assert all(re.search("cuBLAS' workspace of (forward|backward)$", text) for text in traced_alone)
    assert len(traced_alone) == 4
    assert not [text for text in rest if text.split()[1] == "happened"]
    assert rest[-1].startswith("measured with torch 0.1, traced with ")


def test_what_a_snapshot_has_otherwise_is_told_with_both_places(twin: Traced, tmp_path: Path) -> None:
    """Where one allocation of the last run is larger than in the trace, the table tells of it and of its end: by the snapshot's frames, and by operation,
    module and line of the trace."""
    content = pickle.loads(snapshot(twin))
    trace = content["device_traces"][0]
    marks = [index for index, entry in enumerate(trace) if entry["action"] == "alloc" and entry["size"] == MARK_BYTES]
    run_3 = range(marks[-2], marks[-1])
    taken = max((index for index in run_3 if trace[index]["action"] == "alloc"), key=lambda index: trace[index]["size"])
    before, operation = trace[taken]["size"], trace[taken]["frames"][0]["name"]
    trace[taken]["size"] += MiB
    lines = list(table(saved_in(tmp_path, content), "twin", verbose=True))
    last = next(index for index, line in enumerate(lines) if line.startswith("  run 3"))
    end = next(index for index, line in enumerate(lines) if line.startswith("  at the peak"))
    places = [line.split(maxsplit=3) for line in lines[last + 1 : end]]
    assert sorted({word for _, word, *_ in places}) == ["happened", "traced"]
    sizes = {(word, abs(int(size.replace(",", "")))) for _, word, size, _ in places}
    assert sizes == {("happened", round_up(before + MiB, 512)), ("traced", round_up(before, 512))}
    assert all(text.startswith(f"{operation} (operation:0) < ") for _, word, _, text in places if word == "happened")
    assert all(re.match(r"aten\.\S+ in .+ at gpu/loop\.py:\d+$", text) for _, word, _, text in places if word == "traced")


@pytest.mark.parametrize("name", ["full-amp", "recompute-reentrant", "lora-bf16", "moe-bf16", "generate-windows"])
def test_a_job_on_the_cpu_is_what_its_trace_says(name: str) -> None:
    """Every event of a small job that torch's profiler sees between operations is in its trace, and the other way round, in every part."""
    found = against_cpu(name, tiny(next(m for m in JOBS if m.name == name)).job)
    assert all(part.share == 1 for part in found.parts), "\n".join(details(found))
    assert found.peaks[0] == found.peaks[1] > 500_000
