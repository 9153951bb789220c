"""Small pieces of Markdown."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by docs/generate.py from the code; do not edit. -->"

HIDE_SECTIONS = "---\nhide:\n  - toc\n---"
HIDE_PAGES = "---\nhide:\n  - navigation\n---"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table; `align` has an `l` or `r` for each column, left where it is shorter."""
    marks = ["---:" if side == "r" else "---" for side in align.ljust(len(titles), "l")]
    lines = [titles, marks, *([without_bars(cell) for cell in row] for row in rows)]
    return "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines)


def without_bars(cell: str) -> str:
    """The cell with its bars written as entities, since a bar ends a cell; entities mean something in HTML's code alone, not in Markdown's."""
    coded = re.sub(r"`([^`]*\|[^`]*)`", lambda found: f"<code>{html.escape(found[1])}</code>", cell)
    return coded.replace("|", "&#124;")


def block(text: str, kind: str = "") -> str:
    """Text that stays as it is."""
    return f"```{kind}\n{text}\n```"


def page(title: str, *parts: str, wide: bool = False) -> str:
    """A page that is written whole. A wide one has no list of its sections beside it, so that its tables have the room."""
    head = [HIDE_SECTIONS] if wide else []
    return "\n\n".join([*head, f"# {title}", NOTE, *parts]) + "\n"


def docstring(thing: object) -> str:
    """The cleaned docstring."""
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")


def code(text: str) -> str:
    """Text in the typeface of code; an empty one stays empty."""
    return f"`{text}`" if text else ""
