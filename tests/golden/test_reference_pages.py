"""The generated pages of docs/reference."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    """The pages as docs/generate.py writes them now."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The generated pages by file name."""
    return generated()


@pytest.mark.parametrize("name", ["job-file.md", "commands.md", "formulas.md"])
def test_a_reference_page_is_up_to_date(pages: dict[str, str], name: str) -> None:
    """The committed page is what the code says today; `make docs` writes it."""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == pages[name]
