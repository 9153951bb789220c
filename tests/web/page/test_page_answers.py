"""What the page says is what the API and the command line say: verdict, figures, rows, sums; for every kind of job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import shared_jobs as jobs
import shown
from click.testing import CliRunner
from visitor import Visitor, ask

from everybyte.cli.app import group
from everybyte.report.words import COUNTS, SPEEDS, category_label, speed_text

ANSWERED = {"lora": jobs.LORA, "vllm": jobs.VLLM, "gguf": jobs.GGUF, "megatron": jobs.MEGATRON, "too large": jobs.TOO_LARGE, "no card": jobs.NO_CARD}
FITS = {jobs.TOO_LARGE["name"]: False, jobs.NO_CARD["name"]: None}
SMALL_BYTES = 2**20


@pytest.mark.parametrize("job", ANSWERED.values(), ids=ANSWERED)
def test_page_says_what_the_command_line_says(visitor: Visitor, job: jobs.Job) -> None:
    """Verdict, figures with their ranges, rows at the peak, sums of categories and shares are those of `everybyte estimate --json`; all of them, each once."""
    printed = json.loads(CliRunner().invoke(group, ["estimate", "-", "--json"], input=json.dumps(job)).stdout)
    assert printed["fits"] is FITS.get(printed["name"], True)
    visitor.open(job)
    visitor.says(shown.word(printed), shown.sentence(printed))
    assert visitor.page.locator(".figures tbody tr").evaluate_all(TEXTS) == [_figure(printed, name) for name in printed["figures"]]
    assert _whole_ledger(visitor) == list(_ledger(shown.worst(printed)))


HEAD = "pp15 (head)"
TEXTS = "rows => rows.map(row => [...row.cells].map(cell => (cell.querySelector('code, button') ?? cell).textContent))"


def _whole_ledger(visitor: Visitor) -> list[list[str]]:
    """The cells of every row at the peak. Of a long category the smallest rows come at a click; until then one line holds their sum."""
    more = visitor.page.locator("section > .ledger").get_by_role("button", name=re.compile(r"^\d+ more rows$"))
    while more.count():
        more.first.click()
    return list(visitor.page.locator("section > .ledger tbody tr:not(.detail)").evaluate_all(TEXTS))


def _figure(answer: dict[str, Any], name: str) -> list[str]:
    value, ends = answer["figures"][name], answer["range"].get(name)
    if name in SPEEDS:
        return [name, speed_text(name, value), _between(ends, lambda end: speed_text(name, end))]
    if name in COUNTS:
        return [name, _number(value), _between(ends, _number)]
    if value < SMALL_BYTES:
        return [name, f"{value:,} B", ""]
    return [name, f"{shown.gib(value)} GiB", _between(ends, shown.gib)]


def _between(ends: list[float] | None, write: Callable[[float], str]) -> str:
    if not ends:
        return ""
    return "exact" if ends[0] == ends[1] else f"{write(ends[0])} – {write(ends[1])}"


def _number(n: float) -> str:
    return f"{n:,.0f}" if float(n).is_integer() else f"{n:,.2f}"


def _ledger(rank: dict[str, Any]) -> Any:
    """Categories, the largest first and what lies outside torch last; below each its rows, the largest first."""
    rows = [entry for entry in rank["ledger"] if rank["peak_phase"] in entry["phases"] and entry["bytes"]]
    peak = rank["figures"]["peak.allocated"]
    sums = {category: sum(row["bytes"] for row in rows if row["category"] == category) for category in dict.fromkeys(row["category"] for row in rows)}
    assert sum(amount for category, amount in sums.items() if category != "context") == peak
    for category, amount in sorted(sums.items(), key=lambda item: (item[0] == "context", -item[1])):
        yield [category_label(category), shown.size(amount, 2), _share(category, amount, peak)]
        for row in sorted((row for row in rows if row["category"] == category), key=lambda row: -row["bytes"]):
            yield [row["id"], shown.size(row["bytes"], 2), _share(category, row["bytes"], peak)]


def _share(category: str, amount: int, peak: int) -> str:
    if category == "context":
        return "–"
    share = 100 * amount / peak
    return "<1 %" if share < 0.5 else f"{share:.0f} %"


def test_rank_picker(visitor: Visitor) -> None:
    """Another kind of rank of a pipeline brings its own rows; the choice stands in the address and back returns to the rank that needs most."""
    visitor.open(jobs.MEGATRON)
    answer = visitor.settle()
    picker = visitor.page.get_by_label("Rank type", exact=True)
    assert picker.input_value() == shown.worst(answer)["label"] == "pp1"
    assert picker.locator("option").count() == len(answer["ranks"]) == 16
    picker.select_option(HEAD)
    visitor.row("head").wait_for()
    assert visitor.state["rank"] == HEAD
    head = next(rank for rank in answer["ranks"] if rank["label"] == HEAD)
    assert _whole_ledger(visitor) == list(_ledger(head))
    visitor.page.go_back()
    visitor.row("layers.7-14").wait_for()
    assert visitor.page.get_by_label("Rank type", exact=True).input_value() == "pp1"


def test_what_a_server_holds(visitor: Visitor) -> None:
    """A server's verdict says how many tokens its cache holds and how many sequences, and how fast it is."""
    visitor.open(jobs.VLLM)
    figures = visitor.settle()["figures"]
    hints = visitor.verdict.locator(".hint").all_inner_texts()
    line = next(hint for hint in hints if hint.startswith("KV cache"))
    assert f"{figures['kv.tokens']:,} tokens, max concurrency {figures['kv.concurrency']:,.1f}x at 32,768 tokens per sequence" in line
    assert hints[-1].startswith(f"Speed: {figures['decode.tokens_per_s']:,.0f} tokens/s per request, first token after ")


