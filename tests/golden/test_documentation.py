"""The documentation that is taken from the code: reference pages, and the output of commands in README and guides."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/reference/job-file.md", "docs/reference/commands.md", "docs/reference/formulas.md", "README.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    """The pages as docs/generate.py writes them now."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: dict[Path, str] = module.pages()
    return written


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_up_to_date(pages: dict[Path, str], page: str) -> None:
    """The committed page says what the code says today; `make docs` writes it."""
    assert (ROOT / page).read_text(encoding="utf-8") == pages[ROOT / page]


def test_no_page_is_forgotten(pages: dict[Path, str]) -> None:
    """Every page that the generator writes is compared."""
    assert {ROOT / page for page in PAGES} == set(pages)
