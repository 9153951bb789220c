"""Arithmetic of the shell: 64-bit whole numbers, C's operators and their order."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(\d+#[\w@]+|0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?|\*\*|<<=|>>=|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|\+\+|--|[-+*/%<>=!~&|^?:(),])"
)
_BINARY = [("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%")]
_ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_DEEPEST = 40


class NotANumber(Exception):
    """The expression cannot be worked out: something of it is unknown, or bash would refuse it too."""


def evaluate(text: str, read: Callable[[str], str | None], write: Callable[[str, int], None]) -> int:
    """The value of an expression. `read` gives a variable's text (None: not known), `write` sets one.

    Raises NotANumber.
    """
    return _Evaluator(text, read, write, 0).all()


class _Evaluator:
    def __init__(self, text: str, read: Callable[[str], str | None], write: Callable[[str, int], None], depth: int) -> None:
        self.read, self.write, self.depth = read, write, depth
        self.tokens = _tokens(text)
        self.pos = 0
        self.live = True
        """False in a branch that is not taken, where nothing is assigned and nothing fails."""

    def all(self) -> int:
        """The value of the whole text; an empty one is 0."""
        if not self.tokens:
            return 0
        if self.depth > _DEEPEST:
            raise NotANumber("refers to itself")
        value = self.comma()
        if self.pos < len(self.tokens):
            raise NotANumber(f"{self.tokens[self.pos]!r} has no place here")
        return value

    def peek(self) -> str:
        return self.tokens[self.pos] if self.pos < len(self.tokens) else ""

    def take(self, *tokens: str) -> str:
        found = self.peek()
        if found in tokens:
            self.pos += 1
            return found
        return ""

    def comma(self) -> int:
        value = self.assignment()
        while self.take(","):
            value = self.assignment()
        return value

    def assignment(self) -> int:
        name = self.peek()
        following = self.tokens[self.pos + 1] if self.pos + 1 < len(self.tokens) else ""
        if not _is_name(name) or following not in _ASSIGN:
            return self.choice()
        self.pos += 2
        value = self.assignment()
        if following != "=":
            value = self.compute(following[:-1], self.variable(name), value)
        return self.store(name, value)

    def choice(self) -> int:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        live = self.live
        self.live = live and bool(condition)
        first = self.assignment()
        if not self.take(":"):
            raise NotANumber("'?' without ':'")
        self.live = live and not condition
        second = self.assignment()
        self.live = live
        return first if condition else second

    def binary(self, level: int) -> int:
        if level == len(_BINARY):
            return self.power()
        left = self.binary(level + 1)
        while operator := self.take(*_BINARY[level]):
            live = self.live
            self.live = live and not ((operator == "&&" and not left) or (operator == "||" and left))
            right = self.binary(level + 1)
            computed = self.compute(operator, left, right)
            self.live = live
            left = computed
        return left

    def power(self) -> int:
        base = self.unary()
        if not self.take("**"):
            return base
        exponent = self.power()
        if exponent < 0 or exponent > 64:
            raise NotANumber("an exponent lies between 0 and 64")
        return _wrap(base**exponent)

    def unary(self) -> int:
        operator = self.take("!", "~", "-", "+", "++", "--")
        if operator in ("++", "--"):
            name = self.peek()
            self.pos += 1
            return self.store(name, self.variable(name) + (1 if operator == "++" else -1))
        if operator:
            value = self.unary()
            return {"!": int(not value), "~": ~value, "-": -value, "+": value}[operator]
        return self.primary()

    def primary(self) -> int:
        word = self.peek()
        self.pos += 1
        if word == "(":
            value = self.comma()
            if not self.take(")"):
                raise NotANumber("a parenthesis is not closed")
            return value
        if _is_name(word):
            value = self.variable(word)
            if operator := self.take("++", "--"):
                self.store(word, value + (1 if operator == "++" else -1))
            return value
        return number(word)

    def variable(self, name: str) -> int:
        text = self.read(name)
        if text is None:
            if self.live:
                raise NotANumber(f"{name} is not known")
            return 0
        return _Evaluator(text, self.read, self.write, self.depth + 1).all()

    def store(self, name: str, value: int) -> int:
        if not _is_name(name):
            raise NotANumber("only a variable can be assigned to")
        value = _wrap(value)
        if self.live:
            self.write(name, value)
        return value

    def compute(self, operator: str, a: int, b: int) -> int:
        if operator in ("/", "%"):
            if b == 0:
                if self.live:
                    raise NotANumber("division by zero")
                return 0
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return _wrap(quotient if operator == "/" else a - quotient * b)
        return _wrap(_COMPUTE[operator](a, b))


_COMPUTE: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def _tokens(text: str) -> list[str]:
    tokens, pos = [], 0
    text = text.rstrip()
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if not match:
            raise NotANumber(f"{text[pos:].strip()[:20]!r} is no part of a sum")
        tokens.append(match[1])
        pos = match.end()
    return tokens


def _is_name(token: str) -> bool:
    return bool(token) and (token[0].isalpha() or token[0] == "_")


def number(token: str) -> int:
    """A whole number as the shell writes it: decimal, 0octal, 0xhex, base#digits."""
    base, hash_, digits = token.partition("#")
    try:
        if hash_:
            return _wrap(int(digits, int(base)))
        if re.fullmatch(r"0[0-7]+", token):
            return int(token, 8)
        return _wrap(int(token, 16 if token[:2] in ("0x", "0X") else 10))
    except ValueError:
        raise NotANumber(f"{token!r} is no whole number") from None


def _wrap(value: int) -> int:
    """The value in 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
