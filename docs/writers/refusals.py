"""What the product refuses by name, collected from the places where it refuses."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import everybyte
from everybyte.measure.accuracy import Comparison
from writers.markdown import page, table

SOURCE = Path(everybyte.__file__).parent
ROOMS = ("engines", "rules", "models", "layers", "textbook", "checkpoint", "catalog", "job", "allocator")
INTRODUCTION = """\
A job that holds something that is not modelled is refused with the key, what is not answered and what is, never estimated by something like it. These are all
texts of that kind in the code; `…` stands for what the job says, or for a list that the message prints."""


def refusals_page() -> str:
    """All refusals, by the part of the program that speaks them."""
    found = {room: sorted(set(refusals(room))) for room in ROOMS}
    by_part: dict[str, list[tuple[str, str]]] = {}
    for room, rows in found.items():
        for part, key, text in rows:
            by_part.setdefault(f"{room}: {part}" if part else room, []).append((f"`{key}`", text))
    tables = [f"## {part}\n\n{table(('key', 'what the message says'), rows)}" for part, rows in by_part.items()]
    return page("What is refused", INTRODUCTION, *tables)


def refusals(room: str) -> Iterator[tuple[str, str, str]]:
    """(engine, key, text) of every `Unsupported(...)` of a room."""
    for file in sorted([*(SOURCE / room).rglob("*.py"), *SOURCE.glob(f"{room}.py")]):
        inside = file.relative_to(SOURCE).parts
        part = inside[1] if room == "engines" and len(inside) > 2 else ""
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unsupported" and len(node.args) == 2:
                key, text = (literal(argument) for argument in node.args)
                if text.strip("… "):
                    yield part, key, text


def literal(node: ast.expr) -> str:
    """The text of a string as it stands in the code, `…` for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=pieces):
            return "".join(piece.value if isinstance(piece, ast.Constant) else "…" for piece in pieces)
        case ast.BinOp(left=left, right=right):
            return literal(left) + literal(right)
    return "…"


def unanswered(comparisons: Sequence[Comparison]) -> list[tuple[str, str]]:
    """(how often, reason) of measured figures that are not answered, the most frequent first."""
    reasons = Counter(c.unanswered.partition(" (did you mean")[0] for c in comparisons if c.unanswered)
    return [(str(times), reason) for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))]
