"""Formulas as TeX: every formula of the product is one, and no text of a job becomes a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.estimator import estimate
from everybyte.report.tex import tex, tex_numbers
from everybyte.textbook import FORMULAS

EXAMPLES = sorted(path for path in Path(__file__).parents[2].glob("examples/**/*.yaml") if path.parent.name != "configs")
COMMANDS = {"cdot", "times", "frac", "left", "right", "lceil", "rceil", "lfloor", "rfloor", "mathrm", "max", "min", "log_2", "le", "ge"}


def balanced(text: str) -> bool:
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            return False
    return depth == 0 and text.count(r"\left") == text.count(r"\right")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("2·n·h", r"2 \cdot n \cdot h"),
        ("(8·4·h)/D", r"\frac{8 \cdot 4 \cdot h}{D}"),
        ("4·V/D·h + rounding", r"4 \cdot \frac{V}{D} \cdot h + \mathrm{rounding}"),
        ("4·ceil((r_kv+d_r)/128)", r"4 \cdot \left\lceil \frac{r_{\mathrm{kv}} + d_{r}}{128} \right\rceil"),
        ("(a + b)·(c - d)/(e·f)", r"\left(a + b\right) \cdot \frac{c - d}{e \cdot f}"),
        ("2^30 × n_h", r"{2}^{30} \times n_{h}"),
        ("max(a, min(b, log2(8)))", r"\max\left(a, \min\left(b, \log_2\left(8\right)\right)\right)"),
        ("top_k_2·67108864", r"\mathrm{top}_{k,2} \cdot 67{,}108{,}864"),
        ("a if b > 2 else c", r"a\ \text{if}\ b > 2\ \text{else}\ c"),
        ("-x/y", r"-\frac{x}{y}"),
    ],
)
def test_forms(formula: str, expected: str) -> None:
    """Products, fractions, brackets, powers, functions and words are set as a book would set them."""
    assert tex(formula) == expected


def test_numbers_put_in() -> None:
    """Each letter with a value becomes its number, thousands parted; one without stays; a negative one keeps its sign in brackets."""
    assert tex_numbers("2·n·h/D + x", {"n": 4096, "h": 16384, "D": 32}) == r"2 \cdot 4{,}096 \cdot \frac{16{,}384}{32} + x"
    assert tex_numbers("a·b", {"a": 2, "b": -1}) == r"2 \cdot \left(-1\right)"


@pytest.mark.parametrize("hostile", [r"\input{x}", "a $ b", r"n·\def", "a}{b", "%", "x ~ y", "((((", "2··3", "", "a b", "(" * 500 + "1" + ")" * 500])
def test_no_formula_is_text(hostile: str) -> None:
    """What cannot be read as a formula is upright text with every special character escaped."""
    out = tex(hostile)
    assert out.startswith(r"\text{")
    assert balanced(out)
    assert not set(re.findall(r"\\([A-Za-z]+)", out)) - {"text", "textbackslash", "textasciitilde", "textasciicircum"}


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=3), st.integers()))
def test_never_raises(formula: str, symbols: dict[str, int]) -> None:
    """Any text with any symbols gives TeX with balanced braces."""
    assert balanced(tex_numbers(formula, symbols))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_row_of_the_examples_is_a_formula(path: Path) -> None:
    """No row of an example's ledger is shown as mere text, and only known commands are used."""
    for rank in estimate(str(path)).ranks:
        for entry in rank.ledger:
            for out in (tex(entry.formula), tex_numbers(entry.formula, entry.symbols)):
                assert balanced(out)
                assert not out.startswith(r"\text"), entry.formula
                assert set(re.findall(r"\\([A-Za-z]+(?:_2)?)", out)) <= COMMANDS


def test_every_formula_of_the_book_is_one() -> None:
    """The published equations are read too."""
    for formula in FORMULAS:
        assert balanced(tex(formula.text))
        assert not tex(formula.text).startswith(r"\text"), formula.text
