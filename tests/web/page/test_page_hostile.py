"""What an enemy or an accident can bring: markup in names, huge pastes and files, odd keys, deep nesting. Nothing runs, nothing hangs."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import shared_jobs as jobs
from checkpoint_files import GGUF_LLAMA_TENSORS, LLAMA_CONFIG, gguf_bytes, gguf_llama_metadata
from visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

EVIL = '<img src=x onerror="globalThis.struck=1;alert(1)"><script>globalThis.struck=1;alert(2)</script>"\'><svg onload=alert(3)>'
WATCH = "globalThis.broken = []; document.addEventListener('securitypolicyviolation', event => broken.push(event.violatedDirective + ' ' + event.blockedURI));"
MARKUP = "() => document.querySelectorAll('img, iframe, object, embed, body script, [onerror], [onload], a[href^=\"javascript\"]').length"
MIB = 2**20
AT_ONCE_S = 6.0
"""For what is refused without being read; the machine may be busy."""


@pytest.fixture
def watched(page: Page, server: str) -> Iterator[Visitor]:
    """A visitor whose page must neither open a dialog, nor ask another server, nor break its own policy, nor hold foreign markup."""
    dialogs: list[str] = []
    asked: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script(WATCH)
    yield Visitor(page, server)
    assert dialogs == []
    assert page.evaluate("() => globalThis.struck") is None
    assert page.evaluate("() => broken") == []
    assert page.evaluate(MARKUP) == 0
    assert [url for url in asked if not url.startswith((server, "data:", "blob:"))] == []


def test_the_watch_would_see_it(page: Page, server: str) -> None:
    """The same markup in a page without protection does run and does open a dialog; and this page's policy stops a foreign picture and an inline script."""
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.set_content(EVIL)
    page.wait_for_function("() => globalThis.struck === 1")
    assert dialogs
    page.add_init_script(WATCH)
    page.goto(server)
    page.evaluate(
        """() => {
          const box = document.createElement('div');
          box.innerHTML = '<img src="http://example.org/x.png" onerror="globalThis.struck=1">';
          document.body.append(box);
        }"""
    )
    page.wait_for_function("() => broken.length >= 2")
    assert page.evaluate("() => globalThis.struck") is None
    assert page.evaluate(MARKUP) > 0


def _everything_is_drawn(visitor: Visitor) -> None:
    """Opens whatever shows a name: pictures, rows, settings, text, comparison."""
    visitor.settle()
    visitor.drawn()
    visitor.row("weights").click()
    visitor.page.locator(".explanation").first.wait_for()
    visitor.page.locator("figure svg").first.hover()
    for title in ("All settings", "Job file"):
        visitor.page.get_by_text(title, exact=True).click()
    visitor.page.get_by_role("button", name="Compare").click()
    visitor.page.locator(".comparison").wait_for()
    visitor.settle()


def test_markup_as_a_jobs_name(watched: Visitor) -> None:
    """A job called like a script is shown letter by letter: in the text, in pictures, in the comparison; and what it is called is no path in a file's name."""
    watched.open({**jobs.SMALL, "name": EVIL})
    _everything_is_drawn(watched)
    assert EVIL in watched.page.locator("figcaption").first.inner_text()
    watched.page.locator("summary", has_text="Export").click()
    with watched.page.expect_download() as download:
        watched.page.get_by_role("button", name="Answer (JSON)").click()
    assert re.fullmatch(r"[a-z0-9.-]+\.json", download.value.suggested_filename)


def test_markup_in_a_config(watched: Visitor) -> None:
    """A config.json whose name and other texts hold markup is a model like any other."""
    config = {**LLAMA_CONFIG, "_name_or_path": EVIL, "torch_dtype": "bfloat16", "note": EVIL, EVIL: EVIL}
    watched.open({**jobs.SMALL, "model": {"config": config}})
    _everything_is_drawn(watched)
    assert watched.field("Model").input_value() == EVIL


def test_markup_in_a_refusal(watched: Visitor) -> None:
    """What a refusal quotes of a job is text: values, keys, model names, and what a server of somebody else would answer."""
    for job in ({**jobs.SMALL, "model": EVIL}, {**jobs.SMALL, EVIL: 1}, {**jobs.SMALL, "train": {**jobs.SMALL["train"], "precision": EVIL}}):
        watched.open(job)
        watched.page.get_by_role("alert").get_by_text("onerror").wait_for()
    watched.page.route("**/api/estimate", lambda route: route.fulfill(status=500, json={"error": {"path": EVIL, "message": EVIL}}))
    watched.open(jobs.SMALL)
    watched.page.get_by_role("alert").get_by_text(EVIL).first.wait_for()


def test_markup_in_file_names(watched: Visitor) -> None:
    """Names of dropped files, and names inside them, are text."""
    watched.open(jobs.SMALL)
    watched.settle()
    status = watched.page.locator("#ask .picker [role=status]")
    watched.drop({f"{EVIL.replace('/', '')}.json": b"{broken"})
    status.locator(".bad", has_text="onerror").wait_for()
    watched.drop({"x.gguf": gguf_bytes({**gguf_llama_metadata(), "general.file_type": 7, "general.name": EVIL}, GGUF_LLAMA_TENSORS)})
    status.get_by_text("onerror").wait_for()
    watched.settle()


