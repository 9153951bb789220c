"""Control flow: lists, pipelines, conditions and loops.

Where a condition cannot be decided, the rules of the package docstring hold: unset is empty, files are there, programs succeed; no guess ends a script.
"""

from __future__ import annotations

from collections.abc import Callable

from everybyte.formats.shell import patterns
from everybyte.formats.shell.arithmetic import evaluate
from everybyte.formats.shell.branches import ends, matters
from everybyte.formats.shell.conditions import Condition, Operand
from everybyte.formats.shell.machine import Machine
from everybyte.formats.shell.outcome import SUCCESS, Leave, Note, Status
from everybyte.formats.shell.syntax import (
    AndOr,
    Case,
    Count,
    For,
    ForArithmetic,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Redirection,
    Sequence,
    Simple,
    Test,
    While,
)
from everybyte.formats.shell.values import Text, is_marked, plain

MOST_ROUNDS = 500
"""Rounds of one loop."""


class Compound(Machine):
    """Follows compound commands."""

    def _sequence(self, node: Sequence) -> Status:
        status = SUCCESS
        for command in node.commands:
            status = self.run(command)
        return status

    def _define(self, node: Function) -> Status:
        self.state.functions[node.name] = node.body
        return SUCCESS

    def _test(self, node: Test) -> Status:
        return self.decide(lambda: Condition(self._operands(node), self.integer, self.is_set).truth())

    def _count(self, node: Count) -> Status:
        return self.decide(lambda: self._nonzero(node))

    def decide(self, question: Callable[[], bool | None]) -> Status:
        """The status of a condition, with the variables that were taken as unset for it."""
        outer, self.assumed = self.assumed, []
        answer = question()
        assumed, self.assumed = tuple(self.assumed), outer
        return Status(None if answer is None else int(not answer), assumed)

    def _nonzero(self, node: Count) -> bool | None:
        text = self.arithmetic(node.text, node.line, f"(({node.text}))")
        return None if is_marked(text) else text != "0"

    def _operands(self, node: Test) -> list[Operand]:
        return [Operand(self.settled(plain(self.text(word))), self.unknowns.as_empty(self.pattern(word))) for word in node.words]

    def settled(self, text: str) -> str:
        """A text as a condition sees it: what is unset is empty, and that is remembered."""
        empty = self.unknowns.as_empty(text)
        if empty != text:
            self.assumed += [unknown.written for unknown in self.unknowns.of(text) if unknown.why in ("unset", "argument")]
        return empty

    def integer(self, text: str) -> int:
        """A whole number of a condition. Raises NotANumber."""
        return evaluate(text.strip(), self._number_of, lambda name, value: None)

    def is_set(self, name: str) -> bool:
        """Whether a variable is set."""
        return name.partition("[")[0] in self.state.variables

    def _group(self, node: Group) -> Status:
        def body() -> Status:
            if not node.subshell:
                return self.run(node.body)
            with self._subshell():
                try:
                    return self.run(node.body)
                except Leave as leave:
                    if leave.kind != "exit":
                        raise
                    return Status(None)

        return self._redirected(node.redirections, body)

    def _pipeline(self, node: Pipeline) -> Status:
        text: Text | None = self.input
        status = SUCCESS
        for command in node.commands[:-1]:
            with self._subshell(), self._fed(text), self._captured() as sink:
                self._guarded(command)
            text = sink.text()
        with self._fed(text):
            status = self.run(node.commands[-1])
        if node.negated:
            return Status(None if status.code is None else int(not status.code), status.assumed)
        return status

    def _guarded(self, node: Node) -> None:
        try:
            self.run(node)
        except Leave:
            return

    def _and_or(self, node: AndOr) -> Status:
        left = self.run(node.left)
        sure = left.code is not None and not left.assumed
        go = left.code in (0, None) if node.operator == "&&" else left.code not in (0, None)
        if not sure and go and ends(node.right, self.state.functions):
            if matters(node.right):
                self._tell_guess(node.line, left)
            return Status(None, left.assumed)
        if go:
            right = self.run(node.right)
            return Status(right.code, left.assumed + right.assumed)
        if not sure:
            self.glance(node.right)
        return left

    def _if(self, node: If) -> Status:
        condition = self.run(node.condition)
        taken, other = (node.body, node.otherwise) if condition.code in (0, None) else (node.otherwise, node.body)
        if condition.code is None or condition.assumed:
            if taken is not None and ends(taken, self.state.functions) and not (other is not None and ends(other, self.state.functions)):
                taken, other = other, taken
            if matters(node.body) or matters(node.otherwise):
                self._tell_guess(node.line, condition)
            if other is not None:
                self.glance(other)
        return self.run(taken) if taken is not None else SUCCESS

    def _tell_guess(self, line: int, condition: Status) -> None:
        if condition.assumed:
            names = ", ".join(dict.fromkeys(condition.assumed))
            self.note(
                line, f"the script does not set {names}; its condition is read as if {'it were' if len(set(condition.assumed)) == 1 else 'they were'} empty"
            )
        else:
            self.note(line, "this condition depends on files or programs; it is read as if the files were there and the programs succeeded")

    def _case(self, node: Case) -> Status:
        outer, self.assumed = self.assumed, []
        subject = self.settled(plain(self.text(node.word)))
        assumed, self.assumed = tuple(self.assumed), outer
        status, taken = SUCCESS, False
        for arm_patterns, body in node.arms:
            fits = not taken and any(patterns.matches(subject, self.pattern(pattern)) for pattern in arm_patterns)
            if fits and (assumed or is_marked(subject)) and ends(body, self.state.functions):
                self._tell_guess(node.line, Status(None, assumed))
            elif fits:
                status, taken = self.run(body), True
            elif assumed or is_marked(subject) or self._depends_on_default(node):
                self.glance(body)
        return status

    def _depends_on_default(self, node: Case) -> bool:
        """Whether what a `case` looks at may be given by the caller: `case ${1:-start} in`."""
        return any(getattr(part, "op", "") in (":-", "-") for part in node.word.parts)

    def _for(self, node: For) -> Status:
        items = list(self.state.arguments) if node.words is None else self.fields(node.words)
        status = SUCCESS
        for item in items:
            self.state.set(node.name, item)
            try:
                status = self.run(node.body)
            except Leave as leave:
                if not self._goes_on(leave):
                    break
        if not items and node.words is None:
            self.glance(node.body)
        return status

    def _goes_on(self, leave: Leave) -> bool:
        """Whether a loop goes on after `break` and `continue`; others pass through."""
        if leave.kind not in ("break", "continue"):
            raise leave
        if leave.levels > 1:
            raise Leave(leave.kind, leave.levels - 1)
        return leave.kind == "continue"

    def _loop(self, node: While | ForArithmetic) -> Status:
        if isinstance(node, ForArithmetic):
            self.arithmetic(node.start, node.line, node.start)
        for _ in range(MOST_ROUNDS):
            goes, once = self._loop_condition(node)
            if not goes:
                return SUCCESS
            try:
                self.run(node.body)
            except Leave as leave:
                if not self._goes_on(leave):
                    return SUCCESS
            if once:
                return SUCCESS
            if isinstance(node, ForArithmetic):
                self.arithmetic(node.step, node.line, node.step)
        self.notes.append(Note("limit", node.line, f"this loop goes on after {MOST_ROUNDS:,} rounds; it is left there"))
        return SUCCESS

    def _loop_condition(self, node: While | ForArithmetic) -> tuple[bool, bool]:
        """Whether the body runs, and whether only once: loops without end and those that wait for something are passed through once."""
        if isinstance(node, ForArithmetic):
            text = self.arithmetic(node.condition or "1", node.line, node.condition)
            return is_marked(text) or text != "0", is_marked(text)
        condition = node.condition
        endless = isinstance(condition, Simple) and len(condition.words) == 1 and plain(self.text(condition.words[0])) in ("true", ":")
        status = self.run(condition)
        if status.code is None:
            return True, True
        return (status.code == 0) != node.until, endless

    def _redirected(self, redirections: tuple[Redirection, ...], body: Callable[[], Status]) -> Status:
        """Runs a command with its input and output redirected; the interpreter knows how."""
        raise NotImplementedError
