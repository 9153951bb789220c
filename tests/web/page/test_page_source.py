"""The page's own files: each is loaded by a browser, none names another host, and no text becomes markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from everybyte.web.pages import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Page

OURS = sorted(path for path in STATIC.rglob("*") if path.is_file() and path.relative_to(STATIC).parts[0] != "vendor")
ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(\s*[\"'`]")


def test_every_module_is_read(page: Page, server: str) -> None:
    """A browser parses each module and finds everything that it imports, and a page that loads them all starts."""
    modules = [f"/{path.relative_to(STATIC.parent).as_posix()}" for path in OURS if path.suffix == ".js" and path.name not in ("theme.js", "main.js")]
    assert len(modules) > 20
    page.goto(server)
    page.locator(".verdict").wait_for()
    counts = page.evaluate("names => Promise.all(names.map(name => import(name).then(module => Object.keys(module).length)))", modules)
    assert all(counts)
    assert page.evaluate("() => document.scripts[0].src").endswith("theme.js")


def test_no_other_host_is_named() -> None:
    """No file of the page loads anything from elsewhere: no CDN, no font, no counter."""
    found = {path.name: hosts for path in OURS if (hosts := [one for one in ADDRESS.findall(path.read_text(encoding="utf-8")) if one not in NAMESPACE])}
    assert found == {}
    assert ADDRESS.findall('<script src="//cdn.example.org/x.js">') == ["//cdn.example.org"]


def test_no_text_becomes_markup() -> None:
    """Nothing in our scripts turns a text into elements or code; that is what keeps a model's name from running."""
    found = {path.name: hits for path in OURS if path.suffix == ".js" and (hits := MARKUP.findall(path.read_text(encoding="utf-8")))}
    assert found == {}


def test_files_stay_small() -> None:
    """The page stays something that a Python person can read: no module of more than 250 lines."""
    assert {path.name for path in OURS if len(path.read_text(encoding="utf-8").splitlines()) > 250} == set()