@pytest.mark.parametrize(
    "job", [{**jobs.SMALL, "hardware": {"gpu": EVIL}}, {**jobs.SMALL, "train": {EVIL: EVIL}}, {"name": EVIL}], ids=["card", "settings", "nothing else"]
)
def test_markup_in_the_address(watched: Visitor, job: jobs.Job) -> None:
    """A link made by an enemy shows text and nothing more."""
    watched.open(job, rank=EVIL, knob=EVIL, other=EVIL)
    watched.page.get_by_role("alert").get_by_text("This job cannot be estimated").wait_for()
    watched.open({**jobs.SMALL, "name": EVIL}, job, active=1)
    watched.page.get_by_text("onerror").first.wait_for()


def test_prototype_keys(watched: Visitor) -> None:
    """Keys that would change JavaScript's own objects are keys like others: the server refuses them, the page's objects stay as they were."""
    keys = '{"model": "Qwen/Qwen2.5-0.5B", "__proto__": {"polluted": 1}, "train": {"micro_batch": 1, "seq_len": 64, "__proto__": {"polluted": 1}}}'
    watched.open(jobs.SMALL)
    watched.settle()
    watched.paste(keys)
    watched.page.locator("#ask .bad", has_text="__proto__").wait_for()
    for name in ("__proto__", "constructor", "toString"):
        watched.open(json.loads(keys.replace("__proto__", name)))
        watched.page.get_by_role("alert").get_by_text(name).first.wait_for()
        assert watched.page.evaluate("() => ({}).polluted") is None
    watched.page.get_by_role("button", name="LoRA on 24 GB").click()
    watched.settle()


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_nesting(watched: Visitor, depth: int) -> None:
    """Lists in lists in lists, in the address and in the text: refused in words or taken for a damaged address, and the page works."""
    deep = "[" * depth + "]" * depth
    address = f'{{"jobs": [{{"model": "Qwen/Qwen2.5-0.5B", "train": {{"micro_batch": 1, "seq_len": 64, "kernels": {deep}}}}}], "active": 0}}'
    encode = "text => '#' + btoa(text).replaceAll('=', '')"
    watched.page.goto(watched.base)
    watched.settle()
    watched.page.evaluate(f"text => {{ location.hash = ({encode})(text); }}", address)
    watched.page.reload()
    watched.page.locator(".verdict").wait_for()
    watched.page.get_by_role("button", name="LoRA on 24 GB").click()
    watched.settle()
    watched.paste(f'{{"model": "Qwen/Qwen2.5-0.5B", "train": {{"micro_batch": 1, "seq_len": 64, "kernels": {deep}}}}}')
    watched.page.locator("#ask .bad").wait_for()
    watched.settle()


def _seconds_until(visitor: Visitor, do: Any, selector: str, words: str) -> float:
    begin = time.monotonic()
    do()
    visitor.page.locator(selector, has_text=words).wait_for()
    return time.monotonic() - begin


def test_fifty_megabytes_pasted(watched: Visitor) -> None:
    """A paste of 50 MB into the job's text is refused at once by the page itself, nothing of it is sent, and the form goes on working."""
    watched.open(jobs.SMALL)
    watched.settle()
    watched.page.get_by_text("Job file", exact=True).click()
    area = watched.page.locator("#ask textarea")
    watched.page.wait_for_function("() => document.querySelector('#ask textarea').value !== ''")
    paste = """area => {
      const carrier = new DataTransfer();
      carrier.setData('text/plain', 'x: '.repeat(50 * 2 ** 20 / 3));
      const event = new ClipboardEvent('paste', { clipboardData: carrier, bubbles: true, cancelable: true });
      if (area.dispatchEvent(event)) { area.value = carrier.getData('text/plain'); area.dispatchEvent(new Event('input', { bubbles: true })); }
    }"""
    sent: list[str] = []
    watched.page.on("request", lambda request: "/api/read" in request.url and sent.append(request.url))
    assert _seconds_until(watched, lambda: area.evaluate(paste), "#ask .bad", "no job file is larger") < AT_ONCE_S
    assert sent == []
    assert len(area.input_value()) < MIB, "the text of 50 MB does not stay in the page"
    watched.choose("Optimizer", "sgd")
    watched.settle()
    assert watched.job["train"]["optimizer"] == {"name": "sgd"}


def test_fifty_megabytes_typed_by_a_program(watched: Visitor) -> None:
    """The same text that comes in another way than by paste is refused, too."""
    watched.open(jobs.SMALL)
    watched.settle()
    watched.page.get_by_text("Job file", exact=True).click()
    watched.page.wait_for_function("() => document.querySelector('#ask textarea').value !== ''")
    fill = "area => { area.value = 'x: '.repeat(50 * 2 ** 20 / 3); area.dispatchEvent(new Event('input', { bubbles: true })); }"
    assert _seconds_until(watched, lambda: watched.page.locator("#ask textarea").evaluate(fill), "#ask .bad", "no job file is larger") < AT_ONCE_S
    watched.choose("Optimizer", "sgd")
    watched.settle()


def test_fifty_megabytes_dropped(watched: Visitor) -> None:
    """A config.json of 50 MB is refused by the page itself, with its size, and nothing of it is sent."""
    watched.open(jobs.SMALL)
    watched.settle()
    sent: list[str] = []
    watched.page.on("request", lambda request: "/api/read" in request.url and sent.append(request.url))
    status = "#ask .picker [role=status] .bad"
    assert _seconds_until(watched, lambda: watched.drop({"config.json": b"{"}, zeros=50 * MIB), status, "config.json has 50 MiB") < AT_ONCE_S
    assert sent == []
    watched.settle()


def test_long_words_everywhere(watched: Visitor) -> None:
    """Names of thousands of letters break and do not widen the page."""
    watched.open({**jobs.SMALL, "name": "n" * 5000})
    watched.settle()
    watched.drawn()
    assert watched.page.evaluate("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
