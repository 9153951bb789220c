"""The builtins of the shell that change what a script knows: export, set, shift, read, getopts, eval, source and their kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from everybyte.formats.shell.conditions import Condition, Operand
from everybyte.formats.shell.outcome import SUCCESS, Leave, Sink, Status
from everybyte.formats.shell.programs import printf as printed
from everybyte.formats.shell.state import State
from everybyte.formats.shell.syntax import Assignment
from everybyte.formats.shell.values import Piece, Text, Unknowns, Variable, first_line, plain


class Shell(Protocol):
    """What the builtins ask of the interpreter."""

    state: State
    sink: Sink
    input: Text | None
    locals: list[dict[str, Variable | None]]
    unknowns: Unknowns

    def arithmetic(self, text: str, line: int, written: str) -> str:
        """The value of an expression as text."""

    def assign(self, name: str, text: Text, index: str | None, line: int, *, append: bool = False) -> None:
        """Sets a variable or one element of it."""

    def assign_array(self, assignment: Assignment, *, named: bool = False) -> None:
        """`NAME=( ... )`."""

    def decide(self, question: Callable[[], bool | None]) -> Status:
        """The status of a condition."""

    def settled(self, text: str) -> str:
        """A text as a condition sees it."""

    def integer(self, text: str) -> int:
        """A whole number of a condition."""

    def is_set(self, name: str) -> bool:
        """Whether a variable is set."""

    def split(self, text: Text) -> list[Text]:
        """A text in words."""

    def nested(self, text: str, line: int) -> Status:
        """The commands of a text, in this state."""

    def write(self, name: str, text: Text | None, *, append: bool = False) -> None:
        """A file that the script writes."""

    def file_text(self, name: str) -> Text | None:
        """The text of a file."""

    def call(self, words: list[Text], line: int, before: dict[str, Text]) -> Status:
        """A function, a builtin, or a program."""


DECLARES = frozenset(("export", "declare", "typeset", "local", "readonly"))
Builtin = Callable[["Shell", list[Text], int], Status]


@contextmanager
def temporary(shell: Shell, before: dict[str, Text]) -> Iterator[None]:
    """Variables that hold for one builtin: `IFS=, read -ra LIST`."""
    saved = {name: shell.state.variables.get(name) for name in before}
    for name, text in before.items():
        shell.state.set(name, text)
    try:
        yield
    finally:
        for name, variable in saved.items():
            if variable is None:
                shell.state.variables.pop(name, None)
            else:
                shell.state.variables[name] = variable


def enter(shell: Shell) -> dict[str, Variable | None]:
    """Begins a function: `local` variables are remembered in what this returns."""
    saved: dict[str, Variable | None] = {}
    shell.locals.append(saved)
    return saved


def leave(shell: Shell, saved: dict[str, Variable | None]) -> None:
    """Ends a function: its local variables are what they were."""
    shell.locals.pop()
    for name, variable in saved.items():
        if variable is None:
            shell.state.variables.pop(name, None)
        else:
            shell.state.variables[name] = variable


def declare(shell: Shell, name: str, words: list[Text], assignments: tuple[Assignment, ...]) -> Status:
    """`export X=1`, `declare -A MAP=( ... )`, `local x`."""
    options = "".join(plain(word)[1:] for word in words if plain(word)[:1] == "-")
    exported = name == "export" or "x" in options
    for assignment in assignments:
        _remember(shell, name, assignment.name)
        shell.assign_array(assignment, named="A" in options)
    for word in words:
        text = plain(word)
        if text[:1] in ("-", "+"):
            continue
        variable, equals, _ = text.partition("=")
        append = variable.endswith("+")
        variable = variable.removesuffix("+")
        if not variable.isidentifier():
            continue
        _remember(shell, name, variable)
        if equals:
            shell.assign(variable, _after(word, len(text.partition("=")[0]) + 1), None, first_line(word, 0), append=append)
        elif variable not in shell.state.variables and ("A" in options or "a" in options):
            shell.state.variables[variable] = Variable(array={}, named="A" in options)
        if exported and variable in shell.state.variables:
            shell.state.variables[variable].exported = "n" not in options
    return SUCCESS


def _remember(shell: Shell, name: str, variable: str) -> None:
    if name in ("local", "declare", "typeset") and shell.locals:
        old = shell.state.variables.get(variable)
        shell.locals[-1].setdefault(variable, old.copy() if old else None)


def _after(text: Text, count: int) -> Text:
    """The text from a position on, each piece with its line."""
    pieces = []
    for piece in text:
        if count < len(piece.text):
            pieces.append(Piece(piece.text[count:], piece.line))
        count = max(0, count - len(piece.text))
    return tuple(pieces)


def _nothing(shell: Shell, words: list[Text], line: int) -> Status:
    return SUCCESS


def _false(shell: Shell, words: list[Text], line: int) -> Status:
    return Status(1)


def _test(shell: Shell, words: list[Text], line: int) -> Status:
    texts = [plain(word) for word in words]
    return shell.decide(lambda: Condition([Operand(shell.settled(text)) for text in texts], shell.integer, shell.is_set).truth())


def _bracket(shell: Shell, words: list[Text], line: int) -> Status:
    return _test(shell, words[:-1] if words and plain(words[-1]) == "]" else words, line)


def _set(shell: Shell, words: list[Text], line: int) -> Status:
    """`set -- a b` sets the arguments; options of the shell change nothing here."""
    texts = [plain(word) for word in words]
    if "--" in texts:
        shell.state.arguments = words[texts.index("--") + 1 :]
    elif texts and texts[0][:1] not in ("-", "+"):
        shell.state.arguments = words
    return SUCCESS


def _shift(shell: Shell, words: list[Text], line: int) -> Status:
    count = plain(words[0]) if words else "1"
    shell.state.arguments = shell.state.arguments[int(count) if count.isdigit() else 1 :]
    return SUCCESS


def _unset(shell: Shell, words: list[Text], line: int) -> Status:
    for word in words:
        shell.state.variables.pop(plain(word), None)
    return SUCCESS


def _let(shell: Shell, words: list[Text], line: int) -> Status:
    value = "0"
    for word in words:
        value = shell.arithmetic(plain(word), line, plain(word))
    return Status(int(value == "0"))


def _read(shell: Shell, words: list[Text], line: int) -> Status:
    """`read -r -d '' X <<EOF` takes all of its input, `read -ra LIST <<< "a b"` a line in words."""
    flags, names, whole, skip = "", [], False, False
    texts = [plain(word) for word in words]
    for i, text in enumerate(texts):
        if skip:
            skip = False
        elif text[:1] == "-" and len(text) > 1:
            flags += text[1:]
            skip = (text[-1] in "dnpt" and text[:2] != "-d") or text == "-d"
            whole = whole or (text == "-d" and texts[i + 1 : i + 2] == [""]) or (text.endswith("rd") and texts[i + 1 : i + 2] == [""])
            skip = skip or text.endswith("rd")
        else:
            names.append(text)
    given = shell.input
    if given is None:
        for name in names:
            shell.state.set(name, (Piece(shell.unknowns.mark("$" + name, line, "input"), line),))
        return Status(None)
    if not plain(given):
        for name in names:
            shell.state.variables.pop(name, None)
        return Status(1)
    taken = given if whole else _first_line(given)
    fields = shell.split(taken)
    if "a" in flags and names:
        shell.state.variables[names[0]] = Variable(array={str(i): field for i, field in enumerate(fields)})
    elif len(names) <= 1:
        shell.state.set(names[0] if names else "REPLY", _trimmed(taken))
    else:
        for i, name in enumerate(names):
            last = i == len(names) - 1
            shell.state.set(name, _with_blanks(fields[i:]) if last else fields[i] if i < len(fields) else ())
    return Status(1 if whole else 0)


def _first_line(text: Text) -> Text:
    pieces = []
    for piece in text:
        head, newline, _ = piece.text.partition("\n")
        pieces.append(Piece(head, piece.line))
        if newline:
            break
    return tuple(pieces)


def _trimmed(text: Text) -> Text:
    pieces = list(text)
    while pieces and not pieces[-1].text.strip():
        pieces.pop()
    if pieces:
        pieces[-1] = Piece(pieces[-1].text.rstrip(" \t\n"), pieces[-1].line)
        pieces[0] = Piece(pieces[0].text.lstrip(" \t\n"), pieces[0].line)
    return tuple(pieces)


def _with_blanks(fields: list[Text]) -> Text:
    pieces: list[Piece] = []
    for i, field in enumerate(fields):
        pieces += [Piece(" ", field[0].line if field else 0)] if i else []
        pieces += field
    return tuple(pieces)


def _lines(shell: Shell, words: list[Text], line: int) -> Status:
    """`mapfile -t LIST`, `readarray`."""
    names = [plain(word) for word in words if plain(word)[:1] != "-"]
    if names and shell.input:
        lines = plain(shell.input).splitlines()
        shell.state.variables[names[-1]] = Variable(array={str(i): (Piece(each, line),) for i, each in enumerate(lines)})
    return SUCCESS


def _printf(shell: Shell, words: list[Text], line: int) -> Status:
    texts = [plain(word) for word in words]
    variable = texts[1] if texts[:1] == ["-v"] and len(texts) > 2 else ""
    text = printed(texts[2:] if variable else texts)
    if variable:
        shell.state.set(variable, (Piece(text, line),) if text is not None else ())
    elif text is None:
        shell.sink.lost = True
    else:
        shell.sink.pieces.append(Piece(text, line))
    return SUCCESS


def _cat(shell: Shell, words: list[Text], line: int) -> Status:
    """Its input, or the files it names."""
    names = [plain(word) for word in words if plain(word)[:1] != "-" or plain(word) == "-"]
    texts = [shell.input if name == "-" else shell.file_text(name) for name in names] or [shell.input]
    for text in texts:
        if text is None:
            shell.sink.lost = True
        else:
            shell.sink.pieces += text
    return Status(None) if any(text is None for text in texts) else SUCCESS


def _tee(shell: Shell, words: list[Text], line: int) -> Status:
    for word in words:
        if plain(word)[:1] != "-":
            shell.write(plain(word), shell.input, append=any(plain(each) == "-a" for each in words))
    shell.sink.lost |= shell.input is None
    shell.sink.pieces += shell.input or ()
    return SUCCESS


def _eval(shell: Shell, words: list[Text], line: int) -> Status:
    """`eval "$CMD"`: the words are read as commands once more."""
    text = " ".join(plain(word) for word in words)
    return shell.nested(text, first_line(words[0], line) if words else line)


def _source(shell: Shell, words: list[Text], line: int) -> Status:
    """`source FILE`, of a file that was given or written."""
    text = shell.file_text(plain(words[0])) if words else None
    return Status(None) if text is None else shell.nested(plain(text), text[0].line if text else line)


def _passed_on(shell: Shell, words: list[Text], line: int) -> Status:
    """`exec`, `command`, `builtin`: the command behind them."""
    rest = list(words)
    lookup = False
    while rest and plain(rest[0])[:1] == "-":
        lookup |= plain(rest[0]) in ("-v", "-V")
        rest.pop(0)
    if lookup or not rest:
        shell.sink.lost |= lookup
        return Status(None) if lookup else SUCCESS
    return shell.call(rest, line, {})


def _leave(kind: str) -> Builtin:
    def leave_now(shell: Shell, words: list[Text], line: int) -> Status:
        text = plain(words[0]) if words else ""
        default = 1 if kind in ("break", "continue") else 0
        raise Leave(kind, int(text) if text.isdigit() else default)

    return leave_now


def _getopts(shell: Shell, words: list[Text], line: int) -> Status:
    """Without arguments there is no option to read."""
    return Status(1)


BUILTINS: dict[str, Builtin] = {
    ":": _nothing,
    "true": _nothing,
    "false": _false,
    "test": _test,
    "[": _bracket,
    "set": _set,
    "shift": _shift,
    "unset": _unset,
    "let": _let,
    "read": _read,
    "mapfile": _lines,
    "readarray": _lines,
    "printf": _printf,
    "cat": _cat,
    "tee": _tee,
    "eval": _eval,
    "source": _source,
    ".": _source,
    "exec": _passed_on,
    "command": _passed_on,
    "builtin": _passed_on,
    "exit": _leave("exit"),
    "return": _leave("return"),
    "break": _leave("break"),
    "continue": _leave("continue"),
    "getopts": _getopts,
}
"""By name."""
