"""The libraries of the page are those that the script fetched: nobody edits them by hand, none is without its licence."""

from __future__ import annotations

import hashlib
import json

import pytest

from everybyte.web.pages import STATIC

VENDOR = STATIC / "vendor"
PACKAGES = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
FREE = {"MIT", "BSD-3-Clause", "BSD-2-Clause", "ISC", "Apache-2.0"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["name"])
def test_files_are_as_fetched(package: dict[str, object]) -> None:
    """Each file has the SHA-256 that was recorded when it was fetched; licence, version and reason are there."""
    files: dict[str, str] = package["files"]  # type: ignore[assignment]  # as scripts/vendor.py writes it
    assert {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in files} == files
    assert any("LICENSE" in name for name in files)
    assert package["licence"] in FREE
    assert str(package["version"]).count(".") == 2
    assert package["why"]


def test_nothing_else_lies_there() -> None:
    """Every file in the folder is one of a recorded package."""
    recorded = {name for package in PACKAGES for name in package["files"]}
    assert {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()} == {*recorded, "vendor.json"}
