r"""Formulas of the ledger and the formula book as TeX, for KaTeX: `2·n·h` becomes `2 \cdot n \cdot h`, `(8·V·h)/D` becomes `\frac{8 \cdot V \cdot h}{D}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEEPEST = 40
"""Parentheses inside parentheses; a text beyond it is shown as it is."""

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([^\W\d]\w*)|(≤|≥|<=|>=|==|[-+−·×*/^(),=<>]))")
_OPERATORS = {
    "+": "+",
    "-": "-",
    "−": "-",
    "·": r"\cdot",
    "*": r"\cdot",
    "×": r"\times",
    "=": "=",
    "==": "=",
    "<": "<",
    ">": ">",
    "≤": r"\le",
    "≥": r"\ge",
    "<=": r"\le",
    ">=": r"\ge",
}
_LOOSE = frozenset({"+", "-", "−", "=", "==", "<", ">", "≤", "≥", "<=", ">="})
_TIGHT = frozenset({"·", "×", "*", "/"})
_JOINING = frozenset({"if", "else", "for", "of", "per", "where", "and", "or"})
"""Words that stand between two terms."""
_BRACKETS = {"ceil": (r"\lceil", r"\rceil"), "floor": (r"\lfloor", r"\rfloor")}
_FUNCTIONS = {"max": r"\max", "min": r"\min", "log2": r"\log_2", "log": r"\log", "sum": r"\sum"}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def tex(formula: str) -> str:
    """The formula in its letters. A text that is no formula comes out as upright text; nothing is raised."""
    return tex_numbers(formula, {})


def tex_numbers(formula: str, symbols: Mapping[str, int]) -> str:
    """The formula with the numbers put in; a letter without a value stays. Nothing is raised."""
    try:
        reader = _Reader(formula, symbols)
        return reader.whole()
    except _NoFormulaError:
        return rf"\text{{{_escaped(formula)}}}"


class _NoFormulaError(Exception):
    """The text cannot be read as a formula."""


class _Reader:
    """Reads a formula from left to right: terms of factors of powers of atoms."""

    def __init__(self, formula: str, symbols: Mapping[str, int]) -> None:
        self.tokens = _tokens(formula)
        self.symbols = symbols
        self.at = 0
        self.depth = 0

    def whole(self) -> str:
        out = self.expression()
        if self.at < len(self.tokens):
            raise _NoFormulaError
        return out

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise _NoFormulaError
        self.at += 1
        return token

    def expression(self) -> str:
        out = self.product()
        while self.peek() in _LOOSE or self.peek() in _JOINING:
            token = self.take()
            joint = rf"\ \text{{{token}}}\ " if token in _JOINING else f" {_OPERATORS[token]} "
            out += joint + self.product()
        return out

    def product(self) -> str:
        """Factors. A fraction takes the one factor before the stroke: `4·V/D·h` is 4 times V/D times h."""
        if self.peek() in ("-", "−"):
            self.take()
            return "-" + self.product()
        out, last = "", self.power()
        while self.peek() in _TIGHT:
            sign = self.take()
            if sign == "/":
                last = rf"\frac{{{_without_brackets(last)}}}{{{_without_brackets(self.power())}}}"
            else:
                out += f"{last} {_OPERATORS[sign]} "
                last = self.power()
        return out + last

    def power(self) -> str:
        base = self.atom()
        if self.peek() != "^":
            return base
        self.take()
        return f"{{{base}}}^{{{_without_brackets(self.power())}}}"

    def atom(self) -> str:
        word = self.take()
        if word == "(":
            return _in_brackets(self.inside())
        if word[0].isdecimal():
            return _number(word)
        if not (word[0].isalpha() or word[0] == "_"):
            raise _NoFormulaError
        if self.peek() == "(" and word not in self.symbols:
            return self.call(word)
        value = self.symbols.get(word)
        return _word(word) if value is None else _number(str(value)) if value >= 0 else _in_brackets("-" + _number(str(-value)))

    def call(self, name: str) -> str:
        self.take("(")
        inside = self.inside()
        if name in _BRACKETS:
            left, right = _BRACKETS[name]
            return rf"\left{left} {inside} \right{right}"
        return f"{_FUNCTIONS.get(name) or _upright(name)}{_in_brackets(inside)}"

    def inside(self) -> str:
        """What stands in brackets, with the closing one taken; commas part arguments."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise _NoFormulaError
        out = self.expression()
        while self.peek() == ",":
            self.take()
            out += ", " + self.expression()
        self.take(")")
        self.depth -= 1
        return out


def _tokens(formula: str) -> list[str]:
    tokens, at = [], 0
    text = formula.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _NoFormulaError
        tokens.append(match[1] or match[2] or match[3])
        at = match.end()
    return tokens


_OPEN, _CLOSE = r"\left(", r"\right)"


def _in_brackets(inside: str) -> str:
    return f"{_OPEN}{inside}{_CLOSE}"


def _without_brackets(text: str) -> str:
    """A fraction and an exponent hold together without the brackets around the whole of them."""
    if not (text.startswith(_OPEN) and text.endswith(_CLOSE)):
        return text
    inside = text[len(_OPEN) : -len(_CLOSE)]
    depth = 0
    for match in re.finditer(r"\\left|\\right", inside):
        depth += 1 if match[0] == r"\left" else -1
        if depth < 0:
            return text
    return inside


def _number(digits: str) -> str:
    """`4096` -> `4{,}096`: without the braces TeX sets a space behind the comma."""
    whole, point, rest = digits.partition(".")
    return f"{int(whole):,}".replace(",", "{,}") + point + rest if len(whole) <= 300 else digits


def _word(word: str) -> str:
    """`h`; `r_kv` with kv below the line; a word of several letters is upright."""
    head, *below = [part for part in word.split("_") if part] or [""]
    name = head if len(head) == 1 else _upright(head)
    if not below:
        return name
    return f"{name}_{{{','.join(part if len(part) == 1 else _upright(part) for part in below)}}}"


def _upright(word: str) -> str:
    return rf"\mathrm{{{_escaped(word)}}}"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in text)
