"""`everybyte formulas [NAME] [LETTER=VALUE...]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everybyte.basics.errors import BadInput
from everybyte.cli.ending import FITS
from everybyte.cli.options import as_json

if TYPE_CHECKING:
    from everybyte.textbook.formula import Formula


@click.command()
@click.argument("name", required=False)
@click.argument("values", nargs=-1, metavar="[LETTER=VALUE]...")
@as_json
def command(name: str | None, values: tuple[str, ...], as_json: bool) -> int:
    """Published formulas with citation, symbols and caveats. With values for all symbols: the result.

    NAME is a formula, or a word to search for.

    \b
    everybyte formulas
    everybyte formulas zero
    everybyte formulas zero-2
    everybyte formulas zero-2 P=7e9 K=12 D=8
    """  # noqa: D301  # \\b is click's mark for lines that stay as they are
    from everybyte.textbook import FORMULAS

    found = [entry for entry in FORMULAS if name is None or entry.name == name.casefold()] or _search(FORMULAS, name or "")
    numbers = dict(_number(value) for value in values)
    if numbers and len(found) != 1:
        raise BadInput("formula", f"values need one formula, and {name!r} finds {', '.join(entry.name for entry in found)}")
    result = _evaluate(found[0], numbers) if numbers else None
    if as_json:
        from everybyte.report.as_json import formula_object, line

        for entry in found:
            click.echo(line(formula_object(entry, numbers, result)))
        return FITS
    from everybyte.report.catalogue import show_formula, show_formulas
    from everybyte.report.console import open_console

    console = open_console()
    if len(found) == 1:
        show_formula(console, found[0], numbers, result)
    else:
        show_formulas(console, found)
    return FITS


def _search(book: tuple[Formula, ...], word: str) -> list[Formula]:
    from everybyte.textbook import find_formula

    folded = word.casefold()
    by_name = [entry for entry in book if folded in entry.name or folded == entry.chapter]
    by_text = [entry for entry in book if folded in f"{entry.summary} {entry.citation}".casefold()]
    return by_name or by_text or [find_formula(word)]


def _evaluate(entry: Formula, numbers: dict[str, int]) -> int:
    from everybyte.textbook import evaluate

    return evaluate(entry, dict(numbers))


def _number(text: str) -> tuple[str, int]:
    """`P=7e9` -> ("P", 7000000000)."""
    letter, equals, value = text.partition("=")
    try:
        number = float(value) if "e" in value.casefold() else int(value.replace("_", "").replace(",", ""))
        whole = int(number)
    except (ValueError, OverflowError):
        raise BadInput(letter, f"{text!r} is not LETTER=VALUE with a whole number, such as P=7e9") from None
    if not equals or whole != number:
        raise BadInput(letter, f"{text!r} is not LETTER=VALUE with a whole number, such as P=7e9")
    return letter, whole
