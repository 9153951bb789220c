"""Answers and ledgers in a notebook."""

from __future__ import annotations

import sys

import pytest
from made_answers import answer, rank

from everybyte.ledger.ledger import Ledger
from everybyte.report.notebook import VEGA_LITE, mimebundle

HOSTILE = "<script>alert(1)</script>"


def test_an_answer_shows_its_verdict_and_pictures() -> None:
    """Plain text has the verdict in a line, HTML also the pictures, and the specification holds card and phases."""
    pytest.importorskip("vl_convert")
    forms = answer()._repr_mimebundle_(include=None, exclude=None)
    assert forms["text/plain"] == "Llama-3.1-8B LoRA: needs 19.5 GiB of 23.6 GiB: fits, 4.1 GiB left"
    assert forms["text/html"].count("<svg") == 2
    assert forms["text/html"] == answer()._repr_html_()
    assert len(forms[VEGA_LITE]["vconcat"]) == 2


def test_a_ledger_shows_its_phases() -> None:
    """A ledger has no card; it shows its phases, and an empty one says so."""
    pytest.importorskip("vl_convert")
    forms = rank().book()._repr_mimebundle_()
    assert forms["text/plain"] == "15 rows; 18.4 GiB allocated at the peak, in backward"
    assert forms["text/html"].count("<svg") == 1
    assert "empty" in Ledger(())._repr_mimebundle_()["text/html"]


def test_a_table_where_nothing_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library that draws there is a table of the parts, and the specification all the same."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for thing in (answer(), rank().book()):
        forms = thing._repr_mimebundle_()
        assert "<svg" not in forms["text/html"]
        assert "optimizer state" in forms["text/html"]
        assert forms[VEGA_LITE]["$schema"].endswith("v5.json")


def test_hostile_names_are_text() -> None:
    """A name or a warning that looks like HTML is shown, not run."""
    html = answer(name=HOSTILE, warnings=(HOSTILE,))._repr_html_() or ""
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 2


def test_other_things_have_no_form() -> None:
    """The function is for answers and ledgers."""
    with pytest.raises(TypeError, match="int has no form"):
        mimebundle(3)
