"""A phone, a narrow phone, and large text: nothing runs off the side, the verdict stays in sight, and what one taps is large enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import shared_jobs as jobs
import shown
from visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const scrolled = element => element.closest(".scroll, .formula, .settings, .segments, .combobox ul, textarea, svg, .sr, .skip, #vg-tooltip-element");
  const out = [...document.body.querySelectorAll("*")].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width && (box.right > width + 1 || box.left < -1) && !scrolled(element);
  });
  const scroll = document.documentElement.scrollWidth;
  return [...(scroll > width ? [`the page is ${scroll} wide`] : []), ...out.map(element => element.outerHTML.slice(0, 90))];
}"""
"""What is wider than the window, unless it scrolls for itself."""
SMALL_TARGETS = """() => [...document.querySelectorAll("button, summary, select, input, textarea, a[href], .segments label")].filter(element => {
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  const isShown = box.width && style.visibility !== "hidden" && style.opacity !== "0" && !element.closest(".sr, .skip, svg, .top h1");
  const reach = parseFloat(getComputedStyle(element, "::after").left) || 0;
  return isShown && (box.width - 2 * reach < 24 || box.height < 23.5);
}).map(element => `${element.outerHTML.slice(0, 80)} ${element.getBoundingClientRect().width}x${element.getBoundingClientRect().height}`)"""
PHONE_WIDTHS = (390, 320)
PICTURES_FOLLOWED = "() => [...document.querySelectorAll('figure:not([hidden]) svg')].every(svg => svg.clientWidth <= svg.closest('.picture').clientWidth + 1)"
"""Pictures follow a new width in a moment."""
LONG = {**jobs.SMALL, "name": "a_name_without_any_space_" * 12}
STATES = {
    "start": [jobs.LORA],
    "vllm": [jobs.VLLM],
    "405B": [jobs.MEGATRON],
    "refused": [jobs.REFUSED],
    "two": [jobs.SMALL, jobs.TOO_LARGE],
    "long name": [LONG],
}


def _fits_all_widths(page: Page) -> None:
    for width in PHONE_WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(PICTURES_FOLLOWED)
        assert page.evaluate(WIDE) == [], f"at {width}"
        assert page.evaluate(SMALL_TARGETS) == [], f"at {width}"


USUAL = {"405B", "two", "long name"}
"""What is widest; all are in the long run."""
CASES = [pytest.param(jobs_shown, id=name, marks=[] if name in USUAL else [pytest.mark.long]) for name, jobs_shown in STATES.items()]


@pytest.mark.parametrize("state", CASES)
def test_nothing_runs_off_a_phone(phone: Visitor, state: list[jobs.Job]) -> None:
    """No state of the page is wider than the screen, with its pictures drawn, and every target is at least 24 pixels high and wide."""
    phone.open(*state)
    phone.page.locator(".verdict").first.wait_for()
    if state != [jobs.REFUSED]:
        phone.drawn()
    _fits_all_widths(phone.page)


def test_everything_open_on_a_phone(phone: Visitor) -> None:
    """With all settings, the job as text, a row, the menu and a list of models open nothing runs off either."""
    phone.open(jobs.LORA)
    phone.settle()
    phone.drawn()
    for title in ("All settings", "Job file", "Settings and their origin"):
        phone.page.get_by_text(title, exact=True).click()
    phone.row("working/head/loss").click()
    phone.page.locator(".explanation .katex").first.wait_for()
    _fits_all_widths(phone.page)
    phone.page.locator("summary", has_text="Export").click()
    phone.page.get_by_role("button", name="Job file (YAML)").wait_for()
    _fits_all_widths(phone.page)
    phone.field("Model").fill("deepseek")
    phone.page.locator("[role=option]").first.wait_for()
    _fits_all_widths(phone.page)


def test_verdict_stays_in_sight_on_a_phone(phone: Visitor) -> None:
    """While one works in the form, the foot of the screen says whether it fits and how much it needs; a tap goes to the answer and keeps the address."""
    phone.open(jobs.LORA)
    answer = phone.settle()
    foot = phone.page.locator("#mini a")
    needed = answer["hardware"]["capacity"] - answer["headroom"]
    mark = {"fits": "✓", "close": "~", "does not fit": "✗"}[answer["verdict"]]
    assert foot.inner_text().split("\n") == [f"{mark} {shown.word(answer)}", f"{shown.gib(needed, 1)} of {shown.size(answer['hardware']['capacity'])}"]
    box = foot.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 844.5
    foot.tap()
    phone.page.wait_for_function("() => document.querySelector('.verdict').getBoundingClientRect().top < innerHeight")
    assert phone.job == jobs.LORA


def test_mini_verdict_is_not_on_a_desktop(visitor: Visitor) -> None:
    """Where the answer stands beside the form its foot is not needed."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    assert not visitor.page.locator("#mini").is_visible()


@pytest.mark.parametrize("width", [1400, 700])
def test_text_of_twice_the_size(page: Page, server: str, width: int) -> None:
    """A person whose browser sets letters twice as large (WCAG 1.4.4) gets them so, all is still there and nothing runs off the side."""
    visitor = Visitor(page, server)
    page.set_viewport_size({"width": width, "height": 1000})
    page.context.new_cdp_session(page).send("Page.setFontSizes", {"fontSizes": {"standard": 32, "fixed": 26}})
    visitor.open(jobs.LORA)
    assert page.evaluate("() => getComputedStyle(document.body).fontSize") == "30px"
    visitor.settle()
    visitor.drawn()
    assert page.evaluate(WIDE) == []


def test_no_jump_when_an_answer_comes(browser: Browser, server: str) -> None:
    """A change moves nothing that stands above the answer: the verdict stays where it is while pictures are exchanged."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    visitor = Visitor(context.new_page(), server)
    visitor.open(jobs.LORA)
    visitor.settle()
    visitor.drawn()
    shift = """() => {
      let sum = 0;
      new PerformanceObserver(list => { for (const one of list.getEntries()) sum += one.value; }).observe({ type: 'layout-shift' });
      globalThis.shifted = () => sum;
    }"""
    visitor.page.evaluate(shift)
    times = visitor.times_drawn
    visitor.page.evaluate(
        "() => { const slider = document.querySelector('.knob input[type=range]'); slider.value = 1; slider.dispatchEvent(new Event('input')); }"
    )
    visitor.drawn(times + 1)
    assert visitor.page.evaluate("() => shifted()") < 0.1
    context.close()
