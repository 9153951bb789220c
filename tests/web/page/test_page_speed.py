"""Weight and speed: what is transferred at first, whom the page talks to, and how soon it answers."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import shared_jobs as jobs
from visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Response

MIB = 2**20
MOST_BYTES = 2.5 * MIB
FIRST_ANSWER_MS = 1500
CHANGE_MS = 100
CHANGES = """async count => {
  const field = document.querySelector('.knob input[type=range]');
  const text = () => document.querySelector('.verdict .text').textContent;
  const times = [];
  for (let change = 0; change < count; change++) {
    await new Promise(done => setTimeout(done, 150));
    const before = text(), begin = performance.now();
    field.value = 1 + change % 2;
    field.dispatchEvent(new Event('input', { bubbles: true }));
    while (text() === before) await new Promise(requestAnimationFrame);
    times.push(performance.now() - begin);
  }
  return times;
}"""


def test_weight_and_hosts(browser: Browser, server: str) -> None:
    """All that a first visit loads, with its pictures and a formula, is at most 2.5 MiB before compression, and all of it comes from this server."""
    context = browser.new_context()
    page = context.new_page()
    responses: list[Response] = []
    page.on("response", lambda response: responses.extend([response]))
    visitor = Visitor(page, server)
    page.goto(server)
    visitor.settle()
    visitor.drawn()
    page.wait_for_function("() => globalThis.katex !== undefined")
    visitor.row("weights").click()
    page.locator(".explanation .katex").first.wait_for()
    page.evaluate("() => document.fonts.ready.then(() => true)")
    assert {response.url.split("/api")[0].split("/static")[0].rstrip("/") for response in responses} == {server}
    assert {response.status for response in responses} == {200}
    sizes = {response.url.removeprefix(server): len(response.body()) for response in responses}
    assert sizes["/static/vendor/vega/vega.min.js"] > 400_000, "the bytes are counted as they are before compression"
    assert sum(sizes.values()) <= MOST_BYTES
    print(f"first load: {sum(sizes.values()) / MIB:.2f} MiB in {len(sizes)} responses")
    context.close()


def _best(measure: Callable[[], float], limit: float, tries: int) -> float:
    """The least of up to so many measurements, until one is within the limit: what else runs on the machine only ever makes them longer."""
    least = float("inf")
    for _ in range(tries):
        least = min(least, measure())
        if least <= limit:
            break
    return least


def test_first_answer(browser: Browser, server: str) -> None:
    """A browser that was never here shows a verdict within 1.5 s of the start of the navigation."""

    def first_answer() -> float:
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script(
            "new MutationObserver(() => { if (document.querySelector('.verdict .word')) globalThis.answered ??= performance.now(); })"
            ".observe(document, { childList: true, subtree: true });"
        )
        page.goto(server)
        taken = float(page.wait_for_function("() => globalThis.answered").json_value())
        context.close()
        return taken

    taken = _best(first_answer, FIRST_ANSWER_MS, 5)
    print(f"first answer after {taken:.0f} ms")
    assert taken <= FIRST_ANSWER_MS


def test_a_change_is_answered(searching: Visitor) -> None:
    """From the move of a slider to another verdict it takes at most 100 ms: the median of 20 changes on a server that is warm."""
    searching.open(jobs.SMALL)
    searching.settle()
    searching.drawn()
    searching.knob("Sequence length").get_by_role("button").wait_for()
    taken = _best(lambda: statistics.median(searching.page.evaluate(CHANGES, 20)), CHANGE_MS, 4)
    print(f"a change is answered after {taken:.0f} ms")
    assert taken <= CHANGE_MS
