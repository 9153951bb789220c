"""Collects what the package says to people into the translation catalogues: `python scripts/messages.py` (Babel, BSD).

A message is a sentence as the source writes it; what is put in becomes {0}, {1} ... Collected are the messages of errors, warnings and assumptions in
the whole package, and every text of the rooms that talk with people: `report`, `cli`, `plan`, `formats`, `web` and the page. Existing translations stay;
new messages wait in the .po file without one, and a test names them. The compiled catalogue (.mo) lies beside it, so that no build needs Babel.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "everybyte"
LOCALE = PACKAGE / "report" / "locale"
LANGUAGES = ("zh",)
TALKING = ("report", "cli", "plan", "formats", "web", "diagnose")
"""Rooms whose every sentence is for people."""
FOR_PROGRAMS = ("web/openapi.py", "web/metrics.py", "web/forms.py")
"""Files whose texts are read by programs and their authors, in English."""
LOOKS = frozenset({"style", "class_", "class", "content", "name"})
"""Arguments that say how something looks."""
FACTS = {"BadInput": 1, "Unsupported": 1, "EverybyteError": 0, "MissingExtra": 0, "MoreNeeded": 1}
"""Exceptions, and which of their arguments is the message."""
METHODS = {"warn": 0, "assume": 0, "inferred": 0, "refuse": 0}
"""Functions whose argument is told to people as it is."""
PROSE = re.compile(r"[A-Za-z]{2,}[,:;]? +(?:\{\d+\} *)?[A-Za-z]{2,}")
"""Two words: what has none is a name, not a sentence."""
NO_PROSE = re.compile(r"datum\.|^ *(?:\{(?!\d)|[<.#@:])|^--|://|\\left|font|width /|charset=|^everybyte [a-z]+ [^.]*$|\.(?:py|cpp|cc|cuh)\b|^\$|sans-serif|\bdiv\b|aria-|^(?:not )?(?:bold|dim)\b|^ ?everybyte \w|gradient\(|^\(prefers|^use strict$|^light dark$|^sr |device-width")


def collect() -> dict[str, list[tuple[str, int]]]:
    """Message -> where it stands (file, line)."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if str(place) in FOR_PROGRAMS:
            continue
        every = place.parts[0] in TALKING
        for text, line in of_python(path.read_text(encoding="utf-8"), every=every):
            found.setdefault(text, []).append((str(place), line))
    for path in sorted((PACKAGE / "web" / "static").rglob("*.js")):
        if "vendor" not in path.parts:
            for text, line in of_script(path.read_text(encoding="utf-8")):
                found.setdefault(text, []).append((str(path.relative_to(PACKAGE)), line))
    return found


def of_python(source: str, *, every: bool) -> Iterator[tuple[str, int]]:
    """The messages of a module; with `every` all its sentences, else what goes into errors, warnings and assumptions."""
    tree = ast.parse(source)
    roots: list[ast.AST] = [tree] if every else [argument for node in ast.walk(tree) if (argument := _told(node)) is not None]
    skipped = _no_texts(tree)
    seen: set[int] = set()
    for root in roots:
        for node in ast.walk(root):
            if id(node) in skipped or id(node) in seen:
                continue
            text = _template(node)
            if text is not None:
                seen.update(id(inner) for inner in ast.walk(node) if not isinstance(inner, (ast.FormattedValue, ast.IfExp)) and _is_part(node, inner))
                yield from _kept(text, getattr(node, "lineno", 0))
    if every:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any("click" in ast.unparse(d) for d in node.decorator_list) and (words := ast.get_docstring(node)):
                for paragraph in words.split("\n\n"):
                    yield from _kept(" ".join(paragraph.split()), node.lineno)


def _told(node: ast.AST) -> ast.expr | None:
    """The argument of a call that is told to people."""
    if not isinstance(node, ast.Call):
        return None
    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    index = FACTS.get(name, METHODS.get(name, -1))
    return node.args[index] if 0 <= index < len(node.args) else None


def _no_texts(tree: ast.AST) -> set[int]:
    """Docstrings, and constants inside f-strings."""
    out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            out.add(id(node.value))
        if isinstance(node, ast.keyword) and node.arg in LOOKS:
            out.update(id(inner) for inner in ast.walk(node.value))
        if isinstance(node, ast.JoinedStr):
            out.update(id(value) for value in node.values if isinstance(value, ast.Constant))
            out.update(id(spec) for value in node.values if isinstance(value, ast.FormattedValue) and value.format_spec for spec in ast.walk(value.format_spec))
    return out


