"""The pages of the command line and of the formula book."""

from __future__ import annotations

import inspect
import sys

from everybyte.cli.app import COMMANDS
from everybyte.textbook import FORMULAS, LETTERS, Formula
from writers.console import output_of
from writers.markdown import block, page, table

FORMULAS_INTRODUCTION = """\
The published closed equations, as their papers print them, and the case in which each misleads. `everybyte formulas NAME` prints one."""


def commands_page() -> str:
    """The help of every command."""
    return page("Commands", block(output_of("everybyte --help")), *(f"## {name}\n\n{block(output_of(f'everybyte {name} --help'))}" for name in COMMANDS))


def formulas_page() -> str:
    """The formula book."""
    parts = [FORMULAS_INTRODUCTION, table(("letter", "meaning"), LETTERS.items())]
    for chapter in dict.fromkeys(entry.chapter for entry in FORMULAS):
        parts.append(f"## {chapter}\n\n{chapter_text(chapter)}")
        parts += [formula_text(entry) for entry in FORMULAS if entry.chapter == chapter]
    return page("The formula book", *parts)


def chapter_text(chapter: str) -> str:
    """The docstring of the chapter's module."""
    return inspect.cleandoc(sys.modules[f"everybyte.textbook.{chapter}"].__doc__ or "")


def formula_text(entry: Formula) -> str:
    """One equation with its source and limits."""
    return f"### {entry.name}\n\n`{entry.text}` ({entry.unit})\n\n{entry.summary}\n\n- Source: {entry.citation}\n- Misleads: {entry.wrong_when}"
