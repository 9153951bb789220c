"""Writes what the documentation can take from the code, so that it cannot drift: `make docs`. `make docs-check`, a step of CI, only compares both.

Most pages of docs/reference and the page of accuracy are written whole. On all other pages, and in README.md, the output of each `$ everybyte ...` of a
console block is run again. Pictures are drawn where what they show has changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from writers.accuracy import accuracy_page
from writers.catalogue import gpus_page, models_page
from writers.commands import commands_page, formulas_page
from writers.console import ROOT, with_output
from writers.defaults import defaults_page
from writers.figures import figures_page
from writers.http_api import http_page
from writers.job_file import job_page
from writers.job_schema import job_schema
from writers.measured import measured
from writers.pictures import drawings, redraw, stale
from writers.python_api import python_page
from writers.read_figures import read_figures_page
from writers.refusals import refusals_page
from writers.releases import releases_page

from everybyte.measure.shipped import FILE, Shipped, text_of

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
TABLE = Path(FILE)
"""Predicted against measured, which `everybyte truth` reads."""


def main(arguments: list[str]) -> int:
    """Writes every page and every picture that is not up to date; with `--check`, names them and writes nothing."""
    if arguments == ["--check"]:
        return check()
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    for path in redraw():
        print(f"drew {path.relative_to(ROOT)}")
    return 0


def check() -> int:
    """1 if a page or a picture is not what the code says today."""
    old = out_of_date(pages()) + [str(drawing.path.relative_to(ROOT)) for drawing in stale(drawings())]
    for name in old:
        print(f"{name} is out of date: run `make docs`, read the difference, commit it", file=sys.stderr)
    return 1 if old else 0


def out_of_date(wanted: dict[Path, str]) -> list[str]:
    """Names of the pages that are missing or hold something else."""
    return [str(path.relative_to(ROOT)) for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def pages() -> dict[Path, str]:
    """All pages as they should be, by path."""
    return whole_pages() | pages_with_output()


def whole_pages() -> dict[Path, str]:
    """The pages that are written whole."""
    reference = {
        "job-file.md": job_page(),
        "job.schema.json": job_schema(),
        "commands.md": commands_page(),
        "defaults.md": defaults_page(),
        "formulas.md": formulas_page(),
        "figures.md": figures_page(measured()),
        "python.md": python_page(),
        "http-api.md": http_page(),
        "models.md": models_page(),
        "gpus.md": gpus_page(),
        "refusals.md": refusals_page(),
        "releases.md": releases_page(),
        "what-is-read.md": read_figures_page(),
    }
    table = Shipped(ours=measured().comparisons, textbook=measured().textbook)
    return {TABLE: text_of(table), DOCS / "accuracy.md": accuracy_page(measured())} | {REFERENCE / name: text for name, text in reference.items()}


def pages_with_output() -> dict[Path, str]:
    """All other pages, with the output of their commands as it is now."""
    concepts = (DOCS / "concepts").rglob("*.md")
    written = {DOCS / "accuracy.md"}
    guides = (*(DOCS / "guides").glob("*.md"), *(DOCS / "zh").glob("*.md"))
    paths = [ROOT / "README.md", ROOT / "README.zh.md", *sorted({*DOCS.glob("*.md"), *guides, *concepts} - written)]
    return {path: with_output(path.read_text(encoding="utf-8")) for path in paths}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
