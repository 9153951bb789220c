"""Dark and light: by the system, by the button, remembered, pictures too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BRIGHTNESS = "() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return (r + g + b) / 3; }"
INKS = "() => [...new Set([...document.querySelectorAll('.picture svg text')].map(text => text.getAttribute('fill')))].sort()"


def test_system(browser: Browser, server: str) -> None:
    """A system that is dark makes the page dark from the first paint, and its pictures are asked for in dark; a system that turns light turns both."""
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    visitor = Visitor(page, server)
    themes: list[str] = []
    page.on("request", lambda request: "/api/charts" in request.url and themes.append(request.post_data_json["theme"]))
    visitor.open(jobs.SMALL)
    visitor.drawn()
    assert page.evaluate(BRIGHTNESS) < 60
    dark = page.evaluate(INKS)
    page.emulate_media(color_scheme="light")
    visitor.drawn(2)
    assert page.evaluate(BRIGHTNESS) > 200
    assert page.evaluate(INKS) != dark
    assert (themes[0], themes[-1]) == ("dark", "light")
    context.close()


def test_button(visitor: Visitor) -> None:
    """The button goes from the system's theme to light, to dark and back; it says which holds, the pictures follow, and a reload keeps the choice."""
    visitor.open(jobs.SMALL)
    visitor.drawn()
    light = visitor.page.evaluate(INKS)
    button = visitor.page.get_by_role("button", name="Theme")
    assert button.get_attribute("aria-label") == "Theme: as the system"
    button.click()
    assert button.get_attribute("aria-label") == "Theme: light"
    times = visitor.times_drawn
    button.click()
    assert button.get_attribute("aria-label") == "Theme: dark"
    assert visitor.page.evaluate(BRIGHTNESS) < 60
    visitor.drawn(times + 1)
    visitor.page.wait_for_function(f"light => String(({INKS})()) !== String(light)", arg=light)
    visitor.page.reload()
    visitor.drawn()
    assert visitor.page.evaluate(BRIGHTNESS) < 60
    assert visitor.page.evaluate(INKS) != light
    button.click()
    assert button.get_attribute("aria-label") == "Theme: as the system"
    assert visitor.page.evaluate(BRIGHTNESS) > 200


def test_blocked_storage(visitor: Visitor) -> None:
    """Where the browser keeps nothing, the button still works until the page is left."""
    visitor.page.add_init_script("Object.defineProperty(globalThis, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } })")
    visitor.open(jobs.SMALL)
    visitor.settle()
    button = visitor.page.get_by_role("button", name="Theme")
    button.click()
    button.click()
    assert visitor.page.evaluate(BRIGHTNESS) < 60
