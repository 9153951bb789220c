"""Programs and notebooks of Python that start an engine: a list of words for a subprocess, a text for a shell, or a call such as `LLM(model=..., ...)`.

They are read by their syntax: literals, names that were assigned once, f-strings, lists that grow. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.formats.command import Command, Word
from everybyte.formats.context import Context
from everybyte.formats.shell.script import commands_of_shell, commands_of_words
from everybyte.formats.shell.training_calls import words_of
from everybyte.formats.source import Source

ENGINES = {
    "LLM": ("vllm", "serve"),
    "AsyncLLM": ("vllm", "serve"),
    "EngineArgs": ("vllm", "serve"),
    "AsyncEngineArgs": ("vllm", "serve"),
    "Engine": ("sglang.launch_server",),
    "ServerArgs": ("sglang.launch_server",),
    "Llama": ("llama-server",),
    "TurbomindEngineConfig": ("lmdeploy", "serve"),
    "PytorchEngineConfig": ("lmdeploy", "serve"),
}
"""Calls that start an engine -> the command that takes the same settings."""

RENAMED = {"n_ctx": "ctx_size", "n_batch": "batch_size", "n_ubatch": "ubatch_size", "type_k": "cache_type_k", "type_v": "cache_type_v", "model_path": "model"}
"""Arguments of llama-cpp-python's Llama that are called otherwise on the command line."""

UNKNOWN = object()
_LAUNCHES = frozenset(("Popen", "run", "call", "check_call", "check_output", "system", "popen"))
_MOST_NODES = 200_000


def commands_of_text(source: Source, context: Context) -> list[Command]:
    """The commands of a program or notebook. Raises BadInput with the line for what is no Python."""
    text = _notebook(source) if source.ending == ".ipynb" else source.text
    shell, python = _parts(text)
    commands = commands_of_shell(source._replace(text=shell), context) if shell.strip() else []
    try:
        tree = ast.parse(python)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if commands:
            return commands
        raise BadInput(str(source.place(getattr(error, "lineno", None))), f"is not Python that can be read: {getattr(error, 'msg', error)}") from None
    return commands + [made for words in _Reader(source, tree).launches() for made in commands_of_words(words, source, context)]


