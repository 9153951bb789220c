"""A person in front of the page: opens it, types, drags, drops files, and reads what it says."""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import httpx
import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs import Job
    from playwright.sync_api import Locator, Page

    State = dict[str, Any]

DROP = """async ([files, zeros]) => {
  const carrier = new DataTransfer();
  for (const [name, text] of files) {
    carrier.items.add(new File([Uint8Array.from(atob(text), letter => letter.charCodeAt(0)), new Uint8Array(zeros)], name));
  }
  for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carrier, bubbles: true, cancelable: true }));
}"""
"""What a browser does when files are let go over the page."""


class Visitor:
    """One page of one server. Waits are made by looking for the words that the API's answer demands, never by the clock."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base

    def open(self, *jobs: Job, **state: Any) -> None:
        """The page with these jobs in its address; without one as a first visit."""
        self.page.goto(f"{self.base}/{fragment({'jobs': list(jobs), 'active': 0, **state}) if jobs else ''}")

    def settle(self) -> dict[str, Any]:
        """Waits until the page shows the answer to the job in its address, and gives that answer as the API gave it."""
        found = answer_to(self.base, self.job)
        self.says(shown.word(found), shown.sentence(found))
        return found

    def says(self, word: str, sentence: str) -> None:
        """Waits for this verdict of the active job."""
        self.page.wait_for_function(
            "([text, at]) => document.querySelectorAll('.verdict')[at]?.querySelector('.text').textContent === text", arg=[sentence, self.side]
        )
        assert self.verdict.locator(".word").inner_text().split(" ", 1)[1] == word

    def drawn(self, times: int = 1) -> None:
        """Waits until the pictures were drawn so often since the page was opened."""
        self.page.wait_for_function("times => Number(document.querySelector('.pictures').dataset.drawn ?? 0) >= times", arg=times)

    @property
    def times_drawn(self) -> int:
        """How often pictures were drawn since the page was opened."""
        return int(self.page.locator(".pictures").get_attribute("data-drawn") or 0)

    @property
    def state(self) -> State:
        """The state in the address; a first visit has none there."""
        hash_ = self.page.evaluate("location.hash")
        return decoded(hash_) if hash_ else {"jobs": [self.start], "active": 0}

    @property
    def start(self) -> Job:
        """The job of a first visit."""
        job: Job = self.page.evaluate("import('/static/js/examples.js').then(({ EXAMPLES }) => EXAMPLES[0].job)")
        return job

    @property
    def job(self) -> Job:
        """The job that the form edits."""
        state = self.state
        job: Job = state["jobs"][state["active"]]
        return job

    @property
    def side(self) -> int:
        """Which verdict is that of the active job."""
        state = self.state
        return int(state["active"]) if len(state["jobs"]) == 2 else 0

    @property
    def verdict(self) -> Locator:
        """The verdict of the active job."""
        return self.page.locator(".verdict").nth(self.side)

    @property
    def answer(self) -> Locator:
        """The right side of the page."""
        return self.page.locator("#answer")

    def field(self, label: str) -> Locator:
        """A field of the form by its label."""
        return self.page.locator("#ask").get_by_label(label, exact=True).and_(self.page.locator("input, select, textarea"))

    def knob(self, label: str) -> Locator:
        """A slider with its number and its hint."""
        return self.page.locator(".knob", has=self.page.locator(f"label:text-is('{label}')"))

    def choose(self, label: str, value: str) -> None:
        """Picks a value of a list."""
        self.field(label).select_option(value)

    def drop(self, files: Mapping[str, bytes], zeros: int = 0) -> None:
        """Lets files go over the page; each with so many bytes of 0 after its own."""
        self.page.evaluate(DROP, [[[name, base64.b64encode(content).decode()] for name, content in files.items()], zeros])

    def paste(self, text: str) -> None:
        """Opens the job as text, puts another one there and takes it."""
        self.page.get_by_text("Job file", exact=True).click()
        area = self.page.locator("#ask textarea")
        self.page.wait_for_function("() => document.querySelector('#ask textarea').value !== ''")
        area.fill(text)
        self.page.get_by_role("button", name="Use this job").click()

    def row(self, entry: str) -> Locator:
        """The button of a row of the ledger."""
        return self.page.locator("button.row", has_text=entry).first


def fragment(state: State) -> str:
    """A state as the end of an address."""
    return "#" + base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")


def decoded(hash_: str) -> State:
    """The state in the end of an address."""
    text = hash_.removeprefix("#")
    state: State = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return state


def ask(base: str, task: str, body: Any) -> Any:
    """What the API answers; a refusal too."""
    return _ask(base, task, json.dumps(body))


def answer_to(base: str, job: Job) -> dict[str, Any]:
    """The API's answer to a job, which has one."""
    answer: dict[str, Any] = ask(base, "estimate", job)
    assert "error" not in answer, answer
    return answer


@lru_cache(maxsize=500)
def _ask(base: str, task: str, body: str) -> Any:
    return httpx.post(f"{base}/api/{task}", content=body, headers={"content-type": "application/json"}, timeout=60).json()
