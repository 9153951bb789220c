"""A row of the ledger opens to its formula, the numbers put in, what the letters are, and the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import shared_jobs as jobs
import shown
from visitor import Visitor, ask

from everybyte.report.explain import BASIS_MEANING
from everybyte.report.words import spoken

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENTRY = "activations/layers.0-31/input"
"""Two rows are called so: one at the peak, one in the other phases, with another formula."""


def _open(visitor: Visitor) -> None:
    visitor.open(jobs.LORA)
    visitor.settle()
    visitor.page.wait_for_function("() => globalThis.katex !== undefined")


def _explained(visitor: Visitor) -> dict[str, Any]:
    """The row at the peak, as /api/explain has it."""
    rows = [row for row in ask(visitor.base, "explain", {"job": jobs.LORA, "entry": ENTRY})["rows"] if row["id"] == ENTRY]
    assert len({row["formula"] for row in rows}) == 2
    return next(row for row in rows if "loss" in row["phases"])


def test_row_explains_itself(visitor: Visitor) -> None:
    """An opened row shows both formulas set by KaTeX, every letter with its value, the bytes, the phases, how it is known, and the source of /api/explain."""
    _open(visitor)
    row = _explained(visitor)
    button = visitor.row(ENTRY)
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    detail = visitor.page.locator(".explanation")
    detail.wait_for()
    assert button.get_attribute("aria-expanded") == "true"
    detail.locator(".formula .katex").nth(1).wait_for()
    assert detail.locator("annotation").all_text_contents() == [row["tex"], f"= {row['tex_numbers']}"]
    assert detail.locator(".letters span").all_inner_texts() == [f"{letter} = {value:,}" for letter, value in row["symbols"].items()]
    assert f"{row['bytes']:,} = {shown.gib(row['bytes'], 3)} GiB" in detail.inner_text()
    for name, text in (("alive in", ", ".join(map(spoken, row["phases"]))), ("basis", BASIS_MEANING[row["basis"]]), ("source", row["source"])):
        assert detail.locator(f"dt:text-is('{name}') + dd").inner_text() == text
    button.click()
    assert not detail.is_visible()


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_row_opens_by_key(visitor: Visitor, key: str) -> None:
    """A row opens and closes by Enter and by the space bar, and keeps the focus."""
    _open(visitor)
    visitor.row(ENTRY).focus()
    visitor.page.keyboard.press(key)
    visitor.page.locator(".explanation").wait_for()
    assert visitor.page.evaluate("document.activeElement.textContent") == ENTRY
    visitor.page.keyboard.press(key)
    assert not visitor.page.locator(".explanation").is_visible()


def test_without_katex_the_text_stays(visitor: Visitor) -> None:
    """Where KaTeX cannot be loaded, formulas are plain text, and nothing else is missing."""
    visitor.page.route("**/katex.min.js", lambda route: route.abort())
    visitor.open(jobs.LORA)
    visitor.settle()
    row = _explained(visitor)
    visitor.row(ENTRY).click()
    detail = visitor.page.locator(".explanation")
    detail.wait_for()
    detail.locator(".formula").nth(1).wait_for()
    assert detail.locator(".formula").all_inner_texts() == [row["formula"], f"= {row['numbers']}"]
    assert row["source"] in detail.inner_text()


def test_without_the_server_the_text_stays(visitor: Visitor) -> None:
    """Where the server does not explain, a row shows what the answer already holds: formula, letters, source."""
    _open(visitor)
    visitor.page.route("**/api/explain", lambda route: route.abort())
    visitor.row(ENTRY).click()
    detail = visitor.page.locator(".explanation")
    detail.wait_for()
    assert detail.locator(".formula").first.inner_text() != ""
    assert detail.locator("dt:text-is('source')").count() == 1


def test_every_formula_can_be_set(visitor: Visitor) -> None:
    """KaTeX takes every formula of whole ledgers, of training and of serving, with letters and with numbers, without a fault."""
    _open(visitor)
    for job in (jobs.LORA, jobs.VLLM, jobs.GGUF, jobs.MEGATRON):
        rows = ask(visitor.base, "explain", {"job": job})["rows"]
        texts = [text for row in rows for text in (row["tex"], row["tex_numbers"])]
        assert len(texts) >= 8
        assert _refused(visitor.page, texts) == []
    assert _refused(visitor.page, [r"\frac{1"]) == [r"\frac{1"], "what is wrong is told"


def _refused(page: Page, texts: list[str]) -> list[str]:
    return list(
        page.evaluate(
            """texts => texts.filter(text => {
              try { globalThis.katex.renderToString(text, { throwOnError: true, displayMode: true, strict: "error" }); return false; } catch { return true; }
            })""",
            texts,
        )
    )


def test_rows_beside_the_peak(visitor: Visitor) -> None:
    """Rows that do not live at the peak are one click away, and are all the others of the ledger."""
    _open(visitor)
    rank = shown.worst(visitor.settle())
    others = [entry["id"] for entry in rank["ledger"] if rank["peak_phase"] not in entry["phases"] and entry["bytes"]]
    visitor.page.get_by_text(f"{len(others)} rows that are not in memory at the peak").click()
    more = visitor.page.locator(".fold .ledger").get_by_role("button", name="more rows")
    while more.count():
        more.first.click()
    assert sorted(visitor.page.locator(".fold .ledger button.row:visible").all_inner_texts()) == sorted(others)


def test_an_opened_row_stays_open(visitor: Visitor) -> None:
    """A row that is open when a slider moves is open afterwards, with the new numbers: that is how one sees what a knob does to it."""
    _open(visitor)
    visitor.row(ENTRY).click()
    visitor.page.locator(".explanation").wait_for()
    visitor.field("Sequence length, exact value").fill("1024")
    visitor.field("Sequence length, exact value").press("Enter")
    rank = shown.worst(visitor.settle())
    row = next(entry for entry in rank["ledger"] if entry["id"] == ENTRY and rank["peak_phase"] in entry["phases"])
    assert row["bytes"] < _explained(visitor)["bytes"]
    visitor.page.locator(".explanation", has_text=f"{row['bytes']:,} = ").wait_for()
    assert visitor.row(ENTRY).get_attribute("aria-expanded") == "true"
