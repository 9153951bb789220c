"""Scripts of cmd.exe, as far as launch scripts need it: `set`, `%NAME%`, `^` at the end of a line, `REM`, `if not defined`, `start`, `call`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everybyte.basics.errors import BadInput
from everybyte.formats.command import Word
from everybyte.formats.place import Given
from everybyte.formats.source import Source

_SET = re.compile(r"set\s+(/[ap]\s+)?\"?([^=\"]+?)\s?=(.*)$", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r"%~?[\w:]*?(\d)|%([\w() .-]+?)(?::([^%]*))?%|!(\w+)!")
_IF = re.compile(
    r"if\s+(?:/i\s+)?(not\s+)?(?:(defined)\s+(\w+)|(exist)\s+(\"[^\"]*\"|\S+)|(?:\"?([^\"=]*?)\"?)\s*==\s*(?:\"?([^\"\s(]*)\"?)|errorlevel\s+\d+|\S+\s+(?:equ|neq|lss|leq|gtr|geq)\s+\S+)\s*(.*)$",
    re.IGNORECASE | re.DOTALL,
)
_SKIPPED = re.compile(
    r"(?:rem\b|::|:\w|echo\b|title\b|color\b|pause\b|cls\b|goto\b|exit\b|setlocal\b|endlocal\b|chcp\b|timeout\b|cd\b|pushd\b|popd\b|@?\)|else\b)", re.IGNORECASE
)


def launches(source: Source) -> Iterator[tuple[tuple[Word, ...], dict[str, Given]]]:
    """Each command with its words and the environment it sees. Raises BadInput with the line for a quote that is never closed."""
    yield from _Script(source).commands()


class _Script:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.variables: dict[str, Given] = {}

    def commands(self) -> Iterator[tuple[tuple[Word, ...], dict[str, Given]]]:
        for text, line in self.lines():
            for part in re.split(r"\s&&?\s", text):
                words = self.run(part.strip(), line)
                if words:
                    yield words, {given.place.flag.upper(): given for given in self.variables.values()}

    def lines(self) -> Iterator[tuple[str, int]]:
        """Logical lines: those that end with `^` go on in the next. A continued line keeps its line ends, so that words know where they stand."""
        run, start = "", 1
        for number, raw in enumerate(self.source.text.replace("\r", "").lstrip("\ufeff").split("\n"), 1):
            line = raw.rstrip()
            start = start if run else number
            if line.endswith("^") and not _SKIPPED.match(line.lstrip()):
                run += line[:-1] + "\n"
                continue
            yield run + line, start
            run = ""
        if run:
            yield run, start

    def run(self, text: str, line: int) -> tuple[Word, ...]:
        """The words of a command; empty for one that only changes variables."""
        text = text.lstrip("@ \t(")
        if not text or _SKIPPED.match(text):
            return ()
        if match := _IF.match(text):
            then, otherwise = _branches(match[8])
            return self.run(then if self.holds(match) else otherwise, line)
        if match := _SET.match(text):
            self.set(match, line)
            return ()
        return self.started(self.words(text, line))

    def holds(self, match: re.Match[str]) -> bool:
        """Whether a condition holds; files are there, and what is not known does not hold."""
        negated = bool(match[1])
        if match[2]:
            return (match[3].casefold() in self.variables) != negated
        if match[4]:
            return not negated
        if match[6] is None:
            return False
        unknown: list[str] = []
        left, right = self.expanded(match[6], unknown), self.expanded(match[7], unknown)
        left = "" if unknown else left
        return (left == right) != negated

    def set(self, match: re.Match[str], line: int) -> None:
        name, value = match[2].strip().casefold(), match[3].strip().removesuffix('"')
        place = self.source.place(line, match[2].strip())
        if (match[1] or "").strip().casefold() == "/p":
            return
        self.variables[name] = Given(self.expanded(value, []), place)

    def expanded(self, text: str, unknown: list[str]) -> str:
        """A text with its variables put in; those that are not set stay as they are written."""

        def one(match: re.Match[str]) -> str:
            name = (match[2] or match[4] or "").casefold()
            if name in self.variables and match[3] is None:
                return str(self.variables[name].value)
            unknown.append(match.group())
            return match.group()

        return _NAME.sub(one, text)

    def words(self, text: str, line: int) -> list[Word]:
        """The words of a command. Double quotes hold blanks together; what stands behind a pipe or redirection is cut off."""
        out: list[Word] = []
        unknown: list[str] = []
        text = self.expanded(text, unknown)
        for match in re.finditer(r"\n|(?:[^\s\"]|\"[^\"]*\")+|\"", text):
            found = match.group()
            if found == "\n":
                line += 1
                continue
            if found == '"':
                raise BadInput(f"{self.source.path}:{line}", "the quote opened here is never closed")
            if found == "|" or re.match(r"[12]?>{1,2}", found):
                break
            missing = [name for name in unknown if name in found]
            why = "; ".join(f"{name} is not set in the script" for name in missing)
            out.append(Word(re.sub(r"(?<!\\)\"", "", found).replace('\\"', '"').replace("^", ""), self.source.place(line), why))
        return out

    def started(self, words: list[Word]) -> tuple[Word, ...]:
        """`start "title" /B program`, `call program`."""
        while words and words[0].text.casefold() in ("start", "call"):
            is_start = words[0].text.casefold() == "start"
            words = words[1:]
            if is_start and words and (" " in words[0].text or words[0].text == "" or not re.search(r"[.\\/]", words[0].text)) and len(words) > 1:
                words = words[1:] if not words[0].text.startswith("/") else words
            while is_start and words and words[0].text.startswith("/"):
                words = words[1:]
        return tuple(words)


def _branches(text: str) -> tuple[str, str]:
    """`(command) else (command)`."""
    then, _, otherwise = re.sub(r"\)\s*else\s*\(?", "\0", text.strip(), count=1, flags=re.IGNORECASE).partition("\0")
    return then.strip("() "), otherwise.strip("() ")
