"""The address holds all that the page shows: sharing, bookmarks, back and forward; what is no address of ours does no harm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import shared_jobs as jobs
from visitor import Visitor, decoded, fragment

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ODD: dict[str, Any] = {
    "numbers": {"model": 5, "hardware": 7, "train": 1},
    "texts": {"model": "", "hardware": "", "train": "x"},
    "lists": {"model": [], "hardware": [], "train": []},
    "empty objects": {"model": {}, "hardware": {"gpu": {}, "gpus": {}}, "train": {}},
    "deep in": {
        "model": {"config": 3},
        "hardware": {"gpu": 4, "gpus": "many"},
        "train": {"adapter": [], "quantization": 1, "optimizer": [2], "micro_batch": {}},
    },
    "served": {"model": {"shape": None}, "serve": {"engine": [], "context": {}, "weights": 3, "kv_dtype": "x"}},
    "both": {"model": None, "train": None, "serve": None, "name": {"a": 1}},
    "empty": {},
}
DAMAGED = ["#", "#nonsense", "#e30", "#%E0%A4%A", "#" + "A" * 5000, fragment({"jobs": [], "active": 0}), fragment({"jobs": [None], "active": 0})]
DAMAGED += [fragment({"jobs": [jobs.SMALL], "active": at}) for at in (1, -1, "0")]  # type: ignore[dict-item]  # what no page writes
DAMAGED += [fragment({"jobs": [jobs.VLLM], "active": 0})[:-60]]


def test_a_link_shows_the_same_to_somebody_else(visitor: Visitor, browser: Browser) -> None:
    """What a person set up, opened from its address in a browser that was never here, shows the same job, verdict, rows and rank."""
    visitor.open(jobs.MEGATRON)
    visitor.settle()
    visitor.field("Sequence length, exact value").fill("4096")
    visitor.field("Sequence length, exact value").press("Enter")
    visitor.settle()
    visitor.page.get_by_label("Rank type", exact=True).select_option("pp4")
    visitor.row("layers.31-38").wait_for()
    elsewhere = browser.new_context()
    other = Visitor(elsewhere.new_page(), visitor.base)
    other.page.goto(visitor.page.url)
    other.settle()
    assert other.state == visitor.state
    assert other.state["rank"] == "pp4"
    for place in (".verdicts", "section > .ledger", ".figures"):
        assert other.page.locator(place).inner_text() == visitor.page.locator(place).inner_text()
    assert other.field("Sequence length, exact value").input_value() == "4096"
    elsewhere.close()


def test_back_and_forward(visitor: Visitor) -> None:
    """Each change is a step: back goes through them to the start, forward returns, and the form follows."""
    visitor.page.goto(visitor.base)
    visitor.settle()
    visitor.page.get_by_role("button", name="Serve with vLLM").click()
    visitor.settle()
    visitor.choose("Engine", "sglang")
    visitor.settle()
    after = visitor.page.url
    visitor.page.go_back()
    assert visitor.settle()["job"]["serve"]["engine"] == "vllm"
    assert visitor.field("Engine").input_value() == "vllm"
    visitor.page.go_back()
    assert visitor.page.evaluate("location.hash") == ""
    assert "train" in visitor.settle()["job"]
    assert visitor.field("Framework").input_value() == "trl"
    visitor.page.go_forward()
    visitor.settle()
    visitor.page.go_forward()
    visitor.settle()
    assert visitor.page.url == after
    assert visitor.field("Engine").input_value() == "sglang"


def test_reload_keeps_everything(visitor: Visitor) -> None:
    """A reloaded page shows what it showed."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.choose("Optimizer", "sgd")
    visitor.settle()
    before = visitor.answer.locator(".figures").inner_text()
    visitor.page.reload()
    visitor.settle()
    assert visitor.answer.locator(".figures").inner_text() == before
    assert visitor.field("Optimizer").input_value() == "sgd"


def test_another_address_typed_into_the_open_page(visitor: Visitor) -> None:
    """An address that is pasted while the page is open is followed without a reload."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.evaluate("globalThis.here = true")
    visitor.page.evaluate("hash => { location.hash = hash }", fragment({"jobs": [jobs.VLLM], "active": 0}))
    assert "serve" in visitor.settle()["job"]
    assert visitor.page.evaluate("globalThis.here")


def test_damaged_address(visitor: Visitor) -> None:
    """An address that is cut off or was never ours shows the first example, and the page works."""
    for number, hash_ in enumerate(DAMAGED):
        visitor.page.goto(f"{visitor.base}/?{number}{hash_}")
        visitor.page.locator(".verdict .word", has_text=re.compile("Fits|Close")).wait_for()
        assert visitor.field("Model").input_value() == visitor.start["model"], hash_[:40]
    visitor.page.get_by_role("button", name="Serve with vLLM").click()
    visitor.settle()


def test_jobs_of_odd_kinds(visitor: Visitor) -> None:
    """A job in the address whose parts are of wrong kinds is refused by the server, the page says so, and its form still works."""
    for name, job in ODD.items():
        visitor.page.goto(f"{visitor.base}/?{name.replace(' ', '')}{fragment({'jobs': [job], 'active': 0})}")
        visitor.page.get_by_role("alert").get_by_text("This job cannot be estimated").wait_for()
        for title in ("All settings", "Job file"):
            visitor.page.get_by_text(title, exact=True).click()
    visitor.page.get_by_role("button", name="LoRA on 24 GB").click()
    assert visitor.settle()["fits"]


def test_no_job_in_any_request_line(visitor: Visitor) -> None:
    """The job travels in bodies alone: no address that the server sees holds a part of it, so no log of a server or proxy does."""
    secret = {**jobs.SMALL, "name": "codename-orchid"}
    lines: list[str] = []
    visitor.page.on("request", lambda request: lines.append(f"{request.method} {request.url.partition('#')[0]} {request.headers.get('referer', '')}"))
    visitor.open(secret)
    visitor.settle()
    visitor.drawn()
    visitor.row("weights").click()
    visitor.page.locator(".explanation").first.wait_for()
    assert decoded(visitor.page.evaluate("location.hash"))["jobs"] == [secret]
    assert any("/api/estimate" in line for line in lines)
    assert not [line for line in lines if "#" in line or "?" in line or "orchid" in line or "Qwen" in line]


def test_share_copies_the_address(visitor: Visitor) -> None:
    """`Share` puts the address on the clipboard and says what it holds."""
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_role("button", name="Share").click()
    visitor.page.get_by_role("status").filter(has_text="Link copied").wait_for()
    assert visitor.page.evaluate("navigator.clipboard.readText()") == visitor.page.url


def test_share_of_a_first_visit(visitor: Visitor) -> None:
    """A first visit has no state in its address; what `Share` copies shows the same job anyway, even when the first example changes one day."""
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.page.goto(visitor.base)
    visitor.settle()
    visitor.page.get_by_role("button", name="Share").click()
    visitor.page.get_by_role("status").filter(has_text="Link copied").wait_for()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    assert decoded(copied.partition("#")[2])["jobs"] == [visitor.start]
