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

from everybyte.report.language import messages, said, speak

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "everybyte"
LOCALE = PACKAGE / "report" / "locale"
LANGUAGES = ("zh",)
TALKING = ("job/flags.py", "report", "cli", "plan", "formats", "web", "diagnose")
"""Rooms whose every sentence is for people."""
FOR_PROGRAMS = ("web/openapi.py", "web/metrics.py", "web/forms.py")
"""Files whose texts are read by programs and their authors, in English."""
LOOKS = frozenset({"style", "class_", "class", "content", "name"})
"""Arguments that say how something looks."""
FACTS = {"BadInput": 1, "Unsupported": 1, "EverybyteError": 0, "MissingExtra": 0, "MoreNeeded": 1}
"""Exceptions, and which of their arguments is the message."""
METHODS = {"warn": 0, "assume": 0, "inferred": 0, "refuse": 0}
"""Functions whose argument is told to people as it is."""
MARKS = re.compile(r"^(?:\s|[-–·]\s)*")
"""Spaces and list marks, which are no part of a message."""
PROSE = re.compile(r"[A-Za-z]{2,}[,:;]? +(?:\{\d+\} *)?[A-Za-z]{2,}")
"""Two words: what has none is a name, not a sentence."""
NO_PROSE = re.compile(
    r"datum\.|^ *(?:\{(?!\d)|[<.#@:])|^--|://|\\left|font|width /|charset="
    r"|^everybyte [a-z]+ [^.]*$|/\S*\.(?:py|cpp|cc|cuh)\b|^\$|sans-serif|\bdiv\b|aria-|^(?:not )?(?:bold|dim)\b|^ ?everybyte \w"
    r"|\\[bSwds][^ ]|gradient\(|^\(prefers|^use strict$|^light dark$|^sr |device-width"
)


def collect() -> dict[str, list[tuple[str, int]]]:
    """Message -> where it stands (file, line)."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if str(place) in FOR_PROGRAMS:
            continue
        every = place.parts[0] in TALKING or str(place) in TALKING
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
    text = MARKS.sub("", text).strip()
    if "\b" not in text and PROSE.search(text) and not NO_PROSE.search(text):
        yield text, line


STRING = re.compile(
    r'"((?:[^"\\\n]|\\.)*)"|(`)|'
    r"(//[^\n]*|/\*.*?\*/)|((?:(?<=[(,=:\[!&|?;])|(?<=[(,=:\[!&|?;] ))/(?![/*])(?:[^/\\\n\[]|\\.|\[[^\]\n]*\])+/[a-z]*(?=[.,;)\s]))",
    re.DOTALL,
)


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
    with (folder(language) / "everybyte.po").open("rb") as file:
        return read_po(file, locale=language)


def folder(language: str) -> Path:
    """Where the files of a language lie."""
    return LOCALE / language / "LC_MESSAGES"


def compiled(catalog: Catalog) -> bytes:
    """The .mo file."""
    out = io.BytesIO()
    write_mo(out, catalog)
    return out.getvalue()


def waiting(language: str) -> dict[str, str]:
    """Messages of the source that are shown in English, with their files: neither they nor a wider template of the catalogue are translated."""
    found, known = collect(), messages(language)
    speak(language)
    try:
        said_so = {text: said(HOLE.sub(lambda hole: f"<{hole[1]}>", text)) for text in found}
        return {text: found[text][0][0] for text, spoken in said_so.items() if FOREIGN.search(spoken) is None and text not in known}
    finally:
        speak(None)


HOLE = re.compile(r"\{(\d+)\}")
FOREIGN = re.compile(r"[^\x00-\u02ff\u2000-\u2bff]")
"""A letter that no English text has."""


def main() -> int:
    """Writes the catalogues of all languages; 1 if some messages have no translation yet."""
    missing = 0
    for language in LANGUAGES:
        catalog = catalogue(language)
        (folder(language) / "everybyte.mo").write_bytes(compiled(catalog))
        left = waiting(language)
        for text, place in left.items():
            if text not in catalog:
                catalog.add(text, "", locations=[(place, None)])
        with (folder(language) / "everybyte.po").open("wb") as file:
            write_po(file, catalog, width=160, include_lineno=False)
        missing += len(left)
        print(f"{language}: {len(left)} messages wait for a translation")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