def test_a_refused_job_can_be_mended(visitor: Visitor) -> None:
    """A job with a fault shows the fault with its key path and no numbers; the form goes on working, and a right value brings the answer."""
    visitor.open(jobs.REFUSED)
    refused = ask(visitor.base, "estimate", jobs.REFUSED)["error"]
    alert = visitor.page.get_by_role("alert")
    alert.wait_for()
    assert refused["path"] == "train.precision"
    assert alert.locator(".text").inner_text() == f"{refused['path']} {refused['message']}"
    assert visitor.page.locator(".ledger, .figures, figure:visible").count() == 0
    visitor.choose("Precision", "bf16")
    assert visitor.settle()["fits"]
    assert alert.count() == 0


def test_serve_is_one_click_from_train(visitor: Visitor) -> None:
    """`Serve` keeps model and card and asks for a server; the fields, sliders and figures are then those of serving."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_text("Serve", exact=True).click()
    answer = visitor.settle()
    assert visitor.job["serve"] == {"engine": "vllm", "context": 8192}
    assert (visitor.job["model"], visitor.job["hardware"]) == (jobs.SMALL["model"], jobs.SMALL["hardware"])
    assert "kv.tokens" in answer["figures"]
    assert visitor.field("Engine").input_value() == "vllm"
    assert visitor.page.locator(".knob:visible label").all_inner_texts() == ["Context", "Concurrent sequences", "GPU memory utilization"]


def test_llama_cpp_with_another_format(visitor: Visitor) -> None:
    """Another GGUF format makes another job and another answer: Q8_0 of 30 B parameters does not fit into 24 GB, Q4_K_M does."""
    visitor.open(jobs.GGUF)
    assert visitor.settle()["fits"]
    visitor.choose("Weights", "q8_0")
    assert visitor.job["serve"]["weights"] == {"format": "q8_0"}
    assert not visitor.settle()["fits"]


def test_defaults_are_named_with_their_origin(visitor: Visitor) -> None:
    """A field that the job leaves open shows the value that holds and that it is a default; all settings say where each comes from."""
    visitor.open(jobs.SMALL)
    answer = visitor.settle()
    optimizer = answer["job"]["train"]["optimizer"]
    assert visitor.field("Optimizer").locator("option").first.inner_text() == f"{optimizer if isinstance(optimizer, str) else optimizer['name']} (default)"
    visitor.page.get_by_text("All settings", exact=True).click()
    visitor.page.get_by_label("Find a setting").fill("attention")
    origin = next(one["origin"] for one in answer["settings"] if one["key"] == "train.attention")
    setting = visitor.page.locator(".setting:visible", has=visitor.page.locator("label:text-is('attention')"))
    assert setting.locator(".origin").inner_text() == f"{answer['job']['train']['attention']}: {origin}"
    visitor.page.locator("summary", has_text="Settings and their origin").click()
    rows = visitor.page.locator(".origins tbody tr").evaluate_all(TEXTS)
    assert [row[0] for row in rows] == [one["key"] for one in answer["settings"]]
    assert [row[2] for row in rows] == [one["origin"] for one in answer["settings"]]


def test_every_setting_is_there(visitor: Visitor) -> None:
    """`All settings` lists every setting of training that /api/settings has, and one that is changed there changes the job."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_text("All settings", exact=True).click()
    labels = visitor.page.locator(".setting label")
    keys = [one["key"] for one in visitor.page.evaluate("fetch('/api/settings').then(answer => answer.json())")["settings"]]
    wanted = [key for key in keys if not key.startswith(("serve.", "model.")) and key not in ("model", "everybyte")]
    assert labels.count() == len(wanted) > 80
    visitor.page.get_by_label("Find a setting").fill("grad_accum")
    visitor.page.locator(".setting:visible input").first.fill("4")
    visitor.page.keyboard.press("Enter")
    assert visitor.job["train"]["grad_accum"] == 4
    visitor.settle()
    assert visitor.page.locator(".setting:visible.stated").count() == 1
