"""The definition of the container image: what it copies is there and comes through, what it runs exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COPIED = [name for line in re.findall(r"^COPY (.*)$", STEPS, re.MULTILINE) for name in line.split()[:-1]]


def test_what_is_copied_is_there_and_let_through() -> None:
    """Every copied file exists, and .dockerignore, which leaves everything out, takes it in again."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line.startswith("!")}
    assert [name for name in COPIED if not (ROOT / name).exists()] == []
    assert set(COPIED) <= let_through


def test_the_build_has_all_that_it_reads() -> None:
    """What pyproject.toml names for the build is copied: readme, licence, build hook, sources."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {"README.md", "LICENSE", "src", *(["hatch_build.py"] if "hooks.custom" in project else [])}
    assert wanted <= set(COPIED)


def test_it_does_not_run_as_root_and_starts_the_page() -> None:
    """The process has a user of its own, and the command is the page without a browser."""
    assert re.search(r"^USER everybyte$", STEPS, re.MULTILINE)
    assert '"everybyte", "ui", "--host", "0.0.0.0", "--no-browser"' in STEPS