def _notebook(source: Source) -> str:
    """The code of a notebook, one cell after the other."""
    try:
        cells = json.loads(source.text)["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(source.path, "is not a notebook: it has no cells") from None


def _parts(text: str) -> tuple[str, str]:
    """The lines of a shell (`!command`, `%%bash`) and those of Python; both keep their line numbers."""
    shell: list[str] = []
    python: list[str] = []
    in_cell = False
    for line in text.split("\n"):
        begins = re.match(r"%%(bash|sh|shell)\b", line)
        if begins or (line.startswith("%%") and in_cell):
            in_cell = bool(begins)
        command = re.match(r"\s*!(?!=)(.*)", line)
        continued = bool(shell) and shell[-1].rstrip().endswith("\\") and (in_cell or python[-1:] == [""])
        if in_cell or command or continued:
            shell.append("" if begins else command[1] if command else line)
            python.append("")
        else:
            shell.append("")
            python.append(re.sub(r"^(\s*)%.*", r"\1pass", line))
    return "\n".join(shell), "\n".join(python)


class _Reader:
    """Follows assignments in the order of the text."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.values: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.launched: set[str] = set()

    def launches(self) -> Iterator[tuple[Word, ...]]:
        """The words of everything that starts an engine."""
        taken: set[int] = set()
        for count, node in enumerate(_in_order(self.tree)):
            if count > _MOST_NODES:
                return
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                self._assign(node)
            elif isinstance(node, ast.Call):
                if id(node) not in taken:
                    yield from self._call(node)
                taken.update(id(inner) for inner in ast.walk(node) if inner is not node and isinstance(inner, ast.Call) and _name(inner.func) not in ENGINES)
        training = words_of(self.tree, self.value, UNKNOWN, self.source.name or "train.py")
        if training:
            yield tuple(Word(text, self.source.place(line)) for text, line in training)
        for name, value in self.values.items():
            if isinstance(value, list) and _starts(value) and name not in self.launched:
                yield self._words(value, self.lines.get(name, 1))

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or node.value is None:
            return
        value = self.value(node.value)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            before = self.values.get(target.id)
            value = before + value if isinstance(before, list) and isinstance(value, list) else UNKNOWN
        self.values[target.id] = value
        self.lines.setdefault(target.id, node.lineno)

    def _call(self, node: ast.Call) -> Iterator[tuple[Word, ...]]:
        name = _name(node.func)
        if name in ("append", "extend") and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.args:
            self._grow(node.func.value.id, self.value(node.args[0]), every=name == "extend")
        elif name in _LAUNCHES and node.args:
            value = self.value(node.args[0])
            if isinstance(node.args[0], ast.Name):
                self.launched.add(node.args[0].id)
            if isinstance(value, str):
                yield (Word("bash", self.source.place(node.lineno)), Word("-c", self.source.place(node.lineno)), Word(value, self.source.place(node.lineno)))
            elif isinstance(value, list) and value:
                yield self._words(value, node.args[0].lineno)
        elif name in ENGINES and (node.keywords or node.args):
            yield self._engine(ENGINES[name], node)

    def _grow(self, name: str, value: Any, *, every: bool) -> None:
        before = self.values.get(name)
        if isinstance(before, list):
            self.values[name] = before + (value if every and isinstance(value, list) else [value])

    def _words(self, value: list[Any], line: int) -> tuple[Word, ...]:
        place = self.source.place(line)
        return tuple(Word("$UNKNOWN", place, "it is worked out by the program") if item is UNKNOWN else Word(_text(item), place) for item in value)

    def _engine(self, program: tuple[str, ...], node: ast.Call) -> tuple[Word, ...]:
        """A call as the command that takes the same settings."""
        place = self.source.place(node.lineno)
        words = [Word(text, place) for text in program]
        if node.args:
            words += [*([] if program[-1] == "serve" else [Word("--model", place)]), self._word(self.value(node.args[0]), node.lineno)]
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in ("verbose", "chat_format"):
                continue
            name = RENAMED.get(keyword.arg, keyword.arg) if program == ("llama-server",) else keyword.arg
            value = self.value(keyword.value)
            line = keyword.value.lineno
            if value is True:
                words.append(Word(f"--{name}", self.source.place(line)))
            elif value is not False and value is not None:
                words += [Word(f"--{name}", self.source.place(line)), self._word(value, line)]
        return tuple(words)

    def _word(self, value: Any, line: int) -> Word:
        return self._words([value], line)[0]

    def value(self, node: ast.expr) -> Any:
        """The value of an expression of literals and known names; UNKNOWN for anything else."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.values.get(node.id, UNKNOWN)
            case ast.List() | ast.Tuple():
                return self._sequence(node)
            case ast.Dict():
                pairs = [(self.value(key), self.value(item)) for key, item in zip(node.keys, node.values, strict=True) if key is not None]
                return {str(key): item for key, item in pairs if item is not UNKNOWN}
            case ast.JoinedStr():
                parts = [self.value(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
                return UNKNOWN if any(part is UNKNOWN for part in parts) else "".join(map(str, parts))
            case ast.UnaryOp(op=ast.USub()):
                inner = self.value(node.operand)
                return -inner if isinstance(inner, int | float) else UNKNOWN
            case ast.BinOp():
                return self._binary(node)
            case ast.Call():
                return self._known_call(node)
        return UNKNOWN

    def _sequence(self, node: ast.List | ast.Tuple) -> list[Any]:
        out: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                inner = self.value(item.value)
                out += inner if isinstance(inner, list) else [UNKNOWN]
            else:
                out.append(self.value(item))
        return out

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list | int | float):
            return left + right
        if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) < 2**40:
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv) and right:
                return left // right
        return UNKNOWN

    def _known_call(self, node: ast.Call) -> Any:
        """`str(8)`, `os.environ.get("X", "d")`, `"a b".split()`, `dict(a=1)`."""
        name = _name(node.func)
        values = [self.value(argument) for argument in node.args]
        if name in ("str", "int", "float") and len(values) == 1 and isinstance(values[0], str | int | float):
            try:
                return {"str": str, "int": int, "float": float}[name](values[0])
            except ValueError:
                return UNKNOWN
        if name in ("get", "getenv") and len(values) == 2:
            return values[1]
        if name == "split" and not values and isinstance(node.func, ast.Attribute):
            text = self.value(node.func.value)
            return text.split() if isinstance(text, str) else UNKNOWN
        if name == "dict":
            return {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        return UNKNOWN


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Assignments and calls, in the order of the text; the parts of an assignment before itself."""
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)
    if isinstance(tree, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Call):
        yield tree


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _starts(value: list[Any]) -> bool:
    """Whether a list begins like a command."""
    return (
        bool(value) and isinstance(value[0], str) and value[0] in ("vllm", "python", "python3", "trtllm-serve", "lmdeploy", "llama-server", "docker", "ollama")
    )


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
