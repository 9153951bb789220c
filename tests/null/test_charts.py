"""Pictures: the drawn data are the answer's figures, every picture is drawn in both themes, and no picture asks for anything from anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from made_answers import answer, rank

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.estimator import estimate
from everybyte.job import Job, job_to_dict, load
from everybyte.ledger.answer import Answer
from everybyte.ledger.by_category import by_category, living
from everybyte.measure.accuracy import Comparison
from everybyte.report import charts
from everybyte.report.charts import write
from everybyte.report.charts.places import HEIGHT, LINE, boxes
from everybyte.report.charts.ranks import MOST, shown_ranks
from everybyte.report.charts.write import write_chart
from everybyte.report.sums import needed, rank_needs

EXAMPLES = {path.stem: path for path in sorted(Path(__file__).parents[2].glob("examples/**/*.yaml")) if path.parent.name != "configs"}
SOME = ("llama-3.1-8b-lora-24gb", "llama-3.1-405b-megatron", "llama-3.1-8b-vllm-l40s", "llama-2-13b-zero2-8xa100-40")
THEMES: tuple[charts.Theme, ...] = ("light", "dark")
PICTURES = ("card", "phases", "ranks", "places")


@cache
def job_of(name: str) -> Job:
    return load(str(EXAMPLES[name])).job()


@cache
def answer_of(name: str) -> Answer:
    return estimate(job_of(name))


def values(spec: Any) -> list[dict[str, Any]]:
    """All data of a picture that are segments: rows with bytes and a beginning."""
    if isinstance(spec, dict):
        found = [row for row in spec.get("data", {}).get("values", []) if "bytes" in row and "from" in row]
        return found + [row for key, part in spec.items() if key != "data" for row in values(part)]
    return [row for part in spec for row in values(part)] if isinstance(spec, list) else []


@pytest.mark.parametrize("name", EXAMPLES)
def test_card_adds_up_to_what_is_needed(name: str) -> None:
    """The segments of the bar add up to the bytes of the verdict and lie one behind the other."""
    made = answer_of(name)
    rows = values(charts.card(made))
    assert sum(row["bytes"] for row in rows) == needed(made)[1] == made.figures["peak.device"]
    assert [row["from"] for row in rows[1:]] == [row["to"] for row in rows[:-1]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_phases_add_up_to_their_totals(name: str) -> None:
    """Of each phase the parts add up to what the phase allocates."""
    worst = answer_of(name).worst
    rows = values(charts.phases(answer_of(name)))
    for phase in worst.phases:
        here = [row for row in rows if row["phase"] == phase.name.replace("_", " ")]
        assert sum(row["bytes"] for row in here) == phase.allocated


@pytest.mark.parametrize("name", EXAMPLES)
def test_places_add_up_to_the_peak(name: str) -> None:
    """Each of the three levels adds up to what is allocated at the peak, and each box lies within one of the level before."""
    worst = answer_of(name).worst
    found = boxes(worst)
    for level in (0, 1, 2):
        assert sum(box.bytes for box in found if box.level == level) == worst.figures["peak.allocated"]
    for box in (box for box in found if box.level):
        around = [b for b in found if b.path == box.path[:-1] and b.category == box.category]
        assert len(around) == 1
        assert around[0].start <= box.start
        assert box.start + box.bytes <= around[0].start + around[0].bytes


@pytest.mark.parametrize("name", EXAMPLES)
def test_ranks_add_up_to_what_each_needs(name: str) -> None:
    """The segments of each kind of rank add up to its peak on the device."""
    made = answer_of(name)
    rows = values(charts.ranks(made))
    for kind in made.ranks:
        assert sum(row["bytes"] for row in rows if row["rank"].startswith(f"{kind.label} ×")) == kind.figures["peak.device"]


def test_labels_of_places_stand_only_where_they_fit() -> None:
    """A box lower than a line of text has no label, every labelled one has room for its words."""
    data = charts.places(answer_of("llama-3.1-405b-megatron"))["layer"][0]["data"]["values"]
    whole = max(row["to"] for row in data)
    assert [row for row in data if row["label"] and HEIGHT * (row["to"] - row["from"]) / whole < LINE - 0.01] == []
    assert all(len(row["label"]) * 5.5 < row["right"] - row["left"] for row in data)
    assert {row["label"] == "" for row in data} == {True, False}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("name", SOME)
def test_every_picture_is_drawn(name: str, picture: str, theme: charts.Theme) -> None:
    """Each picture becomes SVG without an error, at most 800 points wide, in the colours of its theme, with no address in it."""
    pytest.importorskip("vl_convert")
    spec = getattr(charts, picture)(answer_of(name), theme=theme)
    drawn = charts.draw(spec, ".svg").decode()
    assert float(drawn.split('width="')[1].split('"')[0]) <= 800
    assert spec["background"] in drawn
    assert "NaN" not in drawn
    assert "http" not in json.dumps(spec).replace(spec["$schema"], "")
    assert spec["description"].endswith(".")
    assert "GiB" in spec["description"]


def test_sizes_without_a_capacity() -> None:
    """Without a GPU there is no line, no free room and no verdict."""
    pytest.importorskip("vl_convert")
    for picture in PICTURES:
        drawn = charts.draw(getattr(charts, picture)(answer(capacity=None)), ".svg").decode()
        assert "capacity" not in drawn
        assert "fits" not in drawn


def test_overrun_and_free_room_are_drawn() -> None:
    """What runs over is framed from the capacity to what is needed; what is free has its size."""
    over = charts.card(answer(capacity=15_800_000_000))
    assert "over capacity" in json.dumps(over)
    assert "free" not in json.dumps(over)
    assert "5.4 GiB free" in json.dumps(charts.card(answer(capacity=answer().figures["peak.device"] + 5_800_000_000)))


def test_descriptions() -> None:
    """The sentences that a screen reader says hold the verdict and the numbers."""
    assert charts.card(answer())["description"] == (
        "Memory at the peak, in backward: needs 19.5 GiB of 23.6 GiB: fits, 4.1 GiB left. From left to right: parameter 15.0 GiB, gradient 80 MiB, "
        "optimizer state 0.2 GiB, activation 2.1 GiB, temporary 1.0 GiB, workspace 8 MiB, reserved, unused 0.7 GiB, outside the allocator 0.5 GiB."
    )
    assert charts.ranks(answer(ranks=(rank("pp0", 4), rank("pp1", 4, 1, 2**31))))["description"] == (
        "Peak memory of each rank type against 23.6 GiB of the GPU: pp0 19.5 GiB, pp1 21.5 GiB."
    )


def test_many_kinds_of_rank_are_cut_to_the_largest() -> None:
    """Beyond a number of kinds the ones that need most are drawn, in the order of the answer, and the picture says how many there are."""
    made = answer(ranks=tuple(rank(f"pp{i}", 1, i, extra=(i * 37 % 100) * 2**20) for i in range(100)))
    shown = shown_ranks(made)
    assert len(shown) == MOST
    assert [r.stage for r in shown] == sorted(r.stage for r in shown)
    assert min(rank_needs(made, r) for r in shown) >= max(rank_needs(made, r) for r in made.ranks if r not in shown)
    assert "of 100 rank types" in charts.ranks(made)["title"]["subtitle"]


def test_a_given_figure_is_what_the_card_shows() -> None:
    """Where peak.device is given, the bar adds up to it: the rest beyond the ledger is reserved and not in use."""
    given = estimate({**job_to_dict(job_of("llama-3.1-8b-lora-24gb")), "given": {"peak.device": 23 * 2**30}})
    assert sum(row["bytes"] for row in values(charts.card(given))) == 23 * 2**30
    assert by_category(given.worst, 0) == living(given.worst, given.worst.peak_phase)


def comparison(group: str, figure: str, measured: float, predicted: int | None) -> Comparison:
    error = None if predicted is None else predicted / measured - 1
    return Comparison(id=f"{group}-{measured}", group=group, figure=figure, measured=measured, predicted=predicted, error=error)


RUNS = [comparison(f"kind{i % 11}-x", "peak.allocated", (i + 1) * 2**28, (i + 1) * 2**28 + i * 2**20) for i in range(60)]
OTHER_RUNS = [
    comparison("kind1-x", "kv.tokens", 5000.0, 5000),
    comparison("kind1-x", "weights", 2.0**33, None),
    comparison("kind2-x", "weights", 2.0**33, 2**33),
]


def test_truth_shows_sizes_that_were_answered() -> None:
    """Counts and unanswered figures are no points; one figure can be chosen; small kinds are one."""
    pytest.importorskip("vl_convert")
    spec = charts.truth([*RUNS, *OTHER_RUNS])
    points = spec["layer"][-1]["data"]["values"]
    assert len(points) == len(RUNS) + 1
    assert {row["figure"] for row in charts.truth([*RUNS, *OTHER_RUNS], figure="weights")["layer"][-1]["data"]["values"]} == {"weights"}
    assert len({row["kind"] for row in points}) == 8
    assert charts.draw(spec, ".svg").startswith(b"<svg")
    assert charts.draw(charts.truth([]), ".svg").startswith(b"<svg")


@pytest.mark.parametrize(("ending", "beginning"), [(".svg", b"<svg"), (".PNG", b"\x89PNG"), (".html", b"<!DOCTYPE html>")])
def test_each_ending_is_written(ending: str, beginning: bytes, tmp_path: Path) -> None:
    """The file is of the kind that its name says."""
    pytest.importorskip("vl_convert")
    path = tmp_path / f"chart{ending}"
    write_chart(answer_of(SOME[0]), job_of(SOME[0]), str(path))
    assert path.read_bytes().lstrip().startswith(beginning)


@pytest.mark.parametrize("name", ["card", "phases", "ranks", "places", "knob:micro_batch"])
def test_one_picture_is_written(name: str, tmp_path: Path) -> None:
    """--picture draws the one that is named."""
    pytest.importorskip("vl_convert")
    path = tmp_path / "one.svg"
    write_chart(answer_of(SOME[0]), job_of(SOME[0]), str(path), name)
    assert path.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("chart.pdf", None, r"\.svg, \.png, \.html"),
        ("x.svg", "crad", "did you mean card"),
        ("x.svg", "knob", "knob:micro_batch"),
        ("x.svg", "knob:micro_bach", "micro_batch"),
        ("x.html", "card", "has all of them"),
    ],
)
def test_what_cannot_be_asked_for(path: str, name: str | None, message: str) -> None:
    """Another ending, an unknown picture, a knob without or with an unknown setting: one clear message each."""
    with pytest.raises(BadInput, match=message):
        write_chart(answer_of(SOME[0]), job_of(SOME[0]), path, name)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not there and a missing library are each one clear refusal."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtra, match=r"everybyte\[charts\]"):
        write_chart(answer_of(SOME[0]), job_of(SOME[0]), str(tmp_path / "chart.svg"))
    monkeypatch.setattr(write, "draw", lambda *_: b"")
    with pytest.raises(BadInput, match="cannot be written"):
        write_chart(answer_of(SOME[0]), job_of(SOME[0]), str(tmp_path / "missing" / "chart.svg"))


def test_pictures_cost_an_estimate_nothing() -> None:
    """Neither `import everybyte` nor an estimate on the command line loads the pictures, the report or the library that draws."""
    script = (
        "import sys, everybyte; first = set(sys.modules)\n"
        "from everybyte.cli.app import run\n"
        f"code = run(['estimate', {str(EXAMPLES[SOME[0]])!r}])\n"
        "loaded = [m for m in sys.modules if m.startswith(('everybyte.report.charts', 'everybyte.report.html', 'everybyte.web', 'vl_convert', 'litestar'))]\n"
        "assert not loaded, loaded\n"
        "assert not [m for m in first if m.startswith(('everybyte.report', 'msgspec', 'rich', 'click'))], first\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
