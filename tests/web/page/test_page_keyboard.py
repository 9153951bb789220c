"""Everything can be done without a mouse, and one sees where one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Page

OUTLINED = """() => {
  const element = document.activeElement;
  const hidden = getComputedStyle(element).opacity === "0" || element.classList.contains("sr");
  const shown = hidden ? element.nextElementSibling : element;
  const { outlineStyle, outlineWidth } = getComputedStyle(shown);
  const { width, height, bottom, right } = shown.getBoundingClientRect();
  const isThere = width > 0 && height > 0 && bottom > 0 && right > 0;
  return isThere && outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 ? "" : `${shown.tagName} ${shown.id} ${shown.textContent.slice(0, 30)}`;
}"""
"""Names the focused element unless one sees that it is; of a hidden radio or file field its label or button shows it."""


def _tab_to(page: Page, text: str) -> None:
    """Goes on with Tab until an element of this name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent"
        )
        if name.strip() == text:
            return
    raise AssertionError(f"Tab never reaches {text!r}")


def test_from_load_to_another_model(visitor: Visitor) -> None:
    """With keys alone: to the model, type, choose by arrows, take by Enter; Escape closes the list and leaves the model as it was."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    page = visitor.page
    _tab_to(page, "Model")
    combobox = visitor.field("Model")
    page.keyboard.type("qwen2.5 7b")
    page.get_by_role("listbox", name="Model").get_by_role("option").first.wait_for()
    assert combobox.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert combobox.get_attribute("aria-expanded") == "false"
    assert visitor.job == jobs.SMALL
    page.keyboard.press("ArrowDown")
    options = page.get_by_role("listbox", name="Model").get_by_role("option")
    options.nth(1).wait_for()
    names = options.locator("span").all_inner_texts()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("() => document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).firstChild.textContent") == names[1]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert visitor.job["model"] == names[0]
    assert combobox.input_value() == names[0]
    visitor.settle()


def test_what_is_typed_is_taken_when_the_field_is_left(visitor: Visitor) -> None:
    """Tab takes the first proposal for what is typed, which is what the words mean on the command line; after Escape it takes nothing."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.field("GPU").fill("a100")
    visitor.page.keyboard.press("Tab")
    visitor.page.wait_for_function("() => document.activeElement.type === 'number'")
    visitor.page.wait_for_function("field => field.value === 'A100-SXM4-80GB'", arg=visitor.field("GPU").element_handle())
    visitor.settle()
    assert visitor.job["hardware"]["gpu"] == "A100-SXM4-80GB"
    visitor.field("GPU").fill("h100")
    visitor.page.get_by_role("listbox", name="GPU").get_by_role("option").first.wait_for()
    visitor.page.keyboard.press("Escape")
    visitor.page.keyboard.press("Tab")
    assert visitor.field("GPU").input_value() == "A100-SXM4-80GB"
    assert visitor.job["hardware"]["gpu"] == "A100-SXM4-80GB"


def test_what_is_typed_and_left_is_no_model(visitor: Visitor) -> None:
    """Words that are typed and not taken leave the model as it is; words that nothing is called say so."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.field("Model").fill("zzz no such model")
    visitor.page.get_by_text("no match").wait_for()
    visitor.page.keyboard.press("Enter")
    visitor.page.keyboard.press("Tab")
    assert visitor.field("Model").input_value() == jobs.SMALL["model"]
    assert visitor.job == jobs.SMALL


def test_slider_by_arrows(searching: Visitor) -> None:
    """Arrows move a slider by one step, its value is spoken as a number, and End goes beyond what fits."""
    searching.open(jobs.SMALL)
    searching.settle()
    searching.knob("Micro-batch").get_by_role("button").wait_for()
    _tab_to(searching.page, "Micro-batch")
    searching.page.keyboard.press("ArrowRight")
    searching.page.keyboard.press("ArrowRight")
    assert searching.settle()["fits"]
    assert searching.job["train"]["micro_batch"] == 3
    slider = searching.knob("Micro-batch").get_by_role("slider")
    assert slider.get_attribute("aria-valuetext") == "3"
    searching.page.keyboard.press("End")
    assert not searching.settle()["fits"]
    assert slider.evaluate("slider => slider === document.activeElement")


def test_the_way_to_what_fits_keeps_the_focus(searching: Visitor) -> None:
    """Enter on `fits up to N` sets the value, and the focus stays on the button: whoever cannot see the page is not thrown to its start."""
    searching.open(jobs.VLLM)
    searching.settle()
    button = searching.knob("Context").get_by_role("button")
    button.wait_for()
    searching.drawn()
    button.focus()
    searching.page.keyboard.press("Enter")
    searching.settle()
    searching.drawn(2)
    assert searching.page.evaluate("() => document.activeElement.textContent") == button.inner_text()


def test_export_menu(visitor: Visitor) -> None:
    """Enter opens the menu of exports, Tab goes into it, Escape closes it and gives the focus back to its button."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.locator("summary", has_text="Export").focus()
    visitor.page.keyboard.press("Enter")
    entry = visitor.page.get_by_role("button", name="Job file (YAML)")
    entry.wait_for()
    visitor.page.keyboard.press("Tab")
    assert entry.evaluate("entry => entry === document.activeElement")
    visitor.page.keyboard.press("Escape")
    assert not entry.is_visible()
    assert visitor.page.evaluate("() => document.activeElement.textContent") == "Export"


def test_skip_link(visitor: Visitor) -> None:
    """The first Tab shows a link to the answer; Enter goes there without losing what the address holds."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.keyboard.press("Tab")
    link = visitor.page.get_by_role("link", name="Skip to the result")
    assert link.evaluate("link => link === document.activeElement && link.getBoundingClientRect().left >= 0")
    visitor.page.keyboard.press("Enter")
    assert visitor.page.evaluate("() => document.activeElement.id") == "answer"
    assert visitor.job == jobs.SMALL
    visitor.page.reload()
    visitor.settle()
    assert visitor.job == jobs.SMALL


def test_focus_is_always_seen(visitor: Visitor) -> None:
    """Wherever Tab leads, through the whole page with its folds open, the element is on the screen and outlined; and Tab leads out again at the end."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drawn()
    visitor.page.get_by_text("Job file", exact=True).click()
    visitor.row("weights").click()
    visitor.page.get_by_role("link", name="Skip to the result").focus()
    unseen: list[str] = []
    visitor.page.keyboard.press("Tab")
    while visitor.page.evaluate("() => document.activeElement !== document.body"):
        unseen.append(visitor.page.evaluate(OUTLINED))
        assert len(unseen) < 250, "Tab goes round and round"
        visitor.page.keyboard.press("Tab")
    assert len(unseen) > 40
    assert [name for name in unseen if name] == []


def test_choices_keep_the_focus(visitor: Visitor) -> None:
    """A list or a row that brings another answer keeps the focus although all around it is drawn anew."""
    visitor.open(jobs.MEGATRON)
    visitor.settle()
    visitor.page.get_by_label("Rank type", exact=True).focus()
    visitor.page.keyboard.press("ArrowUp")
    visitor.row("embed").wait_for()
    assert visitor.page.evaluate("() => document.activeElement.tagName") == "SELECT"
    assert visitor.state["rank"] == "pp0 (embedding)"
