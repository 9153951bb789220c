"""Charts: the specification holds the ledger's sums, and each ending is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_answers import answer

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.ledger.answer import Answer
from everybyte.report import chart
from everybyte.report.chart import chart_spec, write_chart


def bars(made: Answer) -> list[dict]:
    return chart_spec(made)["layer"][0]["data"]["values"]


def test_bars_add_up_to_the_phases() -> None:
    """Of each phase the parts inside the allocator add up to what the phase allocates."""
    made = answer()
    for phase in made.worst.phases:
        parts = [row["bytes"] for row in bars(made) if row["phase"] == phase.name.replace("_", " ") and row["category"] != "context"]
        assert sum(parts) == phase.allocated


def test_capacity_is_a_line_where_there_is_one() -> None:
    """With a GPU a line marks what it holds; without one there is none."""
    assert len(chart_spec(answer())["layer"]) == 2
    assert len(chart_spec(answer(capacity=None))["layer"]) == 1


@pytest.mark.parametrize(("ending", "beginning"), [(".svg", b"<svg"), (".png", b"\x89PNG"), (".html", b"<!DOCTYPE html>")])
def test_each_ending_is_drawn(ending: str, beginning: bytes, tmp_path: Path) -> None:
    """The file is of the kind that its name says."""
    pytest.importorskip("vl_convert")
    path = tmp_path / f"chart{ending}"
    write_chart(answer(), str(path))
    assert path.read_bytes().lstrip().startswith(beginning)


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ending, a folder that is not there and a missing library are each one clear refusal."""
    with pytest.raises(BadInput, match=r"\.svg, \.png, \.html"):
        write_chart(answer(), "chart.pdf")
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(MissingExtra, match=r"everybyte\[charts\]"):
        write_chart(answer(), str(tmp_path / "chart.svg"))
    monkeypatch.setattr(chart, "_draw", lambda *_: b"")
    with pytest.raises(BadInput, match="cannot be written"):
        write_chart(answer(), str(tmp_path / "missing" / "chart.svg"))
