"""The page in Chinese: chosen by a switch or by the browser, every sentence of it, the job and its keys as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import shared_jobs as jobs
from test_page_axe import RUN, _axe
from visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

STATES = {"start": [jobs.LORA], "several": [jobs.SEVERAL], "too large": [jobs.TOO_LARGE], "compare": [jobs.LORA, jobs.TOO_LARGE], "refused": [jobs.REFUSED]}
ENGLISH = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const inside = node.parentElement.closest('code, textarea, script, noscript, option, .katex, .source, button.row, [data-free]');
    if (!inside && /[a-z]{2,} [a-z]{2,} [a-z]{2,}/.test(node.textContent)) found.push(node.textContent);
  }
  return found;
}"""
"""Texts of three English words in a row, outside of what is no language."""


@pytest.fixture
def chinese(browser: Browser, server: str) -> Iterator[Visitor]:
    """A person whose browser asks for Chinese."""
    context = browser.new_context(locale="zh-CN", viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.route("**/api/fit", lambda route: route.fulfill(status=400, json={"name": "", "error": {"path": "", "message": "not asked"}}))
    yield Visitor(page, server)
    context.close()


@pytest.mark.parametrize("state", STATES)
def test_no_sentence_is_left_in_english(chinese: Visitor, state: str) -> None:
    """On every state of the page each sentence is Chinese, and axe finds nothing serious."""
    chinese.open(*STATES[state])
    chinese.page.locator(".verdict .word").first.wait_for()
    if state != "refused":
        chinese.drawn()
    assert chinese.page.evaluate("document.documentElement.lang") == "zh"
    assert chinese.page.evaluate(ENGLISH) == []
    chinese.page.evaluate(_axe())
    assert [found for found in chinese.page.evaluate(RUN) if found[0] in ("serious", "critical")] == []


def test_a_switch_and_back(visitor: Visitor) -> None:
    """A button of the page switches to Chinese and back; the job in the address stays as it is."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_role("button", name="中文", exact=True).click()
    visitor.page.get_by_role("button", name="EN", exact=True).wait_for()
    assert visitor.page.locator("#ask label").first.inner_text() == "模型"
    assert visitor.job == jobs.SMALL
    visitor.page.get_by_role("button", name="EN", exact=True).click()
    visitor.page.get_by_role("button", name="中文", exact=True).wait_for()
    visitor.settle()
    assert visitor.job == jobs.SMALL
