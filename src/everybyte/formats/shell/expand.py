"""Expansion: from the words of a command to its arguments, in bash's order (braces, variables and substitutions, splitting, quotes)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from everybyte.basics.errors import BadInput
from everybyte.formats.shell import patterns
from everybyte.formats.shell.arithmetic import NotANumber, evaluate
from everybyte.formats.shell.state import State
from everybyte.formats.shell.syntax import Arithmetic, Literal, Node, Parameter, Part, Placeholder, Substitution, Word
from everybyte.formats.shell.values import LONGEST_VALUE, Piece, Text, Unknowns, Variable, first_line, is_all_marks, is_marked, plain

_DEFAULTS = (":-", "-", ":=", "=", ":+", "+")
Field = list[tuple[str, int, bool]]
"""Text, line and whether it is quoted."""


class Runner(Protocol):
    """What expansion needs of the interpreter."""

    state: State
    unknowns: Unknowns

    def output(self, node: Node, written: str, line: int) -> Text:
        """What commands print, without the line ends at its end."""
        ...

    def refuse(self, line: int, message: str) -> BadInput:
        """A refusal at a line."""
        ...


class Expander:
    """Expands words in the state of a runner."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.assumed: list[str] = []
        """Variables and arguments that were taken as empty since the caller last looked."""

    def fields(self, words: tuple[Word, ...]) -> list[Text]:
        """All arguments that the words become."""
        out: list[Text] = []
        for word in words:
            for single in _braced(word):
                out += [_joined(field) for field in self._split(single)]
        return out

    def text(self, word: Word | None) -> Text:
        """One text: of an assignment, a here-document, a quoted word. Nothing is split."""
        if word is None:
            return ()
        pieces: list[Piece] = []
        for part in word.parts:
            if isinstance(part, Literal):
                pieces.append(Piece(part.text, part.line))
            else:
                pieces += self._joined_values(part)
        return self._bounded(tuple(pieces), word.line)

    def pattern(self, word: Word | None) -> str:
        """A word as a pattern: quoted text matches only itself."""
        out = []
        for part in word.parts if word else ():
            text = part.text if isinstance(part, Literal) else plain(tuple(self._joined_values(part)))
            out.append(patterns.escape(text) if part.quoted else text)
        return "".join(out)

    def _bounded(self, text: Text, line: int) -> Text:
        if sum(len(piece.text) for piece in text) > LONGEST_VALUE:
            raise self.runner.refuse(line, f"a value grows over {LONGEST_VALUE:,} characters here")
        return text

    def _joined_values(self, part: Part) -> list[Piece]:
        values = self.values(part)
        pieces: list[Piece] = []
        for i, value in enumerate(values):
            if i:
                pieces.append(Piece(" ", part.line))
            pieces += value
        return pieces

    def _split(self, word: Word) -> list[Field]:
        """The fields of one word."""
        fields: list[Field] = []
        current: Field = []
        for part in self._spliced(word.parts):
            if isinstance(part, Literal):
                current.append((part.text, part.line, part.quoted))
                continue
            values = self.values(part)
            if part.quoted:
                many = isinstance(part, Parameter) and (part.name == "@" or part.index == "@") and not part.length
                if many and not values:
                    continue
                for i, value in enumerate(values):
                    if i:
                        fields.append(current)
                        current = []
                    current += [(piece.text, piece.line, True) for piece in value] or [("", part.line, True)]
                continue
            for i, value in enumerate(values):
                if i and current:
                    fields.append(current)
                    current = []
                current = self._spread(value, current, fields)
        if current:
            fields.append(current)
        return [field for field in fields if any(quoted or text for text, _, quoted in field)]

    def _spliced(self, parts: tuple[Part, ...]) -> Iterator[Part]:
        """The parts of a word; where `${X:-word}` comes to its word, the parts of that, whose quotes count."""
        for part in parts:
            if isinstance(part, Parameter) and not part.quoted and part.op in _DEFAULTS and self._takes_word(part):
                if part.op in (":=", "="):
                    self.assign(part.name, self.text(part.word), part.index, part.line)
                yield from self._spliced(part.word.parts if part.word else ())
            else:
                yield part

    def _takes_word(self, part: Parameter) -> bool:
        if part.indirect or part.length:
            return False
        values, known = self._stored(part)
        return self._is_empty(part, values, known=known) != (part.op[-1] == "+")

    def _is_empty(self, part: Parameter, values: list[Text], *, known: bool) -> bool:
        """Whether `${X:-word}` sees nothing: X is not set, or (with the colon) empty. A value that only the environment could give is none."""
        text = "".join(plain(value) for value in values)
        emptied = self.runner.unknowns.as_empty(text)
        return not known or (text != "" and emptied == "") or (part.op[0] == ":" and emptied == "")

    def _spread(self, value: Text, current: Field, fields: list[Field]) -> Field:
        """Splits an unquoted value at blanks (or what IFS says) into fields; returns the open one."""
        separators = self.runner.state.separators()
        blanks = "".join(char for char in separators if char in " \t\n")
        for text, line in value:
            start = 0
            for pos, char in enumerate(text):
                if char not in separators:
                    continue
                if pos > start:
                    current.append((text[start:pos], line, False))
                if current:
                    fields.append(current)
                elif char not in blanks:
                    fields.append([("", line, True)])
                current, start = [], pos + 1
            if start < len(text):
                current.append((text[start:], line, False))
        return current

    def values(self, part: Part) -> list[Text]:
        """The values that a part stands for: one, or those of an array."""
        match part:
            case Literal():
                return [(Piece(part.text, part.line),)]
            case Placeholder():
                return [(Piece(self.runner.unknowns.mark(part.text, part.line, "placeholder"), part.line),)]
            case Arithmetic():
                return [(Piece(self.arithmetic(part.text, part.line, f"$(({part.text}))"), part.line),)]
            case Substitution():
                if part.process:
                    return [(Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)]
                return [self.runner.output(part.body, part.written, part.line)]
            case Parameter():
                return self._parameter(part)

    def arithmetic(self, text: str, line: int, written: str) -> str:
        """The value of an expression as text; a mark if it cannot be worked out."""
        if "$" in text or "`" in text:
            from_quotes = self.runner_text(text, line)
            if is_marked(from_quotes):
                return self.runner.unknowns.mark(self.runner.unknowns.shown(f"$(({from_quotes}))"), line, "output")
            text = from_quotes
        try:
            return str(evaluate(text.replace('"', ""), self._number_of, lambda name, value: self._store(name, value, line)))
        except NotANumber:
            return self.runner.unknowns.mark(written, line, "output")

    def runner_text(self, text: str, line: int) -> str:
        """A text of the script (an expression, an index) with its variables put in."""
        return plain(self.text(self.parsed(text, line)))

    def parsed(self, text: str, line: int) -> Word:
        """A text read as inside double quotes; the interpreter knows how."""
        raise NotImplementedError

    def _number_of(self, name: str) -> str | None:
        base, _, index = name.partition("[")
        variable = self.runner.state.variables.get(base)
        if variable is None:
            return None
        text = variable.get(self._key(variable, index[:-1], 0)) if index else variable.get("0")
        return None if text is None or is_marked(plain(text)) else plain(text)

    def _store(self, name: str, value: int, line: int) -> None:
        self.assign(name.partition("[")[0], (Piece(str(value), line),), name.partition("[")[2][:-1] or None, line)

    def assign(self, name: str, text: Text, index: str | None, line: int, *, append: bool = False) -> None:
        """Sets a variable or one element of it."""
        state = self.runner.state
        if index is None:
            old = state.get(name) if append else None
            variable = state.variables.get(name)
            if variable is not None and variable.array is not None:
                variable.array["0"] = (old or ()) + text
            else:
                state.set(name, self._bounded((old or ()) + text, line))
            return
        variable = state.variables.setdefault(name, Variable(array={}))
        if variable.array is None:
            variable.array = {"0": variable.text} if variable.text else {}
        key = self._key(variable, index, line)
        variable.array[key] = (variable.array.get(key, ()) if append else ()) + text

    def _key(self, variable: Variable, index: str, line: int) -> str:
        """The key of an element: a number worked out, or the text of a named one."""
        text = self.runner_text(index, line)
        return text.strip("\"'") if variable.named else self._worked_out(text)

    def _worked_out(self, text: str) -> str:
        try:
            return str(evaluate(text, self._number_of, lambda name, value: None))
        except NotANumber:
            return text

    def _parameter(self, part: Parameter) -> list[Text]:
        """`$NAME` with everything that can stand around the name."""
        if part.indirect:
            return self._indirect(part)
        values, known = self._stored(part)
        if part.length:
            return [self._length(part, values)]
        many = part.index in ("@", "*") or part.name in ("@", "*")
        if part.op in (*_DEFAULTS, ":?", "?"):
            return self._default(part, values, known=known)
        if not known and not many:
            return [()] if part.name in self.runner.state.variables else [self._unset(part)]
        if part.op == ":":
            return self._slice(part, values, many=many)
        if part.op:
            values = [self._changed(part, value) for value in values]
        if (part.index == "*" and part.quoted) or (part.name == "*" and part.quoted):
            separator = self.runner.state.separators()[:1]
            return [_with_between(values, separator, part.line)]
        return values

    def _stored(self, part: Parameter) -> tuple[list[Text], bool]:
        """The values of a name and whether it is set."""
        state = self.runner.state
        if part.name in ("@", "*"):
            return list(state.arguments), bool(state.arguments)
        if part.name == "#":
            self.assumed += [] if state.arguments else [part.written]
            return [(Piece(str(len(state.arguments)), part.line),)], True
        if part.name == "0":
            return [state.name], bool(state.name)
        if part.name.isdigit():
            number = int(part.name)
            return ([state.arguments[number - 1]], True) if number <= len(state.arguments) else ([()], False)
        if not (part.name[0].isalpha() or part.name[0] == "_"):
            return [()], False
        variable = state.variables.get(part.name)
        if variable is None:
            return [()] if part.index not in ("@", "*") else [], False
        if part.index in ("@", "*"):
            return variable.elements(), bool(variable.elements())
        text = variable.get(self._key(variable, part.index, part.line) if part.index else "0")
        return [text or ()], text is not None

    def _unset(self, part: Parameter) -> Text:
        """What an unset variable stands for: a mark, since the environment of the run may hold it."""
        why = "argument" if part.name.isdigit() and part.name != "0" else "unset"
        if part.name in ("?", "!", "$", "-", "0"):
            why = "output"
        self.assumed.append(part.written)
        return (Piece(self.runner.unknowns.mark(part.written, part.line, why), part.line),)  # type: ignore[arg-type]

    def _default(self, part: Parameter, values: list[Text], *, known: bool) -> list[Text]:
        """`${X:-word}` and its kin."""
        empty = self._is_empty(part, values, known=known)
        if part.op in (":+", "+"):
            return [()] if empty else [self.text(part.word)]
        if not empty:
            return values
        if part.op in (":?", "?"):
            return [self._unset(part)]
        chosen = self.text(part.word)
        if part.op in (":=", "="):
            self.assign(part.name, chosen, part.index, part.line)
        return [chosen]

    def _indirect(self, part: Parameter) -> list[Text]:
        state = self.runner.state
        variable = state.variables.get(part.name)
        if part.index in ("@", "*"):
            return [(Piece(key, part.line),) for key in (variable.keys() if variable else [])]
        target = plain(state.get(part.name) or ())
        if target not in state.variables:
            return [self._unset(part)]
        inner = Parameter(target, part.line, part.written, part.quoted, op=part.op, word=part.word, replacement=part.replacement)
        return self._parameter(inner)

    def _length(self, part: Parameter, values: list[Text]) -> Text:
        if part.index in ("@", "*") or part.name in ("@", "*"):
            return (Piece(str(len(values)), part.line),)
        text = plain(values[0])
        if is_marked(text):
            return (Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)
        return (Piece(str(len(text)), part.line),)

    def _slice(self, part: Parameter, values: list[Text], *, many: bool) -> list[Text]:
        """`${X:2:3}` of a text or an array."""
        offset_text, _, length_text = plain(self.text(part.word)).partition(":")
        has_length = ":" in plain(self.text(part.word))
        try:
            offset = evaluate(offset_text, self._number_of, lambda name, value: None)
            length = evaluate(length_text, self._number_of, lambda name, value: None) if has_length else None
        except NotANumber:
            return [(Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)]
        if many:
            start = offset - 1 if part.name in ("@", "*") and offset > 0 else offset
            chosen = values[start:]
            return chosen if length is None else chosen[:length]
        text = plain(values[0])
        if is_marked(text):
            return [(Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)]
        start = offset if offset >= 0 else len(text) + offset
        if start < 0:
            return [()]
        end = len(text) if length is None else start + length if length >= 0 else len(text) + length
        return [(Piece(text[start:end], first_line(values[0], part.line)),)]

    def _changed(self, part: Parameter, value: Text) -> Text:
        """`${X#...}`, `${X/...}`, `${X^^}`."""
        text = plain(value)
        line = first_line(value, part.line)
        pattern = self.pattern(part.word)
        if (is_marked(text) or is_marked(pattern)) and (is_all_marks(text) or is_marked(pattern) or part.op not in ("#", "##", "%", "%%")):
            return (Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)
        changed = self._operation(part, text, pattern)
        if changed is None:
            return (Piece(self.runner.unknowns.mark(part.written, part.line, "output"), part.line),)
        return value if changed == text else (Piece(changed, line),)

    def _operation(self, part: Parameter, text: str, pattern: str) -> str | None:
        if part.op in ("#", "##", "%", "%%"):
            return patterns.cut(text, part.op, pattern)
        if part.op[0] == "/":
            return patterns.replace(text, part.op, pattern, plain(self.text(part.replacement)))
        if part.op == "@":
            return {"U": text.upper(), "L": text.lower(), "u": text[:1].upper() + text[1:]}.get(pattern, text)
        change = str.upper if part.op[0] == "^" else str.lower
        every = len(part.op) == 2
        if not pattern:
            return change(text) if every else change(text[:1]) + text[1:]
        return "".join(change(char) if (every or i == 0) and patterns.matches(char, pattern) else char for i, char in enumerate(text))


