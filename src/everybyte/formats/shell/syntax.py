"""The syntax tree of a script: words made of parts, commands made of words. Plain records, each with its line."""

from __future__ import annotations

from everybyte.basics.record import Record


class Literal(Record, frozen=True):
    """Text as it is written. Quoted text is neither split nor a pattern."""

    text: str
    line: int
    quoted: bool = False


class Parameter(Record, frozen=True):
    """`$NAME`, `${NAME:-word}` and their kin."""

    name: str
    line: int
    written: str
    """As it stands in the script, for messages."""
    quoted: bool = False
    index: str | None = None
    """Inside `[...]`: `@`, `*`, or an arithmetic expression."""
    length: bool = False
    """`${#NAME}`."""
    indirect: bool = False
    """`${!NAME}`, or `${!NAME[@]}`, the keys of an array."""
    op: str = ""
    """`:-`, `-`, `:=`, `:+`, `:?`, `#`, `##`, `%`, `%%`, `/`, `//`, `/#`, `/%`, `:`, `^`, `^^`, `,`, `,,`, `@`."""
    word: Word | None = None
    """What stands behind the operator."""
    replacement: Word | None = None
    """Of `/` and its kin."""


class Arithmetic(Record, frozen=True):
    """`$(( ... ))`."""

    text: str
    line: int
    quoted: bool = False


class Substitution(Record, frozen=True):
    """`$( ... )`, backticks, and `<( ... )`, whose text nobody can know."""

    body: Node
    line: int
    written: str
    quoted: bool = False
    process: bool = False


class Placeholder(Record, frozen=True):
    """`<your-model>`: a gap that a person is meant to fill."""

    text: str
    line: int
    quoted: bool = False


Part = Literal | Parameter | Arithmetic | Substitution | Placeholder


class Word(Record, frozen=True):
    """One word: parts that stand without a blank between them."""

    parts: tuple[Part, ...]
    line: int


class Assignment(Record, frozen=True):
    """`NAME=word`, `NAME+=word`, `NAME=( ... )`, `NAME[3]=word`."""

    name: str
    value: Word | tuple[Word, ...]
    line: int
    append: bool = False
    index: str | None = None


class Redirection(Record, frozen=True):
    """`> file`, `2>&1`, `<< EOF` with the text that follows."""

    operator: str
    target: Word
    line: int
    descriptor: str = ""
    body: Word | None = None
    """The text of a here-document or here-string."""


class Simple(Record, frozen=True):
    """Assignments, words and redirections: one command."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]
    line: int


class Pipeline(Record, frozen=True):
    """Commands joined by `|`; `negated` by a leading `!`."""

    commands: tuple[Node, ...]
    negated: bool
    line: int


class AndOr(Record, frozen=True):
    """`left && right` or `left || right`."""

    left: Node
    operator: str
    right: Node
    line: int


class Sequence(Record, frozen=True):
    """Commands one after the other."""

    commands: tuple[Node, ...]
    line: int


class If(Record, frozen=True):
    """`if` with its `elif` as a nested `If` in `otherwise`."""

    condition: Node
    body: Node
    otherwise: Node | None
    line: int


class For(Record, frozen=True):
    """`for NAME in words`; `words` is None for the script's arguments. `select` reads the same."""

    name: str
    words: tuple[Word, ...] | None
    body: Node
    line: int


class ForArithmetic(Record, frozen=True):
    """`for (( start; condition; step ))`."""

    start: str
    condition: str
    step: str
    body: Node
    line: int


class While(Record, frozen=True):
    """`while` and, with `until`, the reverse."""

    condition: Node
    body: Node
    until: bool
    line: int


class Case(Record, frozen=True):
    """`case word in pattern) ... ;; esac`."""

    word: Word
    arms: tuple[tuple[tuple[Word, ...], Node], ...]
    line: int


class Function(Record, frozen=True):
    """`name() { ... }`."""

    name: str
    body: Node
    line: int


class Group(Record, frozen=True):
    """`{ ... }`, or `( ... )` with `subshell`."""

    body: Node
    subshell: bool
    redirections: tuple[Redirection, ...]
    line: int


class Test(Record, frozen=True):
    """`[[ ... ]]`: its words and operators, unexpanded."""

    words: tuple[Word, ...]
    line: int


class Count(Record, frozen=True):
    """`(( ... ))` as a command."""

    text: str
    line: int


Node = Simple | Pipeline | AndOr | Sequence | If | For | ForArithmetic | While | Case | Function | Group | Test | Count
