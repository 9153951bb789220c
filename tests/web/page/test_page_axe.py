"""axe-core finds nothing serious on any state of the page, light or dark, desktop or phone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import axe_playwright_python
import pytest
import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _pytest.mark.structures import ParameterSet

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
RUN = """() => axe.run({ resultTypes: ['violations'] }).then(({ violations }) => violations.map(
  ({ id, impact, nodes }) => [impact, id, nodes.slice(0, 3).map(node => node.html.slice(0, 200) + ' ' + node.failureSummary)]))"""


def _start(visitor: Visitor) -> None:
    visitor.open(jobs.LORA)
    visitor.settle()


def _serve(visitor: Visitor) -> None:
    visitor.open(jobs.VLLM)
    visitor.settle()


def _compared(visitor: Visitor) -> None:
    visitor.open(jobs.SMALL, jobs.TOO_LARGE, active=1)
    visitor.settle()


def _opened(visitor: Visitor) -> None:
    """A row, the folds, the menu and a list of models."""
    visitor.open(jobs.MEGATRON)
    visitor.settle()
    visitor.page.wait_for_function("() => globalThis.katex !== undefined")
    visitor.row("working").click()
    visitor.page.locator(".explanation .katex").first.wait_for()
    for title in ("All settings", "Job file", "Settings and their origin"):
        visitor.page.get_by_text(title, exact=True).click()
    visitor.field("Model").fill("llama")
    visitor.page.locator("[role=option]").first.wait_for()


def _refused(visitor: Visitor) -> None:
    visitor.open(jobs.REFUSED)
    visitor.page.get_by_role("alert").wait_for()


STATES: dict[str, Callable[[Visitor], None]] = {"start": _start, "serve": _serve, "compare": _compared, "opened": _opened, "refused": _refused}


@cache
def _axe() -> str:
    return AXE.read_text(encoding="utf-8")


def _found(visitor: Visitor) -> list[tuple[str, str, list[str]]]:
    visitor.page.evaluate(_axe())
    return [tuple(found) for found in visitor.page.evaluate(RUN)]


def _serious(visitor: Visitor) -> list[tuple[str, str, list[str]]]:
    return [found for found in _found(visitor) if found[0] in ("serious", "critical")]


def _some(states: Iterable[str], *usual: str) -> list[ParameterSet]:
    """States for one device; each is usual on one of them, and all are in the long run."""
    return [pytest.param(state, marks=[] if state in usual else [pytest.mark.long]) for state in states]


@pytest.mark.parametrize("state", _some(STATES, "start", "serve", "refused"))
def test_nothing_serious_on_a_desktop(visitor: Visitor, state: str) -> None:
    """No finding of impact serious or critical, with pictures drawn, in light and in dark."""
    STATES[state](visitor)
    for scheme in ("light", "dark"):
        times = visitor.times_drawn
        visitor.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of two words
        if state != "refused":
            visitor.drawn(times + (scheme == "dark") or 1)
        assert _serious(visitor) == [], scheme


@pytest.mark.parametrize("state", _some(("start", "compare", "opened"), "compare", "opened"))
def test_nothing_serious_on_a_phone(phone: Visitor, state: str) -> None:
    """The same on a phone."""
    STATES[state](phone)
    phone.drawn()
    assert _serious(phone) == []


def test_axe_would_find_it(visitor: Visitor) -> None:
    """A field without a label, grey letters on grey and a button without a name are found where they are put in."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.evaluate(
        """() => {
          const box = document.createElement('div');
          box.innerHTML = '<input type="text"><button></button><p style="color: #aaa; background: #bbb">grey</p>';
          document.getElementById('answer').append(box);
        }"""
    )
    assert {found[1] for found in _found(visitor)} >= {"label", "button-name", "color-contrast"}
