"""Sums and products of whole numbers and letters, as shapes write them: `a·(d_n+d_v)`, `n/4`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\d+|[A-Za-z_]\w*|[-+·/()]")


def arithmetic(text: str, values: Mapping[str, int]) -> int:
    """The value of a formula with `values` for its letters. Raises KeyError for a letter without a value, ValueError where a division leaves a rest."""
    return _sum(_TOKEN.findall(text)[::-1], values)


def _sum(tokens: list[str], values: Mapping[str, int]) -> int:
    value = _product(tokens, values)
    while tokens and tokens[-1] in "+-":
        value += _product(tokens, values) if tokens.pop() == "+" else -_product(tokens, values)
    return value


def _product(tokens: list[str], values: Mapping[str, int]) -> int:
    value = _factor(tokens, values)
    while tokens and tokens[-1] in "·/":
        if tokens.pop() == "·":
            value *= _factor(tokens, values)
        else:
            value = _divide(value, _factor(tokens, values))
    return value


def _divide(a: int, b: int) -> int:
    if a % b:
        raise ValueError(f"{b} does not divide {a}")
    return a // b


def _factor(tokens: list[str], values: Mapping[str, int]) -> int:
    word = tokens.pop()
    if word != "(":
        return int(word) if word.isdigit() else values[word]
    value = _sum(tokens, values)
    tokens.pop()  # the closing bracket
    return value
