"""Reads the words of a script: quotes, `$` in all its forms, continued lines. What commands are made of words is the grammar's business."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

from everybyte.basics.errors import BadInput
from everybyte.formats.shell.syntax import Arithmetic, Literal, Node, Parameter, Part, Placeholder, Substitution, Word

LONGEST = 1 << 20
"""Characters of a script. The longest launch script of a public repository has a twentieth of it."""
DEEPEST = 60
"""Nesting of quotes, substitutions and compound commands."""

META = frozenset(" \t\n|&;<>()")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = frozenset("@*#?-$!0123456789")
_PLACEHOLDER = re.compile(r"<-{0,2}[A-Za-z_](?:[\w .:/,'|-]*[\w'])?>(?=[\s/:,;\"'.)=-]|$)")
_OPERATORS = (":-", ":=", ":?", ":+", "##", "%%", "//", "/#", "/%", "^^", ",,", "-", "=", "?", "+", "#", "%", "/", "^", ",", "@", ":")
_PATTERNS = ("#", "##", "%", "%%", "/", "//", "/#", "/%", "^", "^^", ",", ",,")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v", "?": "?"}
_QUOTED, _BRACE, _WORD, _DOCUMENT = range(4)


class Scanner:
    """A position in a text. `commands` reads the commands inside `$( )`; the grammar sets it."""

    commands: Callable[[], Node]

    def __init__(self, text: str, source: str, first_line: int = 1) -> None:
        if len(text) > LONGEST:
            raise BadInput(source, f"has {len(text):,} characters; a script has at most {LONGEST:,}")
        if "\0" in text:
            raise BadInput(source, "holds a zero byte: this is no text")
        self.text, self.source, self.first_line = text, source, first_line
        self.pos = 0
        self.depth = 0
        self.notes: list[tuple[int, str]] = []
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line(self, pos: int | None = None) -> int:
        """The line of a position."""
        return bisect_right(self._starts, self.pos if pos is None else pos) - 1 + self.first_line

    def fault(self, message: str, pos: int | None = None) -> BadInput:
        """A refusal at a position."""
        return BadInput(f"{self.source}:{self.line(pos)}", message)

    def at(self, text: str) -> bool:
        """Whether `text` stands here."""
        return self.text.startswith(text, self.pos)

    def peek(self) -> str:
        """The character here; empty at the end."""
        return self.text[self.pos : self.pos + 1]

    def deeper(self) -> None:
        """Counts one level of nesting; whoever calls it takes it back."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fault(f"nested more than {DEEPEST} levels deep")

    def blanks(self) -> None:
        """Passes blanks, continued lines and a comment."""
        while True:
            if self.peek() in (" ", "\t") and self.peek():
                self.pos += 1
            elif self.at("\\\n"):
                self.pos += 2
            else:
                break
        if self.peek() == "#":
            end = self.text.find("\n", self.pos)
            self.pos = len(self.text) if end < 0 else end

    def word(self) -> Word | None:
        """The word here, up to a blank or an operator; None if there is none."""
        start = self.pos
        parts = self._parts(_WORD)
        return Word(tuple(parts), self.line(start)) if self.pos > start else None

    def document(self) -> Word:
        """The whole text as that of a here-document: `$` and backticks live, quotes are text."""
        line = self.line()
        self._in_document = True
        return Word(tuple(self._parts(_DOCUMENT)), line)

    def _parts(self, mode: int, *, inside_quotes: bool = False) -> list[Part]:
        """Parts up to what ends the mode. `inside_quotes`: of a `${...}` in double quotes, where single quotes are text."""
        parts: list[Part] = []
        run: list[str] = []
        run_start = self.pos
        quoted = mode in (_QUOTED, _DOCUMENT) or inside_quotes

        def flush() -> None:
            if run:
                parts.append(Literal("".join(run), self.line(run_start), quoted))
                run.clear()

        while True:
            char = self.peek()
            if not char or self._ends(char, mode):
                break
            if not run:
                run_start = self.pos
            if mode == _WORD and char in "?*+@!" and self.text[self.pos + 1 : self.pos + 2] == "(":
                run.append(self._balanced())
                continue
            special = self._special(char, mode, quoted=quoted)
            if special is None:
                run.append(char)
                self.pos += 1
                if char == "\n":
                    flush()
                continue
            flush()
            parts.extend(special)
        flush()
        return parts

    def _special(self, char: str, mode: int, *, quoted: bool) -> list[Part] | None:
        """The parts that a character begins; None if it is text."""
        if char == "\\":
            return self._backslash(quoted=quoted, brace=mode == _BRACE)
        if char == "$":
            return self._dollar(quoted=quoted)
        if char == "`":
            return [self._backticks(quoted=quoted)]
        if char == '"' and mode not in (_QUOTED, _DOCUMENT):
            return self._double()
        if char == "'" and not quoted:
            return [self._single()]
        return [self._angle()] if mode == _WORD and char in "<>" else None

    def _ends(self, char: str, mode: int) -> bool:
        if mode == _QUOTED:
            return char == '"'
        if mode == _BRACE:
            return char in "}/" if self._slash_ends else char == "}"
        if mode == _DOCUMENT:
            return False
        if char in "<>":
            return not (_PLACEHOLDER.match(self.text, self.pos) or self.text[self.pos + 1 : self.pos + 2] == "(")
        return char in META

    _slash_ends = False

    def _backslash(self, *, quoted: bool, brace: bool) -> list[Part] | None:
        """A backslash and what it escapes; None if it is text."""
        following = self.text[self.pos + 1 : self.pos + 2]
        line = self.line()
        if following == "\n":
            self.pos += 2
            return []
        if quoted and following not in ("$", "`", '"', "\\", *(("}",) if brace else ())):
            return None
        if quoted and following == '"' and self._in_document:
            return None
        if following in (" ", "\t") and self._blank_to_end_of_line():
            self.notes.append((line, "a blank follows the backslash, so the command ends here and the flags below do not reach it"))
        self.pos += 1 + len(following)
        return [Literal(following or "\\", line, quoted=True)]

    _in_document = False

    def _blank_to_end_of_line(self) -> bool:
        end = self.text.find("\n", self.pos)
        return not self.text[self.pos + 1 : len(self.text) if end < 0 else end].strip()

    def _single(self) -> Literal:
        start = self.pos
        end = self.text.find("'", start + 1)
        if end < 0:
            raise self.fault("the single quote opened here is never closed", start)
        self.pos = end + 1
        return Literal(self.text[start + 1 : end], self.line(start), quoted=True)

    def _ansi(self) -> Literal:
        """`$'...'` with its escapes."""
        start, out = self.pos, []
        self.pos += 2
        while (char := self.peek()) != "'":
            if not char:
                raise self.fault("the $' opened here is never closed", start)
            self.pos += 1
            if char == "\\":
                char = self.peek()
                self.pos += len(char)
                char = _ESCAPES.get(char, "\\" + char)
            out.append(char)
        self.pos += 1
        return Literal("".join(out), self.line(start), quoted=True)

    def _double(self) -> list[Part]:
        start = self.pos
        self.pos += 1
        self.deeper()
        parts = self._parts(_QUOTED)
        self.depth -= 1
        if self.peek() != '"':
            raise self.fault("the double quote opened here is never closed", start)
        self.pos += 1
        return parts or [Literal("", self.line(start), quoted=True)]

    def _angle(self) -> Part:
        """`<your-model>` or `<( command )`."""
        match = _PLACEHOLDER.match(self.text, self.pos)
        line = self.line()
        if match:
            self.pos = match.end()
            return Placeholder(match.group(), line)
        start = self.pos
        self.pos += 2
        return self._command(start, quoted=False, process=True)

    def _balanced(self) -> str:
        """`@(a|b)`, a pattern: its text up to the closing parenthesis."""
        start, level = self.pos, 0
        while char := self.peek():
            self.pos += 1
            level += (char == "(") - (char == ")")
            if char == ")" and level == 0:
                return self.text[start : self.pos]
        raise self.fault("the parenthesis opened here is never closed", start)

    def _dollar(self, *, quoted: bool) -> list[Part] | None:
        start, line = self.pos, self.line()
        following = self.text[start + 1 : start + 2]
        if following == "'" and not quoted:
            return [self._ansi()]
        if following == '"' and not quoted:
            self.pos += 1
            return self._double()
        if following == "{":
            return [self._braced(quoted=quoted)]
        if self.text.startswith("$((", start) and (text := self._arithmetic("$((", "))")) is not None:
            return [Arithmetic(text, line, quoted)]
        if following == "[" and (text := self._arithmetic("$[", "]")) is not None:
            return [Arithmetic(text, line, quoted)]
        if following == "(":
            self.pos += 2
            return [self._command(start, quoted=quoted)]
        match = _NAME.match(self.text, start + 1)
        name = match.group() if match else following if following in _SPECIAL and following else ""
        if not name:
            return None
        self.pos = start + 1 + len(name)
        return [Parameter(name, line, "$" + name, quoted)]

    def _arithmetic(self, opening: str, closing: str) -> str | None:
        """The text between the brackets; None if they turn out to be a subshell in a substitution."""
        start, level = self.pos + len(opening), 0
        for match in re.compile(r"[()\[\]]").finditer(self.text, start):
            char = match.group()
            if level == 0 and self.text.startswith(closing, match.start()):
                self.pos = match.start() + len(closing)
                return self.text[start : match.start()]
            level += (char in "([") - (char in ")]")
            if level < 0:
                return None
        return None

    def _command(self, start: int, *, quoted: bool, process: bool = False) -> Substitution:
        self.deeper()
        slash, document = self._slash_ends, self._in_document
        self._slash_ends = self._in_document = False
        body = self.commands()
        self._slash_ends, self._in_document = slash, document
        self.depth -= 1
        if self.peek() != ")":
            raise self.fault("the parenthesis opened here is never closed", start)
        self.pos += 1
        return Substitution(body, self.line(start), self.text[start : self.pos], quoted, process)

    def _backticks(self, *, quoted: bool) -> Substitution:
        start, out = self.pos, []
        self.pos += 1
        while (char := self.peek()) != "`":
            if not char:
                raise self.fault("the backtick opened here is never closed", start)
            if char == "\\" and self.text[self.pos + 1 : self.pos + 2] in ("`", "\\", "$"):
                self.pos += 1
                char = self.peek()
            out.append(char)
            self.pos += 1
        self.pos += 1
        return Substitution(self.inner("".join(out), self.line(start)), self.line(start), self.text[start : self.pos], quoted)

    def inner(self, text: str, line: int) -> Node:
        """The commands of a text of its own; the grammar knows how."""
        raise NotImplementedError

    def _braced(self, *, quoted: bool) -> Parameter:
        """`${...}`."""
        start, line = self.pos, self.line()
        self.pos += 2
        self.deeper()
        length = self.at("#") and not self.at("#}") and not self.at("#-") and not self.at("#:")
        indirect = self.at("!") and not self.at("!}")
        self.pos += length or indirect
        match = _NAME.match(self.text, self.pos)
        if match:
            name = match.group()
        elif self.peek() in _SPECIAL and self.peek():
            digits = re.compile(r"\d+").match(self.text, self.pos)
            name = digits.group() if digits else self.peek()
        else:
            raise self.fault(f"${{{self.text[self.pos : self.pos + 20]!r} names no variable", start)
        self.pos += len(name)
        index = self._index(start) if self.peek() == "[" else None
        op, word, replacement = self._operation(quoted=quoted)
        if self.peek() != "}":
            raise self.fault("the ${ opened here is never closed", start)
        self.pos += 1
        self.depth -= 1
        return Parameter(name, line, self.text[start : self.pos], quoted, index, length, indirect, op, word, replacement)

    def _index(self, start: int) -> str:
        level = 0
        for match in re.compile(r"[\[\]]").finditer(self.text, self.pos):
            level += 1 if match.group() == "[" else -1
            if level == 0:
                text = self.text[self.pos + 1 : match.start()]
                self.pos = match.end()
                return text
        raise self.fault("the [ of this variable is never closed", start)

    def _operation(self, *, quoted: bool) -> tuple[str, Word | None, Word | None]:
        op = next((op for op in _OPERATORS if self.at(op)), "")
        self.pos += len(op)
        if not op:
            return "", None, None
        slash = self._slash_ends
        self._slash_ends = op in ("/", "//", "/#", "/%")
        word = self._argument(text_quotes=quoted and op not in _PATTERNS)
        self._slash_ends = False
        replacement = None
        if op[0] == "/" and self.peek() == "/":
            self.pos += 1
            replacement = self._argument(text_quotes=False)
        self._slash_ends = slash
        return op, word, replacement

    def _argument(self, *, text_quotes: bool) -> Word:
        start = self.pos
        parts = self._parts(_BRACE, inside_quotes=text_quotes)
        return Word(tuple(parts), self.line(start))
