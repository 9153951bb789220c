"""Sliders: what is marked is what `fit` finds, the way there is one click, dragging is followed, and each number can be typed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import shared_jobs as jobs
import shown
from playwright.sync_api import Locator
from visitor import Visitor, answer_to, ask

SEARCHED = [(jobs.SMALL, "train.micro_batch", "Micro-batch"), (jobs.VLLM, "serve.context", "Context"), (jobs.VLLM, "serve.sequences", "Concurrent sequences")]
TRACK_END = "knob => Number(/var\\(--good\\) ([\\d.]+)%, transparent/.exec(knob.querySelector('.track').style.backgroundImage)[1])"


def _with(job: jobs.Job, key: str, value: int) -> jobs.Job:
    section, name = key.split(".")
    return {**job, section: {**job[section], name: value}}


def _thumb_is_at_the_end(knob: Locator, slider: Locator) -> bool:
    end = int(slider.get_attribute("max") or 0)
    return bool(abs(knob.evaluate(TRACK_END) - 100 * int(slider.input_value()) / end) <= 50 / end)


def _until(visitor: Visitor, holds: Callable[[], bool], words: str) -> None:
    """Waits until something holds: a slider gets its new scale when its search is done."""
    for _ in range(50):
        if holds():
            return
        visitor.page.wait_for_timeout(100)
    pytest.fail(f"in vain for 5 s: {words}")


@pytest.mark.parametrize(("job", "key", "label"), SEARCHED, ids=[key for _, key, _ in SEARCHED])
def test_marked_point_is_that_of_fit(searching: Visitor, job: jobs.Job, key: str, label: str) -> None:
    """The number under a slider is the value that /api/fit answers; the click goes there, it fits, and one more does not."""
    found = ask(searching.base, "fit", {"job": job, "grow": key})["value"]
    searching.open(job)
    searching.settle()
    knob = searching.knob(label)
    link = knob.get_by_role("button")
    link.wait_for()
    assert knob.locator(".hint").inner_text().startswith(f"fits up to {found:,}")
    link.click()
    assert searching.settle()["fits"]
    assert searching.job == _with(job, key, found)
    assert knob.get_by_label("exact value").input_value() == str(found)
    slider = knob.locator("input[type=range]")
    _until(searching, lambda: _thumb_is_at_the_end(knob, slider), "the green part ends where the thumb now stands")
    if key == "serve.sequences":
        return  # a server with too many sequences runs, only not all of them at once
    beyond = _with(job, key, found + 1)
    answer = ask(searching.base, "estimate", beyond)
    assert "error" in answer or not answer["fits"]
    knob.get_by_label("exact value").fill(str(found + 1))
    knob.get_by_label("exact value").press("Enter")
    searching.page.locator(".verdict.over, .verdict.refused, .verdict.close").wait_for()


def test_share_of_the_card_has_both_ends(searching: Visitor) -> None:
    """A share of the card works between two ends, which are those of /api/fit."""
    interval = ask(searching.base, "fit", {"job": jobs.VLLM, "grow": "memory_fraction"})["intervals"][0]
    searching.open(jobs.VLLM)
    searching.knob("GPU memory utilization").locator(".hint", has_text=f"works from {interval['low']:.2f} to {interval['high']:.2f}").wait_for()


def test_nothing_fits(searching: Visitor) -> None:
    """Where no value fits, the slider says so and with which one it would be least, and marks nothing."""
    job = {**jobs.SMALL, "model": "Qwen/Qwen2.5-72B"}
    searching.open(job)
    stop = ask(searching.base, "fit", {"job": job, "grow": "micro_batch"})["stop"]
    knob = searching.knob("Micro-batch")
    knob.locator(".hint", has_text=f"no value fits: 1 is {shown.size(stop['short_by'])} over capacity in {stop['phase']}").wait_for()
    assert knob.get_by_role("button").count() == 0
    assert "marked" not in (knob.get_attribute("class") or "").split()


def test_dragging_is_followed_and_is_one_step_back(searching: Visitor) -> None:
    """While a slider is dragged the verdict follows; when it is let go there is one new entry in the history, and back undoes the whole drag."""
    searching.open(jobs.SMALL)
    searching.settle()
    knob = searching.knob("Micro-batch")
    knob.get_by_role("button").wait_for()
    before, address = searching.page.evaluate("history.length"), searching.page.url
    box = knob.locator("input[type=range]").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    searching.page.mouse.move(box["x"] + 9, middle)
    searching.page.mouse.down()
    values = []
    for part in range(2, 9, 2):
        searching.page.mouse.move(box["x"] + part * box["width"] / 10, middle, steps=4)
        values.append(int(knob.get_by_label("exact value").input_value()))
        answer = answer_to(searching.base, _with(jobs.SMALL, "train.micro_batch", values[-1]))
        searching.says(shown.word(answer), shown.sentence(answer))
    assert values == sorted(set(values))
    assert searching.page.url == address, "an unfinished drag is no entry of the history"
    searching.page.mouse.up()
    answer = searching.settle()
    assert not answer["fits"]
    assert searching.job["train"]["micro_batch"] > 19
    assert searching.page.evaluate("history.length") == before + 1
    searching.page.go_back()
    assert searching.settle()["fits"]
    assert searching.job == jobs.SMALL


def test_exact_number(visitor: Visitor) -> None:
    """A typed number is taken, rounded to a whole one; nothing is the default; what is no size is refused, and the field shows again what holds."""
    visitor.open(jobs.SMALL)
    exact = visitor.field("Micro-batch, exact value")
    for typed, kept in (("3", 3), ("2.6", 3), ("1e1", 10), ("0", 10), ("-4", 10), ("", None)):
        exact.fill(typed)
        exact.press("Enter")
        answer = visitor.settle()
        assert visitor.job["train"].get("micro_batch") == kept, typed
        assert exact.input_value() == str(kept or answer["job"]["train"]["micro_batch"]), typed


def test_a_search_that_failed_is_made_again(searching: Visitor) -> None:
    """A busy server leaves a slider without a mark; at the next change it is asked again."""
    refuse = {"name": "", "error": {"path": "", "message": "busy"}}
    searching.page.route("**/api/fit", lambda route: route.fulfill(status=503, json=refuse), times=3)
    searching.open(jobs.VLLM)
    searching.settle()
    context = searching.knob("Context")
    context.locator(".hint", has_text=re.compile("^tokens per sequence$")).wait_for()
    searching.drawn()
    context.get_by_label("exact value").fill("16384")
    context.get_by_label("exact value").press("Enter")
    found = ask(searching.base, "fit", {"job": jobs.VLLM, "grow": "serve.context"})["value"]
    context.get_by_role("button", name=f"{found:,}").wait_for()


def test_slider_of_a_job_beyond_its_end(visitor: Visitor) -> None:
    """A job may hold more than any slider reaches: the number stays what it is, and so does the answer."""
    job = _with(jobs.VLLM, "serve.sequences", 100_000)
    visitor.open(job)
    answer = answer_to(visitor.base, job)
    visitor.says(shown.word(answer), shown.sentence(answer))
    assert visitor.field("Concurrent sequences, exact value").input_value() == "100000"
    assert visitor.job == job
