"""Conditions: `[ ... ]`, `test` and `[[ ... ]]`. The answer is yes, no, or None where only a run could tell (files, what programs print)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Self

from everybyte.formats.shell import patterns
from everybyte.formats.shell.arithmetic import NotANumber
from everybyte.formats.shell.values import is_marked

Truth = bool | None

_OF_FILES = frozenset(("-a", "-b", "-c", "-d", "-e", "-f", "-g", "-h", "-k", "-p", "-r", "-s", "-t", "-u", "-w", "-x", "-L", "-N", "-O", "-G", "-S"))
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
BINARY = frozenset(("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_COMPARE))
_LONGEST_SUBJECT = 512


class Operand(str):
    """A word of a condition with its text as a pattern beside it."""

    __slots__ = ("pattern",)
    pattern: str

    def __new__(cls, text: str, pattern: str | None = None) -> Self:
        """`pattern` is the text itself, escaped, where the word cannot be one."""
        made = super().__new__(cls, text)
        made.pattern = patterns.escape(text) if pattern is None else pattern
        return made


class Condition:
    """Evaluates the words of one condition. `number` works out an operand of -eq; `is_set` answers -v."""

    def __init__(self, words: list[Operand], number: Callable[[str], int], is_set: Callable[[str], bool]) -> None:
        self.words, self.number, self.is_set = words, number, is_set
        self.pos = 0

    def truth(self) -> Truth:
        """The answer."""
        if not self.words:
            return False
        answer = self._or()
        return answer if self.pos == len(self.words) else None

    def _peek(self, ahead: int = 0) -> str:
        return self.words[self.pos + ahead] if self.pos + ahead < len(self.words) else ""

    def _or(self) -> Truth:
        answer = self._and()
        while self._peek() in ("||", "-o"):
            self.pos += 1
            answer = either(answer, self._and())
        return answer

    def _and(self) -> Truth:
        answer = self._not()
        while self._peek() in ("&&", "-a"):
            self.pos += 1
            answer = both(answer, self._not())
        return answer

    def _not(self) -> Truth:
        left = len(self.words) - self.pos
        if self._peek() == "!" and left > 1 and self._peek(1) not in BINARY:
            self.pos += 1
            answer = self._not()
            return None if answer is None else not answer
        if self._peek() == "(" and left > 2:
            self.pos += 1
            answer = self._or()
            self.pos += self._peek() == ")"
            return answer
        return self._single()

    def _single(self) -> Truth:
        first = self._peek()
        if self._peek(1) in BINARY and self.pos + 2 < len(self.words):
            left, operator, right = self.words[self.pos : self.pos + 3]
            self.pos += 3
            return self._binary(left, operator, right)
        operators = self.pos + 1 < len(self.words) and self._peek(1) not in ("&&", "||", ")", "-o")
        if operators and (first in ("-z", "-n", "-v") or first in _OF_FILES):
            operand = self.words[self.pos + 1]
            self.pos += 2
            return self._unary(first, operand)
        self.pos += 1
        return None if is_marked(first) and not _some_text(first) else bool(first)

    def _unary(self, operator: str, operand: Operand) -> Truth:
        if operator == "-v":
            return self.is_set(operand)
        if operator in _OF_FILES:
            return None if operand else False
        empty = None if is_marked(operand) and not _some_text(operand) else not operand
        return empty if operator == "-z" or empty is None else not empty

    def _binary(self, left: Operand, operator: str, right: Operand) -> Truth:
        if operator in ("-nt", "-ot", "-ef") or is_marked(left) or is_marked(right):
            return None
        if operator in _COMPARE:
            try:
                return _COMPARE[operator](self.number(left), self.number(right))
            except NotANumber:
                return None
        if operator == "=~":
            return _found(left, right.pattern)
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        same = patterns.matches(left, right.pattern)
        return same if operator != "!=" or same is None else not same


def _some_text(word: str) -> bool:
    """Whether some of a partly unknown word is known, so that it is not empty."""
    return bool(re.sub("\ue000\\d+\ue001", "", word))


def _found(text: str, expression: str) -> Truth:
    """`=~`. Expressions that repeat a group are not tried: they can take for ever."""
    if len(text) > _LONGEST_SUBJECT or re.search(r"\)[*+{?]", expression) or expression.count("*") + expression.count("+") > 6:
        return None
    for name, chars in (("digit", "0-9"), ("alpha", "A-Za-z"), ("alnum", "A-Za-z0-9"), ("space", r"\s"), ("upper", "A-Z"), ("lower", "a-z")):
        expression = expression.replace(f"[:{name}:]", chars)
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None


def both(a: Truth, b: Truth) -> Truth:
    """And, where one no is enough."""
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    """Or, where one yes is enough."""
    return True if a is True or b is True else None if a is None or b is None else False
