"""A server that fails, is busy, is away, or answers late and in the wrong order: the page says so, keeps working, and recovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Route

FAULT = {"name": "", "error": {"path": "", "message": "internal error"}}
FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "500": ({"status": 500, "json": FAULT}, "internal error"),
    "503": ({"status": 503, "json": {"name": "", "error": {"path": "", "message": "the server has as much to do as it takes"}}}, "as much to do"),
    "a proxy's page": ({"status": 502, "body": "<h1>Bad gateway</h1>", "content_type": "text/html"}, "502"),
    "no JSON": ({"status": 500, "body": "{broken", "content_type": "application/json"}, "500"),
}


def _change(visitor: Visitor, micro_batch: int) -> None:
    exact = visitor.field("Micro-batch, exact value")
    exact.fill(str(micro_batch))
    exact.press("Enter")


@pytest.mark.parametrize(("failure", "words"), FAILURES.values(), ids=FAILURES)
def test_estimate_fails(visitor: Visitor, failure: dict[str, Any], words: str) -> None:
    """A failing answer takes the old numbers away and says what happened; the next change asks again and brings the new ones."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drawn()
    visitor.page.route("**/api/estimate", lambda route: route.fulfill(**failure))
    _change(visitor, 2)
    alert = visitor.page.get_by_role("alert")
    alert.get_by_text("No answer").wait_for()
    assert words in alert.inner_text()
    assert visitor.page.locator(".ledger, .figures, .pictures figure:visible").count() == 0
    visitor.page.unroute_all()
    _change(visitor, 3)
    visitor.settle()
    assert alert.count() == 0
    visitor.page.locator("figure").first.wait_for()


def test_connection_is_lost(visitor: Visitor) -> None:
    """A server that is away is called so, and what to look at; when it is back, the same change is answered."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    _change(visitor, 2)
    visitor.page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
    visitor.page.unroute_all()
    _change(visitor, 2)
    visitor.page.get_by_role("button", name="Try again").click()
    assert visitor.settle()["job"]["train"]["micro_batch"] == 2


def test_offline(visitor: Visitor) -> None:
    """A machine without a network keeps the page as it stands and says that the server cannot be reached; the form can still be filled in."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drawn()
    visitor.page.context.set_offline(True)
    visitor.row("weights").click()
    visitor.page.locator(".explanation dt", has_text="source").wait_for()
    _change(visitor, 2)
    visitor.page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
    visitor.choose("Optimizer", "sgd")
    visitor.page.context.set_offline(False)
    _change(visitor, 3)
    visitor.settle()
    assert visitor.job["train"]["optimizer"] == {"name": "sgd"}


@pytest.mark.parametrize("path", ["settings", "words"])
def test_first_load_fails(visitor: Visitor, path: str) -> None:
    """Where already the description of the form cannot be had, the page says so instead of staying empty."""
    visitor.page.route(f"**/api/{path}", lambda route: route.abort())
    visitor.page.goto(visitor.base)
    visitor.page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()


def test_the_last_change_wins(visitor: Visitor) -> None:
    """Answers that come late do not overwrite later ones: after three quick changes the page shows the last, however long the first takes."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drawn()
    late: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.post_data_json["train"]["micro_batch"] == 2:
            late.append(route)
        else:
            route.continue_()

    visitor.page.route("**/api/estimate", hold)
    with visitor.page.expect_request("**/api/estimate"):
        _change(visitor, 2)
    for micro_batch in (3, 4):
        _change(visitor, micro_batch)
    visitor.page.wait_for_timeout(200)
    while not late:
        visitor.page.wait_for_timeout(50)
    late[0].continue_()
    answer = visitor.settle()
    assert answer["job"]["train"]["micro_batch"] == 4
    visitor.page.wait_for_timeout(300)
    assert visitor.settle() == answer


def test_pictures_fail_alone(visitor: Visitor) -> None:
    """Where only the pictures cannot be had, verdict, rows and figures are there, a message says what is missing, and the next change brings pictures."""
    visitor.page.route("**/api/charts", lambda route: route.fulfill(status=500, json=FAULT), times=1)
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_role("status").filter(has_text="The pictures could not be drawn").wait_for()
    assert visitor.page.locator("figure:visible").count() == 0
    assert visitor.page.locator(".ledger").count() >= 1
    _change(visitor, 2)
    visitor.page.locator("figure svg").first.wait_for()


def test_drawing_library_is_missing(visitor: Visitor) -> None:
    """Where the library that draws cannot be loaded, the answer is there all the same; once it can, the next change draws."""
    visitor.page.route("**/vega.min.js", lambda route: route.abort(), times=1)
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.get_by_role("status").filter(has_text="vega.min.js could not be loaded").wait_for()
    _change(visitor, 2)
    visitor.page.locator("figure svg").first.wait_for()


def test_search_for_models_fails(visitor: Visitor) -> None:
    """A catalogue that cannot be asked proposes nothing, and does no other harm."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.route("**/api/models*", lambda route: route.abort())
    visitor.field("Model").fill("llama")
    visitor.page.get_by_text("no match").or_(visitor.page.get_by_text("cannot be reached")).wait_for()
    visitor.page.keyboard.press("Escape")
    _change(visitor, 2)
    visitor.settle()


def test_export_fails(visitor: Visitor) -> None:
    """An export that fails tells why and downloads nothing."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.page.route("**/api/report", lambda route: route.fulfill(status=503, json={"name": "", "error": {"path": "", "message": "busy now"}}))
    visitor.page.locator("summary", has_text="Export").click()
    visitor.page.get_by_role("button", name="Report").click()
    visitor.page.get_by_role("status").filter(has_text="busy now").wait_for()
