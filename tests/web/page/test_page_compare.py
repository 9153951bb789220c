"""Two jobs side by side: which settings differ, which rows, and that the rows explain the whole difference."""

from __future__ import annotations

import shared_jobs as jobs
from visitor import Visitor, ask

CELLS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
CHANGED = {**jobs.SMALL, "name": "small (changed)", "train": {**jobs.SMALL["train"], "micro_batch": 4, "optimizer": {"name": "sgd"}}}


def _signed(count: int) -> str:
    """A difference as the page writes it, in GiB; it is compared with sums of the API's bytes."""
    from shown import size

    return f"{'−' if count < 0 else '+'}{size(abs(count), 2)}"


def test_from_one_job_to_two_and_back(visitor: Visitor) -> None:
    """`Compare` keeps the job as A and edits a copy as B; the choice of A or B is what the form shows; ending it goes on with the chosen one."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_role("button", name="Compare").click()
    visitor.settle()
    assert visitor.state["jobs"] == [jobs.SMALL, {**jobs.SMALL, "name": "small (changed)"}]
    visitor.page.get_by_text("The two jobs are the same").wait_for()
    assert visitor.page.get_by_role("button", name="Compare").is_disabled()
    visitor.field("Micro-batch, exact value").fill("4")
    visitor.field("Micro-batch, exact value").press("Enter")
    visitor.settle()
    assert visitor.state["jobs"][0] == jobs.SMALL
    visitor.page.get_by_text("A: small", exact=True).click()
    visitor.page.wait_for_function("() => document.querySelector('.knob input[type=number]').value === '1'")
    visitor.settle()
    visitor.page.get_by_text("B: small (changed)", exact=True).click()
    visitor.settle()
    visitor.page.get_by_role("button", name="End comparison").click()
    visitor.settle()
    assert visitor.state["jobs"] == [{**jobs.SMALL, "name": "small (changed)", "train": {**jobs.SMALL["train"], "micro_batch": 4}}]
    visitor.page.go_back()
    visitor.page.locator(".comparison").wait_for()


def test_what_differs_adds_up(visitor: Visitor) -> None:
    """Both verdicts, the settings that differ and the rows that differ are those of /api/compare, and the rows add up to the difference of the peaks."""
    visitor.open(jobs.SMALL, CHANGED, active=1)
    visitor.settle()
    found = ask(visitor.base, "compare", {"job": jobs.SMALL, "against": CHANGED})
    settings = [[one["key"], one["here"], one["there"]] for one in found["settings"] if one["key"] != "name"]
    table = visitor.page.get_by_role("table", name="Settings that differ")
    assert table.locator("tbody tr").evaluate_all(CELLS) == [[key, *("–" if value is None else f"{value}" for value in both)] for key, *both in settings]
    assert {key for key, *_ in settings} >= {"train.micro_batch"}
    rows = visitor.page.locator(".differences tbody tr").evaluate_all(CELLS)
    changes = [row["there"] - row["here"] for row in found["differences"]]
    assert [row[-1] for row in rows] == [_signed(change) for change in changes]
    total = found["against"]["allocated"] - found["rank"]["allocated"]
    assert sum(changes) == total
    assert visitor.page.locator(".differences tfoot td").last.inner_text() == _signed(total)
    assert visitor.page.locator(".verdict").count() == 2


def test_one_of_two_is_refused(visitor: Visitor) -> None:
    """Where B has a fault, its side says so, A keeps its verdict, and mending B brings the comparison back."""
    visitor.open(jobs.SMALL, jobs.REFUSED, active=1)
    visitor.page.get_by_role("alert").get_by_text("train.precision").wait_for()
    assert visitor.page.locator(".verdict").first.locator(".word").inner_text() == "✓ Fits"
    visitor.choose("Precision", "bf16-mixed")
    visitor.settle()
    visitor.page.locator(".differences").wait_for()


def test_another_example_replaces_the_active_side(visitor: Visitor) -> None:
    """A training job and a server can be compared too: the form turns with the side."""
    visitor.open(jobs.SMALL, CHANGED, active=1)
    visitor.settle()
    visitor.page.get_by_role("button", name="Serve with vLLM").click()
    visitor.settle()
    assert visitor.field("Engine").input_value() == "vllm"
    visitor.page.get_by_text("A: small", exact=True).click()
    visitor.settle()
    assert visitor.field("Framework").input_value() == "trl"
