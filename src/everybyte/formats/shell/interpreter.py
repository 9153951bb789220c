"""Follows a script as bash would, without running anything: variables change, conditions are decided, and each program that would start is noted.

Where a condition cannot be decided, the rules of the package docstring hold: unset is empty, files are there, programs succeed; no guess ends a script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.formats.shell import builtin, patterns
from everybyte.formats.shell.arithmetic import evaluate
from everybyte.formats.shell.conditions import Condition, Operand
from everybyte.formats.shell.expand import Expander
from everybyte.formats.shell.grammar import Parser
from everybyte.formats.shell.outcome import SUCCESS, Leave, Sink, Status
from everybyte.formats.shell.programs import PROGRAMS, SILENT, echo
from everybyte.formats.shell.state import State, WrittenFile
from everybyte.formats.shell.syntax import (
    AndOr,
    Assignment,
    Case,
    Count,
    For,
    ForArithmetic,
    Function,
    Group,
    If,
    Literal,
    Node,
    Pipeline,
    Redirection,
    Sequence,
    Simple,
    Test,
    While,
    Word,
)
from everybyte.formats.shell.values import Piece, Text, Unknowns, Variable, first_line, is_marked, plain

MOST_STEPS = 12_000
"""Commands that one script may take to follow, its loops unrolled."""
MOST_STARTED = 2_000
_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\.)*(?:\\\n(?:[^\\\n]|\\.)*)*")
MOST_ROUNDS = 500
MOST_CALLS = 30
_CHATTER = SILENT | {"echo", "printf", "exit", "return", ":", "true", "false", "cat", "set", "usage", "date", "source", "."}
"""Commands that change nothing that a launch depends on."""
_STARTS_NOTHING = (_CHATTER | set(builtin.BUILTINS) | builtin.DECLARES | set(PROGRAMS)) - {"eval", "exec", "command", "source", "."}


class Started(NamedTuple):
    """A program that the script would start."""

    words: tuple[Text, ...]
    line: int
    environment: dict[str, Text]
    plain_variables: dict[str, Text]
    """Variables that are set and not exported: the program does not see them."""
    files: dict[str, WrittenFile]
    alternative: bool
    """It stands in a branch that is not taken by the script's own defaults."""


class Note(NamedTuple):
    """Something odd, or something assumed."""

    kind: str
    """`assumed`, `broken`, `passed` or `limit`."""
    line: int
    text: str


class _Spent(Exception):
    """The steps are used up."""


