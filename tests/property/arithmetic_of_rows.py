"""A calculator for the formulas of ledger rows, written apart from the package: a reader with a pocket calculator gets the same number."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "ceil": lambda x: Fraction(math.ceil(x)),
    "floor": lambda x: Fraction(math.floor(x)),
    "min": min,
    "max": max,
}
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def calculate(formula: str, symbols: Mapping[str, int]) -> Fraction:
    """The value of a formula with numbers for its letters. Raises ValueError for anything but arithmetic, KeyError for a letter without a number."""
    text = formula.replace("·", "*").replace("×", "*").replace("²", "**2").replace("−", "-")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is no arithmetic: {error}") from None
    return _value(tree.body, symbols)


def _value(node: ast.expr, symbols: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(str(node.value))
        case ast.Name():
            return Fraction(symbols[node.id])
        case ast.BinOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_value(node.left, symbols), _value(node.right, symbols))
        case ast.Call(func=ast.Name(), keywords=[]) if node.func.id in FUNCTIONS:
            return FUNCTIONS[node.func.id](*(_value(argument, symbols) for argument in node.args))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")
