"""The grammar of the shell: from text to commands. Follows the order in which bash looks at a line: words, lists, pipelines, compound commands."""

from __future__ import annotations

import re

from everybyte.formats.shell.scanner import Scanner
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
    Part,
    Pipeline,
    Redirection,
    Sequence,
    Simple,
    Test,
    While,
    Word,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]=\n]*)\])?(\+?)=")
_FUNCTION = re.compile(r"([A-Za-z_][\w:.-]*)[ \t]*\([ \t]*\)")
_REDIRECTION = re.compile(r"(\d*)(<<<|<<-|<<|&>>|&>|>>|>&|<&|>\||<>|>|<)")
_KEYWORD = re.compile(r"(?:if|then|elif|else|fi|for|select|while|until|do|done|case|esac|function|time|\{|\}|\[\[|!)(?=[\s;|&()]|$)")
_CLOSERS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
_DECLARES = frozenset(("export", "declare", "typeset", "local", "readonly"))


class Parser(Scanner):
    """Reads commands."""

    def __init__(self, text: str, source: str, first_line: int = 1) -> None:
        super().__init__(text, source, first_line)
        self._skips: dict[int, int] = {}
        self.commands = self.sequence

    def script(self) -> Node:
        """All commands of the text."""
        node = self.sequence()
        if self.pos < len(self.text):
            raise self.fault(f"{self._here()!r} closes nothing")
        return node

    def inner(self, text: str, line: int) -> Node:
        """The commands of a text of its own."""
        parser = Parser(text, self.source, line)
        parser.depth = self.depth + 1
        node = parser.script()
        self.notes += parser.notes
        return node

    def _here(self) -> str:
        return self.text[self.pos : self.pos + 30].split("\n")[0] or "the end"

    def sequence(self) -> Node:
        """Commands up to a closing word, a closing parenthesis, `;;` or the end."""
        self.deeper()
        line, commands = self.line(), []
        while True:
            self.newlines()
            if self._closed():
                break
            commands.append(self._and_or())
            self.blanks()
            if (self.peek() == "&" and not self.at("&&")) or (self.peek() == ";" and not self.at(";;")):
                self.pos += 1
            elif self.peek() not in ("\n", "") and not self._closed():
                raise self.fault(f"cannot read {self._here()!r} as a part of a command")
        self.depth -= 1
        return commands[0] if len(commands) == 1 else Sequence(tuple(commands), line)

    def newlines(self) -> None:
        """Passes blanks, comments and line ends; the bodies of here-documents lie behind these."""
        while True:
            self.blanks()
            if self.peek() == "\n":
                self.pos += 1
                self._documents()
            elif self.peek() == ";" and not self.at(";;") and not self.at(";&"):
                self.pos += 1
            else:
                return

    def _closed(self) -> bool:
        if not self.peek() or self.peek() == ")" or self.at(";;") or self.at(";&"):
            return True
        return self._keyword() in _CLOSERS

    def _keyword(self) -> str:
        match = _KEYWORD.match(self.text, self.pos)
        return match.group() if match else ""

    def _expect(self, keyword: str, opened: str, start: int) -> None:
        self.newlines()
        if self._keyword() != keyword:
            raise self.fault(f"the {opened!r} opened here has no {keyword!r}", start)
        self.pos += len(keyword)

    def _and_or(self) -> Node:
        left = self._pipeline()
        while True:
            self.blanks()
            operator = self.text[self.pos : self.pos + 2]
            if operator not in ("&&", "||"):
                return left
            line = self.line()
            self.pos += 2
            self.newlines()
            left = AndOr(left, operator, self._pipeline(), line)

    def _pipeline(self) -> Node:
        self.blanks()
        line, negated = self.line(), False
        while self._keyword() in ("!", "time"):
            negated ^= self._keyword() == "!"
            self.pos += len(self._keyword())
            self.blanks()
        commands = [self._command_here()]
        while True:
            self.blanks()
            if self.peek() != "|" or self.at("||"):
                break
            self.pos += 2 if self.at("|&") else 1
            self.newlines()
            commands.append(self._command_here())
        return commands[0] if len(commands) == 1 and not negated else Pipeline(tuple(commands), negated, line)

    def _command_here(self) -> Node:
        """A compound command by its first word, else a simple one."""
        self.deeper()
        self.blanks()
        keyword = self._keyword()
        readers = {
            "if": self._if,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "function": self._function,
            "[[": self._test,
            "{": self._group,
        }
        function = _FUNCTION.match(self.text, self.pos)
        if keyword in readers:
            node = readers[keyword]()
        elif self.at("((") and (counted := self._count()) is not None:
            node = counted
        elif self.peek() == "(":
            node = self._group()
        elif function:
            node = self._function()
        else:
            node = self._simple()
        self.depth -= 1
        return self._redirected(node) if not isinstance(node, Simple) else node

    def _redirected(self, node: Node) -> Node:
        found: list[Redirection] = []
        while True:
            self.blanks()
            match = _REDIRECTION.match(self.text, self.pos)
            if not match:
                break
            found.append(self._redirection(match))
        return Group(node, subshell=False, redirections=tuple(found), line=self.line()) if found else node

    def _if(self) -> Node:
        start, line = self.pos, self.line()
        self.pos += 4 if self.at("elif") else 2
        condition = self.sequence()
        self._expect("then", "if", start)
        body = self.sequence()
        keyword = self._keyword()
        if keyword == "elif":
            return If(condition, body, self._if(), line)
        otherwise = None
        if keyword == "else":
            self.pos += 4
            otherwise = self.sequence()
        self._expect("fi", "if", start)
        return If(condition, body, otherwise, line)

    def _for(self) -> Node:
        start, line = self.pos, self.line()
        self.pos += len(self._keyword())
        self.blanks()
        if self.at("(("):
            text = self._arithmetic("((", "))")
            pieces = (text or "").split(";")
            if len(pieces) != 3:
                raise self.fault("the 'for ((' here does not have three parts", start)
            return ForArithmetic(pieces[0], pieces[1], pieces[2], self._do(start), line)
        match = re.compile(r"\w+").match(self.text, self.pos)
        if not match:
            raise self.fault("'for' names no variable", start)
        self.pos = match.end()
        self.newlines()
        words: tuple[Word, ...] | None = None
        if re.compile(r"in\b").match(self.text, self.pos):
            self.pos += 2
            words = self._words()
        return For(match.group(), words, self._do(start), line)

    def _do(self, start: int) -> Node:
        self.newlines()
        if self._keyword() == "{":
            return self._group()
        self._expect("do", "for", start)
        body = self.sequence()
        self._expect("done", "do", start)
        return body

    def _while(self) -> Node:
        start, line, until = self.pos, self.line(), self.at("until")
        self.pos += 5
        condition = self.sequence()
        self._expect("do", "while", start)
        body = self.sequence()
        self._expect("done", "do", start)
        return While(condition, body, until, line)

    def _case(self) -> Node:
        start, line = self.pos, self.line()
        self.pos += 4
        self.blanks()
        word = self.word()
        self.newlines()
        if word is None or not re.compile(r"in\b").match(self.text, self.pos):
            raise self.fault("the 'case' opened here has no 'in'", start)
        self.pos += 2
        arms: list[tuple[tuple[Word, ...], Node]] = []
        while True:
            self.newlines()
            if self._keyword() == "esac":
                self.pos += 4
                return Case(word, tuple(arms), line)
            if not self.peek():
                raise self.fault("the 'case' opened here has no 'esac'", start)
            arms.append(self._arm(start))

    def _arm(self, start: int) -> tuple[tuple[Word, ...], Node]:
        self.pos += self.peek() == "("
        patterns: list[Word] = []
        while True:
            self.blanks()
            pattern = self.word()
            if pattern is None:
                raise self.fault("this 'case' has a pattern that cannot be read", start)
            patterns.append(pattern)
            self.blanks()
            if self.peek() == "|":
                self.pos += 1
                continue
            if self.peek() != ")":
                raise self.fault(f"a pattern of 'case' ends with ')', not {self._here()!r}")
            self.pos += 1
            body = self.sequence()
            for ending in (";;&", ";;", ";&"):
                if self.at(ending):
                    self.pos += len(ending)
                    break
            return tuple(patterns), body

    def _function(self) -> Node:
        line = self.line()
        if self._keyword() == "function":
            self.pos += 8
            self.blanks()
        match = re.compile(r"[^\s(){}]+").match(self.text, self.pos)
        if not match:
            raise self.fault("'function' has no name")
        self.pos = match.end()
        self.blanks()
        if self.peek() == "(":
            self.pos = self.text.find(")", self.pos) + 1
        self.newlines()
        return Function(match.group(), self._command_here(), line)

    def _group(self) -> Node:
        start, line, opening = self.pos, self.line(), self.peek()
        self.pos += 1
        body = self.sequence()
        if self.peek() != (")" if opening == "(" else "}"):
            raise self.fault(f"the {opening!r} opened here is never closed", start)
        self.pos += 1
        return Group(body, subshell=opening == "(", redirections=(), line=line)

    def _test(self) -> Node:
        """`[[ ... ]]`: operators are words of their own here."""
        start, line = self.pos, self.line()
        self.pos += 2
        words: list[Word] = []
        while True:
            self.newlines()
            if re.compile(r"\]\](?=[\s;|&)}]|$)").match(self.text, self.pos):
                self.pos += 2
                return Test(tuple(words), line)
            operator = next((op for op in ("&&", "||", "(", ")", "<", ">") if self.at(op)), "")
            here = self.line()
            if words and words[-1].parts[:1] == (Literal("=~", words[-1].line),):
                words.append(self._expression())
            elif operator:
                self.pos += len(operator)
                words.append(Word((Literal(operator, here),), here))
            elif word := self.word():
                words.append(word)
            else:
                raise self.fault("the '[[' opened here is never closed", start)

    def _expression(self) -> Word:
        """A regular expression, in which parentheses and bars are text."""
        start = self.pos
        parts: list[Part] = []
        while word := self.word() or (self.peek() in "()|<>" and self.peek() and self._character()):
            parts += word.parts
        return Word(tuple(parts), self.line(start))

    def _character(self) -> Word:
        self.pos += 1
        return Word((Literal(self.text[self.pos - 1], self.line()),), self.line())

    def _count(self) -> Node | None:
        line, start = self.line(), self.pos
        text = self._arithmetic("((", "))")
        if text is None:
            self.pos = start
            return None
        return Count(text, line)

    def _words(self) -> tuple[Word, ...]:
        words: list[Word] = []
        while True:
            self.blanks()
            word = self.word()
            if word is None:
                return tuple(words)
            words.append(word)

    def _simple(self) -> Node:
        self.blanks()
        line, start = self.line(), self.pos
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirections: list[Redirection] = []
        declares = False
        while True:
            self.blanks()
            redirection = None if self._placeholder() else _REDIRECTION.match(self.text, self.pos)
            assignment = _ASSIGNMENT.match(self.text, self.pos) if not words or declares else None
            if redirection:
                redirections.append(self._redirection(redirection))
            elif assignment and (not words or self.text[assignment.end() : assignment.end() + 1] == "("):
                made = self._assignment(assignment)
                assignments.append(made)
                if words:
                    words.append(Word((Literal(made.name, made.line),), made.line))
            elif word := self.word():
                words.append(word)
                first = words[0].parts
                declares = len(first) == 1 and isinstance(first[0], Literal) and first[0].text in _DECLARES
            else:
                break
        if self.pos == start:
            raise self.fault(f"cannot read {self._here()!r} as a command")
        return Simple(tuple(assignments), tuple(words), tuple(redirections), line)

    def _placeholder(self) -> bool:
        return self.peek() == "<" and not self._ends("<", 2) and not self.at("<(")

    def _assignment(self, match: re.Match[str]) -> Assignment:
        line = self.line()
        self.pos = match.end()
        value: Word | tuple[Word, ...]
        if self.peek() == "(":
            value = self._array()
        else:
            value = self.word() or Word((), line)
        return Assignment(match[1], value, line, match[3] == "+", match[2])

    def _array(self) -> tuple[Word, ...]:
        """`( ... )` of an array, over lines and with comments."""
        start = self.pos
        words: list[Word] = []
        self.pos += 1
        while True:
            self.newlines()
            if self.peek() == ")":
                self.pos += 1
                return tuple(words)
            word = self.word()
            if word is None:
                raise self.fault("the array opened here is never closed", start)
            words.append(word)

    def _redirection(self, match: re.Match[str]) -> Redirection:
        line = self.line()
        self.pos = match.end()
        operator = match[2]
        self.blanks()
        target = self.word()
        if target is None:
            raise self.fault(f"the redirection {operator!r} has no target")
        if operator == "<<<":
            return Redirection(operator, target, line, match[1], body=target)
        if operator not in ("<<", "<<-"):
            return Redirection(operator, target, line, match[1])
        return self._here_document(operator, target, line)

    def _here_document(self, operator: str, target: Word, line: int) -> Redirection:
        """The redirection with the text from the next line on. The text is taken at once and passed over when its line comes."""
        plain = all(isinstance(part, Literal) for part in target.parts)
        ending = "".join(part.text for part in target.parts if isinstance(part, Literal))
        quoted = any(part.quoted for part in target.parts)
        if not plain:
            raise self.fault("the end of a here-document is a plain word")
        first = self._document_start()
        lines: list[str] = []
        pos = first
        while True:
            if pos >= len(self.text):
                self.notes.append((line, f"the here-document has no line {ending!r} that ends it; it is read to the end of the file"))
                break
            end = self.text.find("\n", pos)
            end = len(self.text) if end < 0 else end
            raw = self.text[pos:end]
            pos = end + 1
            if (raw.lstrip("\t") if operator == "<<-" else raw).rstrip("\r") == ending:
                break
            lines.append(raw.lstrip("\t") if operator == "<<-" else raw)
        if first < len(self.text):  # a here-document that begins at the end of the text has nothing to pass over
            self._skips[first] = min(pos, len(self.text))
        body = "".join(f"{each}\n" for each in lines)
        at = self.line(first)
        return Redirection(operator, target, line, body=self._body(body, at, quoted=quoted))

    def _body(self, text: str, line: int, *, quoted: bool) -> Word:
        if quoted:
            return Word(tuple(Literal(each, line + i, quoted=True) for i, each in enumerate(text.splitlines(keepends=True))), line)
        inner = Parser(text, self.source, line)
        inner.depth = self.depth + 1
        word = inner.document()
        self.notes += inner.notes
        return word

    def _document_start(self) -> int:
        """Where the next here-document of this line begins: behind the line, or behind the ones before it."""
        end = self.text.find("\n", self.pos)
        first = len(self.text) if end < 0 else end + 1
        while first in self._skips:
            first = self._skips[first]
        return first

    def _documents(self) -> None:
        """Passes over the here-documents that begin here."""
        while self.pos in self._skips:
            self.pos = self._skips.pop(self.pos)
