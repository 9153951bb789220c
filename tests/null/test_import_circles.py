"""The picture of imports has no circle: imports inside functions and those for type checkers alone count as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
KNOWN: frozenset[tuple[str, str]] = frozenset()
"""Imports that would close a circle, with the reason. The list only shrinks."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCE.rglob("*.py")}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("everybyte"):
            yield from (f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in known else node.module for alias in node.names)


def graph() -> dict[str, set[str]]:
    """module -> what it imports, but for the known exceptions."""
    known = modules()
    # `everybyte` itself only names where its public functions live
    return {name: {found for found in imported(path, known) if (name, found) not in KNOWN} - {name} for name, path in known.items() if name != "everybyte"}


def test_no_circles() -> None:
    """No module reaches itself through what it imports, at its top, inside functions, or for the type checker."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as circle:
        raise AssertionError(" -> ".join(circle.args[1])) from None


def test_known_exceptions_are_still_there() -> None:
    """An exception whose import is gone leaves the list."""
    known = modules()
    gone = [pair for pair in KNOWN if pair[1] not in set(imported(known[pair[0]], known))]
    assert not gone


def test_nothing_reaches_back_to_the_package() -> None:
    """No module imports its own package for a name: what all need lies in basics."""
    known = modules()
    back = [name for name, path in known.items() if name != "everybyte" and "everybyte" in set(imported(path, known)) and name != "everybyte.__main__"]
    assert not back