def _joined(field: Field) -> Text:
    return tuple(Piece(text, line) for text, line, _ in field)


def _with_between(values: list[Text], separator: str, line: int) -> Text:
    pieces: list[Piece] = []
    for i, value in enumerate(values):
        if i:
            pieces.append(Piece(separator, line))
        pieces += value
    return tuple(pieces)


def _braced(word: Word) -> list[Word]:
    """The words that brace expansion makes of one."""
    if not any(isinstance(part, Literal) and not part.quoted and "{" in part.text for part in word.parts):
        return [word]
    text, literal = "", ""
    inside: dict[str, Part] = {}
    for part in word.parts:
        if isinstance(part, Literal) and not part.quoted:
            text, literal = text + part.text, literal + part.text
        else:
            mark = chr(0xF0000 + len(inside))
            inside[mark] = part
            text, literal = text + mark, literal + " "
    found = patterns.braces(text, literal)
    if not found:
        return [word]
    start, end, alternatives = found[0]
    out: list[Word] = []
    for alternative in alternatives:
        made = _unmarked(text[:start] + alternative + text[end:], inside, word.line)
        out += _braced(made)
        if len(out) > patterns.MOST_WORDS:
            break
    return out


def _unmarked(text: str, inside: dict[str, Part], line: int) -> Word:
    parts: list[Part] = []
    run = ""
    for char in text:
        if char in inside:
            parts += [Literal(run, line)] if run else []
            parts.append(inside[char])
            run = ""
        else:
            run += char
    return Word((*parts, *([Literal(run, line)] if run else [])), line)
