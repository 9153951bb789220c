"""PowerShell, as far as launch scripts need it: variables, `$env:`, arrays and splatting, `param` defaults, strings with variables, backtick continuation.

Blocks of `if` and `foreach` are read line by line as if they ran once; cmdlets are commands like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everybyte.basics.errors import BadInput
from everybyte.formats.command import Word
from everybyte.formats.place import Given
from everybyte.formats.source import Source

Values = list[Word]
_ASSIGN = re.compile(r"(?:\[[\w.\[\]]+\]\s*)*\$(?:\{?(env|script|global|local):)?(\w+)\}?\s*(\+?)=\s*", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?(?:(env|script|global|local):)?(\w+)\}?|\$\(([^()]*)\)", re.IGNORECASE)
_PARAM = re.compile(r"\s*param\s*\(", re.IGNORECASE)
_BLOCK = re.compile(
    r"(?:else)?if\s*\(.*\)|else|try|finally|catch.*|for(?:each)?\s*\(.*\)|while\s*\(.*\)|do|function\s+[\w-]+.*|process|begin|end", re.IGNORECASE | re.DOTALL
)
_LEVELS = {"(": 1, "[": 1, "@{": 1, ")": -1, "]": -1, "}": -1}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def launches(source: Source) -> Iterator[tuple[tuple[Word, ...], dict[str, Given]]]:
    """Each command with its words and what `$env:` was set to before it. Raises BadInput with the line for a quote that is never closed."""
    yield from _Script(source).commands()


class _Script:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.variables: dict[str, Values] = {}
        self.environment: dict[str, Given] = {}

    def commands(self) -> Iterator[tuple[tuple[Word, ...], dict[str, Given]]]:
        text = re.sub(r"<#.*?#>", lambda match: "\n" * match.group().count("\n"), self.source.text.lstrip("\ufeff"), flags=re.DOTALL)
        for statement, line in self.statements(text, 1, "\n;{}"):
            if match := _PARAM.match(statement):
                self.parameters(statement[match.end() :].rstrip().removesuffix(")"), line)
            elif match := _ASSIGN.match(statement):
                self.assign(match, self.value(statement[match.end() :], line))
            elif not _BLOCK.fullmatch(statement.strip()) and (words := self.words(statement, line)):
                yield self.started(words), dict(self.environment)

    def statements(self, text: str, line: int, ends: str) -> Iterator[tuple[str, int]]:
        """Pieces of a text between the `ends` that are in no quotes and no brackets, each with its line. Comments are gone, continued lines joined."""
        run, start, level, pos = "", line, 0, 0
        while pos < len(text):
            piece = self.piece_at(text, pos, line, after_blank=not run or run[-1].isspace())
            pos += len(piece)
            if piece in ends and level <= 0:
                if run.strip():
                    yield run, start
                run, level = "", 0
                line += piece == "\n"
                start = line
                continue
            level += _LEVELS.get(piece, 0) if piece != "}" or level else 0
            line += piece.count("\n")
            if not run and piece.isspace():
                start = line
            elif piece[0] == "#":
                continue
            else:
                run += "\n" if piece[0] == "`" and piece[-1] == "\n" else piece
        if run.strip():
            yield run, start

    def piece_at(self, text: str, pos: int, line: int, *, after_blank: bool) -> str:
        """What cannot be cut at a position: a quoted text, an escaped character, a continued line, a comment, the opening of a table, a character."""
        char = text[pos]
        if char in "\"'":
            return text[pos : self.quote_end(text, pos, line)]
        if char == "`":
            continued = re.match(r"`[ \t]*\r?\n", text[pos:])
            return continued.group() if continued else text[pos : pos + 2]
        if char == "#" and after_blank:
            end = text.find("\n", pos)
            return text[pos : len(text) if end < 0 else end]
        return "@{" if text.startswith("@{", pos) else char

    def quote_end(self, text: str, pos: int, line: int) -> int:
        """Where a quoted text ends."""
        quote, at = text[pos], pos + 1
        while at < len(text):
            if text[at] == "`" and quote == '"':
                at += 2
            elif text[at] == quote:
                if text[at + 1 : at + 2] != quote:
                    return at + 1
                at += 2
            else:
                at += 1
        raise BadInput(f"{self.source.path}:{line}", f"the quote {quote} opened here is never closed")

    def parameters(self, text: str, line: int) -> None:
        """`param([string]$Model = "x", [int]$Context = 8192)`: the defaults."""
        for part, at in self.statements(text, line, ","):
            bare = re.sub(r"^\s*(\[[^\]]*\]\s*)*", "", part)
            if match := _ASSIGN.match(bare):
                self.assign(match, self.value(bare[match.end() :], at))

    def assign(self, match: re.Match[str], value: Values) -> None:
        """`$name = value`, `$env:NAME = value`."""
        name = match[2].casefold()
        if (match[1] or "").casefold() == "env":
            text = " ".join(word.text for word in value)
            place = value[0].place if value else self.source.place(None)
            self.environment[match[2]] = Given(text, place._replace(flag=match[2]))
        self.variables[name] = [*self.variables.get(name, []), *value] if match[3] else value

    def value(self, text: str, line: int) -> Values:
        """The words of an expression: a text, a number, a variable, an array."""
        text, line = text.strip(), line + len(text) - len(text.lstrip("\n"))
        if text.startswith("@(") and text.endswith(")"):
            text = text[2:-1]
        elif text.startswith("@{"):
            return []
        out: Values = []
        for part, at in self.statements(text, line, ",\n"):
            out += self.item(part.strip(), at)
        return out

    def item(self, text: str, line: int) -> Values:
        """One element of an array."""
        if " + " in text and not re.fullmatch(r"\"[^\"]*\"|'[^']*'", text):
            words = [word for part in text.split(" + ") for word in self.item(part.strip(), line)]
            return [Word("".join(word.text for word in words), words[0].place, "; ".join(word.unknown for word in words if word.unknown))] if words else []
        return self.words(text, line) if text[:1] in "\"'$" else [Word(text, self.source.place(line))]

    def words(self, text: str, line: int) -> Values:
        """The words of a command; a variable that holds an array is several."""
        out: Values = []
        pos = 0
        while pos < len(text):
            if text[pos].isspace():
                line += text[pos] == "\n"
                pos += 1
                continue
            end, pieces = self.word_end(text, pos, line)
            out += self.expanded(text[pos:end], pieces, line)
            line += text.count("\n", pos, end)
            pos = end
        return self.cut(out)

    def cut(self, words: Values) -> Values:
        """The words without the call operator, redirections and what comes behind a pipe."""
        if words and words[0].text in ("&", "."):
            words = words[1:]
        stop = next(
            (i for i, word in enumerate(words) if word.text in ("|", ">", ">>", "2>&1", "*>", "2>") or re.match(r"[12*]?>{1,2}", word.text)), len(words)
        )
        return words[:stop]

    def word_end(self, text: str, pos: int, line: int) -> tuple[int, list[str]]:
        """Where a word ends, and its pieces: quoted or plain."""
        pieces = []
        start = pos
        while pos < len(text) and not text[pos].isspace():
            if text[pos] in "\"'":
                pieces += [text[start:pos]] if pos > start else []
                end = self.quote_end(text, pos, line)
                pieces.append(text[pos:end])
                start = pos = end
            elif text[pos] == "`":
                pos += 2
            elif text.startswith("$(", pos):
                pos = text.find(")", pos) + 1 or len(text)
            else:
                pos += 1
        return pos, [*pieces, *([text[start:pos]] if pos > start else [])]

    def expanded(self, whole: str, pieces: list[str], line: int) -> Values:
        place = self.source.place(line)
        splat = re.fullmatch(r"[@$](\w+)", whole)
        if splat and splat[1].casefold() in self.variables:
            return self.variables[splat[1].casefold()]
        if splat and whole.startswith("@"):
            return []
        unknown: list[str] = []
        text = "".join(self.piece(piece, unknown) for piece in pieces)
        return [Word(text, place, "; ".join(f"{name} is not set in the script" for name in unknown))]

    def piece(self, piece: str, unknown: list[str]) -> str:
        """The text of a quoted or plain piece."""
        if piece[:1] == "'":
            return piece[1:-1].replace("''", "'")
        inner = piece[1:-1].replace('""', '"') if piece[:1] == '"' else piece
        inner = _VARIABLE.sub(lambda match: self.variable(match, unknown), inner)
        return re.sub(r"`(.)", lambda match: _ESCAPES.get(match[1], match[1]), inner)

    def variable(self, match: re.Match[str], unknown: list[str]) -> str:
        if match[3] is not None:
            inner = re.fullmatch(r"\$(?:env:)?(\w+)", match[3].strip())
            name, scope = (inner[1], "") if inner else ("", "")
        else:
            name, scope = match[2], (match[1] or "").casefold()
        if scope == "env" and match[2] in self.environment:
            return str(self.environment[match[2]].value)
        value = self.variables.get(name.casefold())
        if value is None or scope == "env":
            unknown.append(match.group())
            return match.group()
        unknown += [word.unknown for word in value if word.unknown]
        return " ".join(word.text for word in value)

    def started(self, words: Values) -> tuple[Word, ...]:
        """`Start-Process -FilePath X -ArgumentList ...` as `X ...`."""
        if words[0].text.casefold() not in ("start-process", "start", "saps"):
            return tuple(words)
        rest = list(words[1:])
        program: Values = []
        arguments: Values = []
        while rest:
            word = rest.pop(0)
            flag = word.text.casefold()
            if flag in ("-filepath", "-argumentlist", "-args"):
                taken = []
                while rest and not (rest[0].text.startswith("-") and rest[0].text[1:].isalpha() and rest[0].text[1:2].isupper()):
                    taken.append(rest.pop(0))
                (program if flag == "-filepath" else arguments).extend(taken)
            elif not flag.startswith("-") and not program:
                program.append(word)
        split = [word._replace(text=text.strip(",")) for word in arguments for text in (word.text.split() if len(arguments) == 1 else [word.text])]
        return (*program, *[word for word in split if word.text])