class Interpreter(Expander):
    """One script being followed."""

    def __init__(
        self, source: str, state: State | None = None, given: Callable[[str], str | None] | None = None, unknowns: Unknowns | None = None,
    ) -> None:  # fmt: skip
        super().__init__(self)
        self.source = source
        self.state = state or State()
        self.given = given or (lambda _: None)
        """The text of a file that was handed over beside the script."""
        self.unknowns = unknowns or Unknowns()
        self.started: list[Started] = []
        self.notes: list[Note] = []
        self.sink = Sink()
        self.input: Text | None = None
        """What the next command reads; None if nobody knows, as of a terminal."""
        self.alternative = 0
        self.calls = 0
        self.called: set[str] = set()
        self.locals: list[dict[str, Variable | None]] = []
        self._steps = MOST_STEPS
        self._parsed: dict[tuple[str, int], Word] = {}

    def follow(self, node: Node) -> None:
        """Follows a whole script, then the functions that it never calls."""
        try:
            self._all_of(node)
            for name, body in list(self.state.functions.items()):
                if name not in self.called:
                    self.glance(body)
        except _Spent:
            self.notes.append(Note("limit", 0, f"the script takes more than {MOST_STEPS:,} steps; what lies behind them was not read"))
        except RecursionError:
            raise BadInput(self.source, "is nested too deeply to be followed") from None

    def _all_of(self, node: Node) -> None:
        """Follows a script to its end. What lies behind an `exit` counts as a branch that is not taken: it may only be reached with arguments."""
        for command in node.commands if isinstance(node, Sequence) else (node,):
            try:
                self.run(command)
            except Leave:
                self.alternative += 1

    def _whole(self, node: Node) -> None:
        try:
            self.run(node)
        except Leave:
            return

    def parse(self, text: str, line: int) -> Node:
        """The commands of a text, with what was odd about them noted."""
        parser = Parser(text, self.source, line)
        node = parser.script()
        self.notes += [Note("broken", at, note) for at, note in parser.notes]
        return node

    def parse_leniently(self, text: str, line: int) -> Node:
        """As `parse`; where a text is no script as a whole, the lines that are commands, as of a command with its output behind it.

        Raises the fault if nothing can be read, or if a quote or a compound command is not closed.
        """
        try:
            return self.parse(text, line)
        except BadInput as fault:
            if "never closed" in fault.message or "opened here has no" in fault.message:
                raise
            found = list(self._readable(text, line))
            if not found:
                raise
            at = fault.path.rpartition(":")[2]
            self.notes.append(Note("passed", int(at) if at.isdigit() else line, f"{fault.message}; lines that are no commands are passed over"))
            return Sequence(tuple(found), line)

    def _readable(self, text: str, line: int) -> Iterator[Node]:
        """The logical lines that are commands by themselves."""
        for match in _LOGICAL_LINE.finditer(text):
            if match.group().strip():
                try:
                    yield self.parse(match.group(), line + text.count("\n", 0, match.start()))
                except BadInput:
                    continue

    def refuse(self, line: int, message: str) -> BadInput:
        """A refusal at a line."""
        return BadInput(f"{self.source}:{line}", message)

    def parsed(self, text: str, line: int) -> Word:
        """A text as inside double quotes."""
        key = (text, line)
        if key not in self._parsed:
            self._parsed[key] = Parser(text, self.source, line).document()
        return self._parsed[key]

    def split(self, text: Text) -> list[Text]:
        """A text in words, at what IFS says."""
        fields: list[list[tuple[str, int, bool]]] = []
        rest = self._spread(text, [], fields)
        return [tuple(Piece(piece, line) for piece, line, _ in field) for field in ([*fields, rest] if rest else fields)]

    def nested(self, text: str, line: int) -> Status:
        """The commands of a text, in this state."""
        self.calls += 1
        try:
            return SUCCESS if self.calls > MOST_CALLS else self.run(self.parse(text, line))
        finally:
            self.calls -= 1

    def note(self, line: int, text: str, kind: str = "assumed") -> None:
        """Remembers an assumption, once a line."""
        if not self.alternative and not any(note.line == line and note.kind == kind for note in self.notes):
            self.notes.append(Note(kind, line, text))

    # Output

    def output(self, node: Node, written: str, line: int) -> Text:
        """What commands print, without the line ends at its end; a mark where that is not known."""
        with self._subshell(), self._captured() as sink:
            self._whole(node)
        text = sink.text()
        if text is None:
            return (Piece(self.unknowns.mark(" ".join(written.split()), line, "output"), line),)
        pieces = list(text)
        while pieces and not (last := pieces.pop()).text.rstrip("\n"):
            pass
        pieces += [Piece(last.text.rstrip("\n"), last.line)] if text else []
        return tuple(pieces)

    @contextmanager
    def _captured(self) -> Iterator[Sink]:
        outer, self.sink = self.sink, Sink()
        try:
            yield self.sink
        finally:
            self.sink = outer

    @contextmanager
    def _subshell(self) -> Iterator[None]:
        outer, self.state = self.state, self.state.copy()
        try:
            yield
        finally:
            outer.files.update(self.state.files)
            self.state = outer

    @contextmanager
    def _fed(self, text: Text | None) -> Iterator[None]:
        outer, self.input = self.input, text
        try:
            yield
        finally:
            self.input = outer

    def glance(self, node: Node) -> None:
        """Looks into commands that are not run, for the programs that they would start."""
        if not self._starts(node):
            return
        outer, sink = self.state, self.sink
        self.state, self.sink = self.state.copy(), Sink()
        self.alternative += 1
        try:
            self._whole(node)
        finally:
            self.alternative -= 1
            self.state, self.sink = outer, sink

    # Commands

    def run(self, node: Node) -> Status:
        """Follows a command."""
        self._steps -= 1
        if self._steps < 0:
            raise _Spent
        return self._followers[type(node)](node)

    @cached_property
    def _followers(self) -> dict[type, Callable[[Any], Status]]:
        return {
            Simple: self._simple, Sequence: self._sequence, AndOr: self._and_or, Pipeline: self._pipeline, If: self._if, Group: self._group,
            Case: self._case, For: self._for, While: self._loop, ForArithmetic: self._loop, Function: self._define, Test: self._test, Count: self._count,
        }  # fmt: skip

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
        if not sure and go and self._ends(node.right):
            if self._matters(node.right):
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
            if taken is not None and self._ends(taken) and not (other is not None and self._ends(other)):
                taken, other = other, taken
            if self._matters(node.body) or (node.otherwise is not None and self._matters(node.otherwise)):
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

    def _ends(self, node: Node) -> bool:
        """Whether commands end the script or the function."""
        match node:
            case Sequence():
                return any(self._ends(command) for command in node.commands)
            case Group():
                return self._ends(node.body)
            case AndOr():
                return node.operator == "&&" and self._ends(node.right)
            case If():
                return node.otherwise is not None and self._ends(node.body) and self._ends(node.otherwise)
            case Simple():
                first = plain(self.text(node.words[0])) if node.words else ""
                if first in self.state.functions and first not in ("exit", "return"):
                    body = self.state.functions[first]
                    return self.calls < MOST_CALLS and self._called_ends(body)
                return first in ("exit", "return")
        return False

    def _matters(self, node: Node) -> bool:
        """Whether commands set variables or start programs, so that it counts which branch is taken."""
        match node:
            case Sequence():
                return any(self._matters(command) for command in node.commands)
            case Group():
                return self._matters(node.body)
            case Simple():
                first = node.words[0].parts[0] if node.words and node.words[0].parts else None
                name = first.text if isinstance(first, Literal) else ""
                return bool(node.assignments) or (bool(node.words) and name not in _CHATTER)
            case Pipeline():
                return any(self._matters(command) for command in node.commands)
        return True

    def _starts(self, node: Node | None) -> bool:
        """Whether commands may start a program at all: a branch that only prints and sets variables need not be looked into."""
        match node:
            case Simple():
                first = node.words[0].parts[0] if node.words and node.words[0].parts else None
                return first is not None and not (isinstance(first, Literal) and first.text in _STARTS_NOTHING)
            case Sequence() | Pipeline():
                return any(self._starts(command) for command in node.commands)
            case Group() | For() | Function() | ForArithmetic():
                return self._starts(node.body)
            case AndOr():
                return self._starts(node.left) or self._starts(node.right)
            case If():
                return any(self._starts(part) for part in (node.condition, node.body, node.otherwise))
            case While():
                return self._starts(node.condition) or self._starts(node.body)
            case Case():
                return any(self._starts(body) for _, body in node.arms)
        return False

    def _called_ends(self, body: Node) -> bool:
        self.calls += 1
        try:
            last = body.body if isinstance(body, Group) else body
            last = last.commands[-1] if isinstance(last, Sequence) and last.commands else last
            return isinstance(last, Simple) and bool(last.words) and plain(self.text(last.words[0])) == "exit"
        finally:
            self.calls -= 1

    def _case(self, node: Case) -> Status:
        outer, self.assumed = self.assumed, []
        subject = self.settled(plain(self.text(node.word)))
        assumed, self.assumed = tuple(self.assumed), outer
        status, taken = SUCCESS, False
        for arm_patterns, body in node.arms:
            fits = not taken and any(patterns.matches(subject, self.pattern(pattern)) for pattern in arm_patterns)
            if fits and (assumed or is_marked(subject)) and self._ends(body):
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

    # Simple commands

    def _simple(self, node: Simple) -> Status:
        outer, self.assumed = self.assumed, []
        words = self.fields(node.words)
        assumed, self.assumed = tuple(self.assumed), outer
        if not words:
            for assignment in node.assignments:
                self._assign(assignment)
            return self._redirected(node.redirections, lambda: SUCCESS)
        name = plain(words[0])
        if name in builtin.DECLARES:
            return builtin.declare(self, name, words[1:], node.assignments)
        before = {assignment.name: self._value(assignment.value, assignment) for assignment in node.assignments}
        status = self._redirected(node.redirections, lambda: self.call(words, node.line, before))
        return Status(status.code, status.assumed + assumed) if name in ("[", "test") else status

    def _assign(self, assignment: Assignment) -> None:
        if isinstance(assignment.value, tuple):
            self.assign_array(assignment)
            return
        self.assign(assignment.name, self.text(assignment.value), assignment.index, assignment.line, append=assignment.append)

    def _value(self, value: Word | tuple[Word, ...], assignment: Assignment) -> Text:
        if isinstance(value, tuple):
            return ()
        old = self.state.get(assignment.name) or () if assignment.append else ()
        return old + self.text(value)

    def assign_array(self, assignment: Assignment, *, named: bool = False) -> None:
        """`NAME=( ... )` and `NAME+=( ... )`; elements may have keys: `[key]=value`."""
        assert isinstance(assignment.value, tuple)
        old = self.state.variables.get(assignment.name)
        named = named or (old is not None and old.named)
        variable = Variable(array={}, named=named, exported=old.exported if old else False)
        if assignment.append and old is not None:
            variable.array = dict(old.array) if old.array is not None else {"0": old.text}
        assert variable.array is not None
        at = max((int(key) for key in variable.array if key.lstrip("-").isdigit()), default=-1) + 1 if not named else 0
        for item in assignment.value:
            for text in self.fields((item,)):
                key, value = _keyed(text)
                if key is not None:
                    variable.array[self._key(variable, key, assignment.line)] = value
                    at = int(key) + 1 if key.isdigit() else at
                else:
                    variable.array[str(at)] = text
                    at += 1
        self.state.variables[assignment.name] = variable

    def _redirected(self, redirections: tuple[Redirection, ...], body: Callable[[], Status]) -> Status:
        """Runs a command with its input taken from here-documents and files and its output written to files."""
        given, target, append = self.input, "", False
        for redirection in redirections:
            if redirection.body is not None:
                given = self.text(redirection.body)
                if redirection.operator == "<<<":
                    given = (*given, Piece("\n", redirection.line))
            elif redirection.operator == "<":
                given = self.file_text(plain(self.text(redirection.target)))
            elif redirection.operator in (">", ">>", ">|", "&>", "&>>") and redirection.descriptor in ("", "1"):
                target, append = plain(self.text(redirection.target)), redirection.operator.endswith(">>")
        if not target:
            with self._fed(given):
                return body()
        with self._fed(given), self._captured() as sink:
            status = body()
        self.write(target, sink.text(), append=append)
        return status

    def write(self, name: str, text: Text | None, *, append: bool = False) -> None:
        """A file that the script writes."""
        if text is None or name in ("/dev/null", "/dev/stderr", "/dev/stdout"):
            return
        name = self.unknowns.shown(name)
        old = self.state.files.get(name) if append else None
        line = old.line if old else first_line(text, 0)
        self.state.files[name] = WrittenFile(name, (old.text if old else "") + self.unknowns.shown(plain(text)), line)

    def file_text(self, name: str) -> Text | None:
        """The text of a file: one that the script wrote, or one that was given beside it."""
        shown = self.unknowns.shown(name)
        if shown in self.state.files:
            file = self.state.files[shown]
            return tuple(Piece(line, file.line + i) for i, line in enumerate(file.text.splitlines(keepends=True)))
        text = self.given(shown)
        return None if text is None else (Piece(text, 1),)

    def call(self, words: list[Text], line: int, before: dict[str, Text]) -> Status:
        """A function, a builtin, a small program that is worked out, or one that is noted as started."""
        name = plain(words[0])
        if name in self.state.functions and self.calls < MOST_CALLS:
            return self._function(name, words)
        if name in builtin.BUILTINS:
            with builtin.temporary(self, before):
                return builtin.BUILTINS[name](self, words[1:], line)
        if name == "echo":
            self.sink.pieces += echo(words[1:])
            return SUCCESS
        if name in PROGRAMS:
            printed = self._work_out(name, words[1:])
            if printed is None:
                self.sink.lost = True
            else:
                self.sink.pieces.append(Piece(printed, line))
            return Status(None) if printed is None else SUCCESS
        self.sink.lost = True
        if name not in SILENT:
            self._start(words, line, before)
        return Status(None)

    def _work_out(self, name: str, arguments: list[Text]) -> str | None:
        texts = [plain(argument) for argument in arguments]
        if any(is_marked(text) for text in texts) or (self.input and is_marked(plain(self.input))):
            return None
        return PROGRAMS[name](texts, self.input)

    def _start(self, words: list[Text], line: int, before: dict[str, Text]) -> None:
        if len(self.started) >= MOST_STARTED:
            raise _Spent
        environment = {**self.state.exported(), **before}
        unexported = {
            name: variable.text for name, variable in self.state.variables.items()
            if not variable.exported and variable.array is None and name not in before
        }  # fmt: skip
        files = dict(self.state.files)
        self.started.append(Started(tuple(words), first_line(words[0], line), environment, unexported, files, self.alternative > 0))

    def _function(self, name: str, words: list[Text]) -> Status:
        arguments, self.state.arguments = self.state.arguments, words[1:]
        self.called.add(name)
        self.calls += 1
        saved = builtin.enter(self)
        try:
            return self.run(self.state.functions[name])
        except Leave as leave:
            if leave.kind != "return":
                raise
            return Status(leave.levels)
        finally:
            builtin.leave(self, saved)
            self.calls -= 1
            self.state.arguments = arguments


def _keyed(text: Text) -> tuple[str | None, Text]:
    """`[key]=value` of an array."""
    whole = plain(text)
    if not whole.startswith("[") or "]=" not in whole:
        return None, text
    key, _, value = whole[1:].partition("]=")
    return key.strip("\"'"), (Piece(value, first_line(text, 0)),)
