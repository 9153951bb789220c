"""Follows a script as bash would, without running anything: variables change, conditions are decided, and each program that would start is noted.

Here: simple commands, that is assignments, redirections, functions, builtins, and programs. `compound.py` has control flow, `machine.py` the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from everybyte.formats.shell import builtin
from everybyte.formats.shell.compound import Compound
from everybyte.formats.shell.machine import MOST_CALLS, MOST_STARTED
from everybyte.formats.shell.outcome import SUCCESS, Leave, Spent, Started, Status
from everybyte.formats.shell.programs import PROGRAMS, SILENT, echo
from everybyte.formats.shell.state import WrittenFile
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
    Node,
    Pipeline,
    Redirection,
    Sequence,
    Simple,
    Test,
    While,
    Word,
)
from everybyte.formats.shell.values import Piece, Text, Variable, first_line, is_marked, plain


class Interpreter(Compound):
    """Follows every command of a script."""

    def run(self, node: Node) -> Status:
        """Follows a command."""
        self._steps -= 1
        if self._steps < 0:
            raise Spent
        return self._followers[type(node)](node)

    @cached_property
    def _followers(self) -> dict[type, Callable[[Any], Status]]:
        return {
            Simple: self._simple,
            Sequence: self._sequence,
            AndOr: self._and_or,
            Pipeline: self._pipeline,
            If: self._if,
            Group: self._group,
            Case: self._case,
            For: self._for,
            While: self._loop,
            ForArithmetic: self._loop,
            Function: self._define,
            Test: self._test,
            Count: self._count,
        }

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
            raise Spent
        environment = {**self.state.exported(), **before}
        unexported = {
            name: variable.text for name, variable in self.state.variables.items() if not variable.exported and variable.array is None and name not in before
        }
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
