"""The formula book as a whole: every entry is complete, and its printed text computes what its function computes."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.textbook import FORMULAS, Formula, evaluate, find_formula

BY_NAME = [pytest.param(f, id=f.name) for f in FORMULAS]


def printed_value(entry: Formula, values: dict[str, int]) -> Fraction:
    """The printed text, read as arithmetic over exact fractions."""
    text = entry.text.replace("·", "*")
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)", r"Fraction('\1')", text)
    scope = {"Fraction": Fraction, "ceil": lambda x: Fraction(math.ceil(x)), "min": min, **{k: Fraction(v) for k, v in values.items()}}
    return Fraction(eval(text, {"__builtins__": {}}, scope))


@pytest.mark.parametrize("entry", BY_NAME)
@given(data=st.data())
def test_the_printed_equation_is_what_the_function_computes(entry: Formula, data: st.DataObject) -> None:
    """For any sizes the printed equation equals the function, up to rounding shares up to whole bytes."""
    values = {letter: data.draw(st.integers(1, 4096), label=letter) for letter in entry.letters}
    if entry.name == "korthikanti-ends":
        values["p"] = 1  # the second term of the text holds for one stage alone
    computed, printed = entry.function(**values), printed_value(entry, values)
    assert printed <= computed < printed + 3 * max(1, values.get("L", 1))


@pytest.mark.parametrize("entry", BY_NAME)
def test_an_entry_is_complete(entry: Formula) -> None:
    """Every formula has a summary, a citation and the case in which it is wrong; every letter of it occurs in its text."""
    assert entry.summary.endswith(".") or ":" in entry.summary
    assert len(entry.citation.text) > 10
    assert entry.wrong_when.endswith(".")
    words = set(re.findall(r"[A-Za-z_]+", entry.text))
    assert set(entry.letters) <= words
    assert words - set(entry.letters) <= {"ceil", "min"}


def test_names_are_unique_and_found_in_any_spelling() -> None:
    """A name is found with underscores, spaces and capitals; no two entries share one."""
    assert len({f.name for f in FORMULAS}) == len(FORMULAS)
    assert find_formula("Korthikanti_TP SP").name == "korthikanti-tp-sp"


def test_an_unknown_name_gets_the_nearest() -> None:
    """A typo is answered with the names that are near."""
    with pytest.raises(BadInput, match="zero-3"):
        find_formula("zero-33")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"P": 1, "D": 1, "K": 12, "x": 1}, "no letter"),
        ({"P": 1, "D": 1}, "is missing"),
        ({"P": -1, "D": 1, "K": 12}, "0 or more"),
        ({"P": 1, "D": 0, "K": 12}, "divides by zero"),
        ({"P": 1.5, "D": 1, "K": 12}, "whole number"),
    ],
)
def test_wrong_letters_are_named(values: dict[str, object], message: str) -> None:
    """A letter that is unknown, missing, negative, zero under a fraction or no whole number gives one clear message."""
    with pytest.raises(BadInput, match=message):
        evaluate(find_formula("zero-3"), values)
