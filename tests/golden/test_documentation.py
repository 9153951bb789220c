"""The documentation: its code runs, its links lead somewhere. That its pages and pictures say what the code says today is checked by `make docs-check`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from everybyte import read_job
from everybyte.ledger.entry import CATEGORIES
from everybyte.measure.accuracy import summary_of
from everybyte.measure.shipped import shipped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
FRAGMENT = "part"
"""Stands in the title of a block that shows a part of a job: ```yaml title="a part of a job" """


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, kind: str) -> list[tuple[str, str]]:
    """(rest of the info string, text) of the fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\b[ ]*([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_a_page_that_drifted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs-check` names a page that does not hold what the code says, and one that is missing, but none that is as written."""
    monkeypatch.syspath_prepend(str(DOCS))
    from generate import out_of_date

    as_it_is = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    assert out_of_date({DOCS / "accuracy.md": as_it_is, ROOT / "README.md": "", DOCS / "missing.md": ""}) == ["README.md", "docs/missing.md"]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_accuracy_line_is_that_of_the_table(name: str) -> None:
    """The README names the errors of all measured figures, not of a selection: count, median and 90th percentile of the shipped table."""
    whole = summary_of("all", "", shipped().ours)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert whole.median is not None
    assert whole.p90 is not None
    assert [words for words in (f"{whole.asked:,}", f"{100 * whole.median:.1f} %", f"{100 * whole.p90:.1f} %") if words not in text] == []


def test_the_readme_is_short() -> None:
    """What a reader needs first fits into 120 lines; all else is a click away."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture of a page names a file or folder that is there; other addresses are well formed (there may be no network)."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("#")]
    inside = [target.partition("#")[0] for target in targets if "://" not in target]
    assert [target for target in inside if not (page.parent / target).exists()] == []
    outside = [urlsplit(target) for target in [*targets, *re.findall(r"<(\w+://[^>\s]+)>", text)] if "://" in target]
    assert [one.geturl() for one in outside if one.scheme != "https" or "." not in one.netloc] == []


def test_the_site_is_built_without_a_finding(tmp_path: Path) -> None:
    """The site builds strictly: every page of the navigation is there, and every link and anchor between pages leads somewhere."""
    build(tmp_path)
    site = tmp_path / "site"
    assert {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")} == {
        path.relative_to(site).with_suffix("") for path in site.rglob("*.html") if path.name != "404.html"
    }
    assert not list(site.rglob("*.py")), "the generator is no part of the site"


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    """No page is reached by search alone."""
    config = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert [name_of(page) for page in DOCS.rglob("*.md") if f'"{page.relative_to(DOCS)}"' not in config] == []


def test_the_site_asks_nothing_of_other_hosts(tmp_path: Path) -> None:
    """No page loads a font, a script, a style or a picture from another host."""
    build(tmp_path)
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded == [], page


def build(folder: Path) -> None:
    """Builds the site of the working tree inside a folder of its own."""
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "zensical.toml").write_text((ROOT / "zensical.toml").read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, check=False, text=True, capture_output=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


PYTHON = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", PYTHON, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page, one after the other as one script, run without an error where the repository's examples are at hand."""
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    script = "\n".join(text for _, text in blocks(page, "python"))
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, check=False, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


JOBS = [pytest.param(text, id=f"{name_of(page)}-{i}") for page in PAGES for i, (info, text) in enumerate(blocks(page, "yaml")) if FRAGMENT not in info]


@pytest.mark.parametrize("text", JOBS)
def test_yaml_blocks_are_jobs(text: str, tmp_path: Path) -> None:
    """Every YAML block is a job that is read without an error; a part of one is marked in its info string."""
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_job(path).model


@pytest.mark.parametrize("path", sorted((DOCS / "jobs").glob("*.yaml")), ids=name_of)
def test_jobs_of_the_pictures_are_read(path: Path) -> None:
    """Every job behind a picture is a job, and a page or a picture uses it."""
    assert read_job(path).model
    users = [*DOCS.rglob("*.md"), DOCS / "writers" / "pictures.py"]
    assert any(f"docs/jobs/{path.name}" in user.read_text(encoding="utf-8") for user in users)


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_a_page_with_a_picture(category: str) -> None:
    """A page for each category: what sets its size, what changes it, where others show it, mistakes, in 150 to 450 words, with a picture."""
    name = category.replace("_", "-")
    text = (DOCS / "concepts" / "categories" / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == [
        "What sets its size",
        "What changes it, and the price",
        "Where others show it",
        "Common mistakes",
    ]
    assert f"(../../pictures/{name}.svg)" in text
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert 150 <= len(prose.split()) <= 450


def test_pictures_are_small_and_used() -> None:
    """Every picture is on a page, in both themes, and the whole of them is light enough for a repository."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((DOCS / "pictures").glob("*.svg"))
    light = {path.stem for path in pictures if not path.stem.endswith("-dark")}
    assert {f"{stem}-dark" for stem in light} == {path.stem for path in pictures} - light
    assert [stem for stem in sorted(light) if f"pictures/{stem}.svg" not in text] == []
    assert sum(path.stat().st_size for path in pictures) < 2_000_000
