"""The state of a script that is being followed: variables, output, notes, and the ways into texts and branches. What commands do is built upon it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everybyte.basics.errors import BadInput
from everybyte.formats.shell.branches import starts
from everybyte.formats.shell.expand import Expander
from everybyte.formats.shell.grammar import Parser
from everybyte.formats.shell.outcome import SUCCESS, Leave, Note, Sink, Spent, Started, Status
from everybyte.formats.shell.state import State
from everybyte.formats.shell.syntax import Node, Sequence, Word
from everybyte.formats.shell.values import Piece, Text, Unknowns, Variable

MOST_STEPS = 12_000
"""Commands that one script may take to follow, its loops unrolled."""
MOST_STARTED = 2_000
MOST_CALLS = 30
_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\.)*(?:\\\n(?:[^\\\n]|\\.)*)*")


class Machine(Expander):
    """One script being followed."""

    def __init__(
        self,
        source: str,
        state: State | None = None,
        given: Callable[[str], str | None] | None = None,
        unknowns: Unknowns | None = None,
    ) -> None:
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
        except Spent:
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
        if not starts(node):
            return
        outer, sink = self.state, self.sink
        self.state, self.sink = self.state.copy(), Sink()
        self.alternative += 1
        try:
            self._whole(node)
        finally:
            self.alternative -= 1
            self.state, self.sink = outer, sink

    def run(self, node: Node) -> Status:
        """Follows a command; the interpreter knows how."""
        raise NotImplementedError
