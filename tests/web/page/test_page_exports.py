"""What a person takes away: job, answer, report, pictures."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import shared_jobs as jobs
import shown
import yaml
from visitor import Visitor, ask

if TYPE_CHECKING:
    from playwright.sync_api import Download


def _export(visitor: Visitor, title: str) -> tuple[str, bytes]:
    """Name and content of what an entry of the menu downloads."""
    visitor.page.locator("summary", has_text="Export").click()
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("button", name=title).click()
    assert not visitor.page.get_by_role("button", name=title).is_visible(), "the menu closes"
    return _content(download.value)


def _content(download: Download) -> tuple[str, bytes]:
    return download.suggested_filename, Path(download.path()).read_bytes()


def test_job_file(visitor: Visitor) -> None:
    """The job file, read again, gives the answer that the page shows; its name is the job's."""
    visitor.open(jobs.LORA)
    answer = visitor.settle()
    name, content = _export(visitor, "Job file (YAML)")
    assert name == "llama-3.1-8b-lora-on-one-rtx-4090.yaml"
    again = ask(visitor.base, "estimate", yaml.safe_load(content))
    assert (again["figures"], again["headroom"]) == (answer["figures"], answer["headroom"])


def test_answer(visitor: Visitor) -> None:
    """The answer is the object of the API, of the job that the form edits: B of a comparison, here."""
    visitor.open(jobs.TOO_LARGE, jobs.SMALL, active=1)
    answer = visitor.settle()
    name, content = _export(visitor, "Answer (JSON)")
    assert name == "small.json"
    assert json.loads(content) == answer


def test_report(visitor: Visitor) -> None:
    """The report is one HTML file with verdict and figures that opens offline and asks nobody for anything."""
    visitor.open(jobs.SMALL)
    answer = visitor.settle()
    name, content = _export(visitor, "Report")
    assert name == "small.html"
    assert len(content) <= 2.5 * 2**20
    context = visitor.page.context.browser.new_context(offline=True)  # type: ignore[union-attr]  # there is a browser
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_content(content.decode())
    assert shown.size(answer["hardware"]["capacity"] - answer["headroom"]) in page.inner_text("body")
    assert [url for url in asked if not url.startswith(("data:", "about:", "blob:"))] == []
    context.close()


@pytest.mark.parametrize("name", ["card", "phases", "places"])
def test_pictures(visitor: Visitor, name: str) -> None:
    """A picture downloads as SVG that parses and holds its labels, and as PNG of twice its width; both are named after the job."""
    visitor.open(jobs.SMALL)
    visitor.settle()
    visitor.drawn()
    figure = visitor.page.locator("figure", has=visitor.page.get_by_label(f"{name}: save as SVG"))
    with visitor.page.expect_download() as download:
        figure.get_by_role("button", name="SVG").click()
    file, content = _content(download.value)
    assert file == f"small-{name}.svg"
    root = ET.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = " ".join(text for text in root.itertext())
    assert "parameter" in texts
    assert figure.locator("h2").inner_text()[:20] in texts, "the saved picture has its title inside"
    with visitor.page.expect_download() as download:
        figure.get_by_role("button", name="PNG").click()
    file, content = _content(download.value)
    assert file == f"small-{name}.png"
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width == pytest.approx(2 * float(root.attrib["width"]), abs=2)
    assert height > 100
