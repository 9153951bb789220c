"""What a script knows at one point: variables, functions, arguments and the files that it has written."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.formats.shell.syntax import Node
from everybyte.formats.shell.values import Text, Variable, plain


class WrittenFile(Record, frozen=True):
    """A file that the script writes before a command reads it."""

    name: str
    text: str
    line: int
    """The line of the script in which its first line stands."""


class State:
    """Variables, functions, arguments and written files."""

    def __init__(self, arguments: list[Text] | None = None) -> None:
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Node] = {}
        self.arguments = arguments or []
        self.name: Text = ()
        """`$0`."""
        self.files: dict[str, WrittenFile] = {}

    def copy(self) -> State:
        """A state that changes by itself, for a subshell or a branch that is only looked into."""
        other = State(list(self.arguments))
        other.variables = {name: variable.copy() for name, variable in self.variables.items()}
        other.functions = dict(self.functions)
        other.files, other.name = dict(self.files), self.name
        return other

    def child(self) -> State:
        """The state in which a program that this script starts begins: exported variables and the files."""
        other = State()
        other.variables = {name: variable.copy() for name, variable in self.variables.items() if variable.exported and variable.array is None}
        other.files = self.files
        return other

    def get(self, name: str) -> Text | None:
        """The text of a variable; None if it is not set."""
        variable = self.variables.get(name)
        return None if variable is None else variable.get("0") if variable.array is not None else variable.text

    def set(self, name: str, text: Text, *, exported: bool | None = None) -> None:
        """Sets the text of a variable; it stays exported if it was."""
        old = self.variables.get(name)
        if exported is None:
            exported = old.exported if old else False
        self.variables[name] = Variable(text, exported=exported)

    def exported(self) -> dict[str, Text]:
        """The environment of a program."""
        return {name: variable.text for name, variable in self.variables.items() if variable.exported and variable.array is None}

    def separators(self) -> str:
        """The characters at which unquoted values are split."""
        text = self.get("IFS")
        return " \t\n" if text is None else plain(text)
