"""The offline report: complete, small, safe with hostile names, and asking for nothing from anywhere."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from made_answers import JOB, answer, entry, rank
from msgspec.structs import replace

from everybyte.estimator import estimate
from everybyte.job import Job, load, read_job
from everybyte.ledger.answer import Answer
from everybyte.report.html import report
from everybyte.report.html.tags import element, joined

pytest.importorskip("vl_convert")

EXAMPLES = {path.stem: path for path in sorted(Path(__file__).parents[2].glob("examples/**/*.yaml")) if path.parent.name != "configs"}
MOST_BYTES = 2_500_000
MADE_JOB = read_job(JOB)


@cache
def answered(name: str) -> tuple[Answer, Job, str]:
    job = load(str(EXAMPLES[name])).job()
    made = estimate(job)
    return made, job, report(made, job)


class Outline(HTMLParser):
    """Elements with their attributes, text outside of style, and whether every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """The innermost element ends."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if "style" not in self.open:
            self.text += data


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_loaded(name: str) -> None:
    """No element loads anything, no script runs, the style names no address; the only addresses are links for a reader and names of SVG's spaces."""
    page = Outline(answered(name)[2])
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "embed", "image", "use", "base", "form"}
    for tag, attributes in page.elements:
        assert not [key for key in attributes if key in ("src", "srcset", "data", "poster", "style") or key.startswith("on")], (tag, attributes)
        address = attributes.get("href") or "#"
        assert address.startswith("#") or (tag == "a" and address.startswith("https://"))
    style = re.search(r"<style>(.*?)</style>", answered(name)[2], re.DOTALL)
    assert style is not None
    assert not re.search(r"@import|url\(|http", style[1])
    assert page.open == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_size(name: str) -> None:
    """Every example's report is below the bound, that of sixteen stages too."""
    assert len(answered(name)[2].encode()) <= MOST_BYTES


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_row_is_there(name: str) -> None:
    """Each row of each kind of rank stands there with its bytes, its formula, the numbers and its source; each setting with its origin; the job file."""
    made, job, text = answered(name)
    assert text.count('role="rowheader"') == sum(len(kind.ledger) for kind in made.ranks)
    plain = unescape(text)
    for kind in made.ranks:
        for row in kind.ledger:
            for wanted in (f">{row.id}<", f"{row.bytes:,} bytes", f"<code>{row.formula}</code>", row.numbers()):
                assert wanted in plain, (row.id, wanted)
            assert row.source.partition(" <")[0] in plain
    for setting in made.settings:
        assert setting.key in plain
        assert setting.origin in plain
    from everybyte.job import job_to_text

    assert job_to_text(job) in plain
    for warning in (*made.warnings, *made.assumptions):
        assert warning in plain


def test_the_verdict_comes_first() -> None:
    """The one first heading is the verdict; headings go down by one level."""
    page = Outline(answered("llama-3.1-8b-lora-24gb")[2])
    headings = [tag for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    assert all(int(b[1]) - int(a[1]) <= 1 for a, b in pairwise(headings))
    assert page.text.index("close, 3.1 GiB left") < page.text.index("Pictures")


def test_pictures_have_words_and_both_themes() -> None:
    """Each picture is there once for a light and once for a dark page, and says what it shows; tables have headings and the page a language."""
    page = Outline(answered("llama-3.1-405b-megatron")[2])
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert [p["class"] for p in pictures] == ["light", "dark"] * 4
    assert all((p["aria-label"] or "").startswith(("Memory", "Peak memory", "Places")) for p in pictures)
    assert sum(tag == "svg" for tag, _ in page.elements) == 8
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == sum(tag == "thead" for tag, _ in page.elements) > 0
    assert ("html", {"lang": "en"}) in page.elements


HOSTILE = "<script>alert(1)</script>\"'&</title></style></svg><img src=x onerror=alert(1)>"


def test_hostile_names_are_text() -> None:
    """A name, a row, a formula, a source, a label and a warning that look like HTML come out as text."""
    rows = (entry(f"weights/{HOSTILE}", "parameter", 2**31, formula=HOSTILE), entry("weights/plain", "parameter", 2**31))
    kinds = (rank(HOSTILE, ledger=rows), rank("other", ledger=rows))
    made = answer(name=HOSTILE, ranks=kinds, warnings=(HOSTILE,), assumptions=(HOSTILE,))
    page = Outline(report(made, MADE_JOB))
    assert not [tag for tag, _ in page.elements if tag in ("script", "img")]
    assert page.text.count("alert(1)") >= 5
    assert page.open == []


def test_sources_are_links_that_send_nothing() -> None:
    """The address of a source is a link for the reader that tells the other side nothing of the page; only https is."""
    rows = (*rank().ledger,)
    changed = replace(rows[0], source="Paper 2024 <https://arxiv.org/abs/1>, eq. 3")
    bad = replace(rows[1], source="x <javascript:alert(1)>")
    page = Outline(report(answer(ranks=(rank(ledger=(changed, bad, *rows[2:])),)), MADE_JOB))
    links = [attributes for tag, attributes in page.elements if tag == "a" and not (attributes["href"] or "").startswith("#")]
    assert links == [{"href": "https://arxiv.org/abs/1", "rel": "noreferrer"}]
    assert "Paper 2024 https://arxiv.org/abs/1, eq. 3" in page.text


def test_without_the_job_the_filled_in_one_is_shown() -> None:
    """Whoever has only the answer gets a report with all defaults filled in."""
    made, _, _ = answered("llama-3.1-8b-lora-24gb")
    assert "kbit_prep" in report(made) or "lora_dropout" in report(made)


def test_elements() -> None:
    """Text is escaped once, attributes too, and what is HTML stays."""
    assert element("p", "a<b", element("br"), class_='x"y', aria_label="<", hidden=True, title=None) == (
        '<p class="x&quot;y" aria-label="&lt;" hidden>a&lt;b<br></p>'
    )
    assert joined("&", element("i", "&")) == "&amp;<i>&amp;</i>"
