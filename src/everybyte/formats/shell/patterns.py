"""Patterns of the shell (`*`, `?`, `[a-z]`, `@(a|b)`), brace expansion, and the cuts of `${X#...}` that use them."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

MOST_WORDS = 1000
"""Words that one brace expansion may make."""
LONGEST_CUT = 4096
"""Characters of a text that is cut by a pattern: each cut tries every length."""

_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
_GROUPS = {"@": "", "?": "?", "*": "*", "+": "+", "!": ""}


def escape(text: str) -> str:
    """The text as a pattern that matches nothing but it."""
    return re.sub(r"([*?\[\]\\@+!()|])", r"\\\1", text)


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern as an expression; None if it holds more stars than a script has any use for."""
    if pattern.count("*") > 8 or len(pattern) > LONGEST_CUT:
        return None
    try:
        return re.compile(_translate(pattern, 0, "")[0], re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _translate(pattern: str, pos: int, ending: str) -> tuple[str, int]:
    out = []
    while pos < len(pattern):
        char = pattern[pos]
        if ending and char in ending:
            break
        if char in _GROUPS and pattern[pos + 1 : pos + 2] == "(":
            text, pos = _alternatives(pattern, pos)
            out.append(text)
            continue
        if char == "\\" and pos + 1 < len(pattern):
            out.append(re.escape(pattern[pos + 1]))
            pos += 2
            continue
        if char == "[" and (end := pattern.find("]", pos + 2)) > 0:
            inside = pattern[pos + 1 : end].replace("\\", "\\\\")
            out.append("[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]")
            pos = end + 1
            continue
        out.append({"*": ".*", "?": "."}.get(char, re.escape(char)))
        pos += 1
    return "".join(out), pos


def _alternatives(pattern: str, pos: int) -> tuple[str, int]:
    """`@(a|b)` and its kin."""
    kind, pos, found = pattern[pos], pos + 2, []
    while pos < len(pattern):
        text, pos = _translate(pattern, pos, "|)")
        found.append(text)
        pos += 1
        if pattern[pos - 1 : pos] == ")":
            break
    inside = "|".join(found)
    return (f"(?!(?:{inside})$).*" if kind == "!" else f"(?:{inside}){_GROUPS[kind]}"), pos


def matches(text: str, pattern: str) -> bool | None:
    """Whether the whole text is of the pattern; None if that takes too long to find out."""
    expression = compiled(pattern)
    return None if expression is None or len(text) > LONGEST_CUT else expression.fullmatch(text) is not None


def cut(text: str, operator: str, pattern: str) -> str | None:
    """`${X#pattern}` and `%`: the text without its shortest (`#`, `%`) or longest (`##`, `%%`) match at the start or end."""
    expression = compiled(pattern)
    if expression is None or len(text) > LONGEST_CUT:
        return None
    lengths = range(len(text), -1, -1) if len(operator) == 2 else range(len(text) + 1)
    for length in lengths:
        part = text[:length] if operator[0] == "#" else text[len(text) - length :]
        if expression.fullmatch(part):
            return text[length:] if operator[0] == "#" else text[: len(text) - length]
    return text


def replace(text: str, operator: str, pattern: str, new: str) -> str | None:
    """`${X/pattern/new}`, `//` for all, `/#` and `/%` at the start and end: the longest match at each place."""
    expression = compiled(pattern)
    if expression is None or len(text) > LONGEST_CUT:
        return None
    if not pattern:
        return {"/#": new + text, "/%": text + new}.get(operator, text)
    if operator in ("/#", "/%"):
        rest = cut(text, "##" if operator == "/#" else "%%", pattern)
        changed = rest is not None and (rest != text or expression.fullmatch(""))
        return text if not changed or rest is None else new + rest if operator == "/#" else rest + new
    if not text:
        return new if expression.fullmatch("") else ""
    out: list[str] = []
    pos = 0
    while pos < len(text):
        end = _longest(expression, text, pos)
        out.append(text[pos] if end is None else new)
        pos = pos + 1 if end is None else end
        if end is not None and operator == "/":
            break
    return "".join(out) + text[pos:]


def _longest(expression: re.Pattern[str], text: str, pos: int) -> int | None:
    """Where the longest match that begins at a position ends; None if nothing but the empty text matches there."""
    greedy = expression.match(text, pos)
    if greedy is None:
        return None
    end = greedy.end()
    if "|" in expression.pattern:
        end = next((longer for longer in range(len(text), end, -1) if expression.fullmatch(text, pos, longer)), end)
    return end if end > pos else None


def braces(text: str, literal: str) -> list[tuple[int, int, list[str]]]:
    """Brace expansions of a text: (start, end, alternatives), the outermost first. `literal` has a blank wherever a character is quoted."""
    found = []
    level, start = 0, -1
    commas: list[int] = []
    for pos, char in enumerate(literal):
        if char == "{":
            level += 1
            if level == 1:
                start, commas = pos, []
        elif char == "," and level == 1:
            commas.append(pos)
        elif char == "}" and level:
            level -= 1
            if level == 0 and (alternatives := _alternatives_of(text, start, commas, pos)):
                found.append((start, pos + 1, alternatives))
    return found


def _alternatives_of(text: str, start: int, commas: list[int], end: int) -> list[str]:
    if commas:
        edges = [start, *commas, end]
        return [text[left + 1 : right] for left, right in itertools.pairwise(edges)]
    match = _RANGE.fullmatch(text[start + 1 : end])
    return _range(match) if match else []


def _range(match: re.Match[str]) -> list[str]:
    first, last, step = match.groups()
    letters = first.isalpha() and last.isalpha()
    if first.isalpha() != last.isalpha():
        return []
    low, high = (ord(first), ord(last)) if letters else (int(first), int(last))
    stride = max(1, abs(int(step or 1)))
    if abs(high - low) // stride >= MOST_WORDS:
        return []
    numbers = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
    width = max(len(first), len(last)) if any(re.match(r"-?0\d", end) for end in (first, last)) else 0
    return [chr(number) if letters else f"{number:0{width}d}" for number in numbers]
