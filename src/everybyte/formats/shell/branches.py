"""What branches do, by a look at them: whether they end the script, start a program, or change what a launch depends on."""

from __future__ import annotations

from collections.abc import Mapping

from everybyte.formats.shell import builtin
from everybyte.formats.shell.programs import PROGRAMS, SILENT
from everybyte.formats.shell.syntax import AndOr, Case, For, ForArithmetic, Function, Group, If, Literal, Node, Pipeline, Sequence, Simple, While

CHATTER = SILENT | {"echo", "printf", "exit", "return", ":", "true", "false", "cat", "set", "usage", "date", "source", "."}
"""Commands that change nothing that a launch depends on."""
_STARTS_NOTHING = (CHATTER | set(builtin.BUILTINS) | builtin.DECLARES | set(PROGRAMS)) - {"eval", "exec", "command", "source", "."}


def program(node: Simple) -> str | None:
    """The first word as it is written; empty for one that only following the script tells, None if there is none."""
    parts = node.words[0].parts if node.words else ()
    if not parts:
        return None
    return parts[0].text if isinstance(parts[0], Literal) else ""


def ends(node: Node, functions: Mapping[str, Node]) -> bool:
    """Whether commands end the script or the function. A function that is called ends it if `exit` is its last command."""
    match node:
        case Sequence():
            return any(ends(command, functions) for command in node.commands)
        case Group():
            return ends(node.body, functions)
        case AndOr():
            return node.operator == "&&" and ends(node.right, functions)
        case If():
            return node.otherwise is not None and ends(node.body, functions) and ends(node.otherwise, functions)
        case Simple():
            name = program(node) or ""
            return name in ("exit", "return") or (name in functions and _last_is_exit(functions[name]))
    return False


def _last_is_exit(body: Node) -> bool:
    last = body.body if isinstance(body, Group) else body
    last = last.commands[-1] if isinstance(last, Sequence) and last.commands else last
    return isinstance(last, Simple) and program(last) == "exit"


def matters(node: Node | None) -> bool:
    """Whether commands set variables or start programs, so that it counts which branch is taken."""
    match node:
        case None:
            return False
        case Sequence() | Pipeline():
            return any(matters(command) for command in node.commands)
        case Group():
            return matters(node.body)
        case Simple():
            name = program(node)
            return bool(node.assignments) or (name is not None and name not in CHATTER)
    return True


def starts(node: Node | None) -> bool:
    """Whether commands may start a program at all: a branch that only prints and sets variables need not be looked into."""
    match node:
        case Simple():
            name = program(node)
            return name is not None and name not in _STARTS_NOTHING
        case Sequence() | Pipeline():
            return any(starts(command) for command in node.commands)
        case Group() | For() | Function() | ForArithmetic():
            return starts(node.body)
        case AndOr():
            return starts(node.left) or starts(node.right)
        case If():
            return any(starts(part) for part in (node.condition, node.body, node.otherwise))
        case While():
            return starts(node.condition) or starts(node.body)
        case Case():
            return any(starts(body) for _, body in node.arms)
    return False