def _template(node: ast.AST) -> str | None:
    """`f"{a} is not {b}"` -> `{0} is not {1}`; of a sum of texts the whole. None for what is no text."""
    pieces = list(_pieces(node))
    if not any(isinstance(piece, str) for piece in pieces) or not isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
        return None
    count = 0
    out = ""
    for piece in pieces:
        if isinstance(piece, str):
            out += piece
        else:
            out += f"{{{count}}}"
            count += 1
    return out


def _pieces(node: ast.AST) -> Iterator[str | None]:
    """Texts, and None where something is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    else:
        yield None


def _is_part(node: ast.AST, inner: ast.AST) -> bool:
    """Whether `inner` is a text of the sum or f-string `node` itself, not of something that is put in."""
    if node is inner:
        return True
    if isinstance(node, ast.BinOp):
        return any(_is_part(side, inner) for side in (node.left, node.right))
    return isinstance(node, ast.JoinedStr) and inner in node.values


def _kept(text: str, line: int) -> Iterator[tuple[str, int]]:
    text = text.strip()
    if PROSE.search(text) and not NO_PROSE.search(text):
        yield text, line


STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|(`)|(//[^\n]*|/\*.*?\*/)|((?:(?<=[(,=:\[!&|?;])|(?<=[(,=:\[!&|?;] ))/(?![/*])(?:[^/\\\n\[]|\\.|\[[^\]\n]*\])+/[a-z]*(?=[.,;)\s]))', re.DOTALL)


def of_script(source: str) -> Iterator[tuple[str, int]]:
    """The sentences of a JavaScript module, those inside of templates too."""
    at = 0
    while match := STRING.search(source, at):
        line = source.count("\n", 0, match.start()) + 1
        at = match.end()
        if source[max(0, match.start() - 8) : match.start()].rstrip().endswith("class:"):
            if match[2]:
                _, _, at = _of_template(source, at)
        elif match[1] is not None:
            yield from _kept(match[1].replace('\\"', '"'), line)
        elif match[2]:
            text, inner, at = _of_template(source, at)
            yield from _kept(text, line)
            for expression in inner:
                yield from ((found, line) for found, _ in of_script(expression))


def _of_template(source: str, at: int) -> tuple[str, list[str], int]:
    """(template, expressions that are put in, where it ends) of a text between backticks."""
    out, inner = "", []
    while source[at] != "`":
        if source.startswith("${", at):
            end = _end_of_braces(source, at + 2)
            out += f"{{{len(inner)}}}"
            inner.append(source[at + 2 : end])
            at = end + 1
        else:
            out += source[at]
            at += 1
    return out, inner, at + 1


def _end_of_braces(source: str, at: int) -> int:
    depth = 1
    while True:
        if source[at] == "`":
            _, _, at = _of_template(source, at + 1)
            continue
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        if depth == 0:
            return at
        at += 1


def catalogue(language: str) -> Catalog:
    """The catalogue of a language as it lies there."""
    path = LOCALE / language / "LC_MESSAGES" / "everybyte.po"
    if not path.exists():
        return Catalog(locale=language, project="everybyte", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def updated(language: str) -> Catalog:
    """The catalogue with all messages of today; translations of messages that are gone go too, but those added by hand (single words) stay."""
    old = catalogue(language)
    new = Catalog(locale=language, project="everybyte", copyright_holder="everybyte", fuzzy=False, creation_date=old.creation_date, revision_date=old.revision_date)
    for message in old:
        if message.id and WORD in message.auto_comments:
            new.add(message.id, message.string, auto_comments=[WORD])
    for text, places in sorted(collect().items(), key=lambda item: (item[1][0], item[0])):
        if text not in new:
            known = old.get(text)
            new.add(text, known.string if known else "", locations=[(places[0][0], None)])
    return new


WORD = "word"
"""Comment of a message that is a single word of answers: a category, a phase, a heading. It is not collected but found by showing answers."""


def texts(language: str) -> tuple[bytes, bytes]:
    """The .po and the .mo file of a language."""
    new = updated(language)
    written, compiled = io.BytesIO(), io.BytesIO()
    write_po(written, new, width=160, omit_header=False, sort_output=False, include_lineno=False)
    write_mo(compiled, new)
    return written.getvalue(), compiled.getvalue()


def main() -> int:
    """Writes the catalogues of all languages; 1 if some messages have no translation yet."""
    waiting = 0
    for language in LANGUAGES:
        folder = LOCALE / language / "LC_MESSAGES"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(("everybyte.po", "everybyte.mo"), texts(language), strict=True):
            (folder / name).write_bytes(content)
        missing = [message.id for message in catalogue(language) if message.id and not message.string]
        waiting += len(missing)
        print(f"{language}: {len(missing)} messages wait for a translation")
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
