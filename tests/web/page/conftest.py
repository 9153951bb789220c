"""A real headless Chromium on the page of a real server. Debian's package `chromium` is used, no browser is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""Without them a browser on a closed network keeps looking for its maker."""
DESKTOP = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}
PATIENCE = 30_000
"""Milliseconds until an expected thing must be there; the machine may be busy with other tests."""
NOT_SEARCHED = {"name": "", "error": {"path": "", "message": "this test does not look at what fits"}}
SCREENSHOTS = Path(__file__).parents[3] / ".artefacts" / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a worker."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs a browser: install Debian's package chromium")
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh profile with a desktop's window."""
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]  # playwright's own type of the same two keys
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that fails its test when its code raises an error that nobody catches. It is not told what fits: a search takes the server seconds."""
    with _watched(context) as page:
        page.route("**/api/fit", lambda route: route.fulfill(status=400, json=NOT_SEARCHED))
        yield page


@pytest.fixture
def visitor(page: Page, server: str) -> Visitor:
    """A person in front of a desktop's window."""
    return Visitor(page, server)


@pytest.fixture
def searching(context: BrowserContext, server: str) -> Iterator[Visitor]:
    """The same, on a page that searches for what fits."""
    with _watched(context) as page:
        yield Visitor(page, server)


@contextmanager
def _watched(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    assert not faults, f"the page raised {faults}"


@pytest.fixture
def phone(browser: Browser, server: str) -> Iterator[Visitor]:
    """A person with a telephone in hand."""
    context = browser.new_context(viewport=PHONE, device_scale_factor=2, is_mobile=True, has_touch=True)  # type: ignore[arg-type]  # as above
    context.set_default_timeout(PATIENCE)
    with _watched(context) as page:
        page.route("**/api/fit", lambda route: route.fulfill(status=400, json=NOT_SEARCHED))
        yield Visitor(page, server)
    context.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where tests leave pictures of the page, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
