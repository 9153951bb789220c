"""Writes what the documentation can take from the code, so that it cannot drift: `make docs`. A test compares both.

The pages of docs/reference are written whole. In README.md and docs/guides the output of each `$ everybyte ...` of a console block is run again.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import inspect as form

from everybyte.cli.app import COMMANDS
from everybyte.job import Job
from everybyte.job.described import NO_REAL_LIMIT, alternatives, field_docs, fields_of, structs
from everybyte.job.shorthand import HEAD_KEY
from everybyte.textbook import FORMULAS, LETTERS, Formula

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Written by docs/generate.py from the code; do not edit. -->"
WIDTH = 110

JOB_INTRODUCTION = """\
YAML, JSON and TOML are read alike. A key that is not listed here is refused with the nearest known one. A key that is left out is not its default:
the framework's default is filled in, and the answer says so."""
SHORT_FORMS = "One word stands for a part of the job with that word as its head key: `optimizer: adamw` is `optimizer: {name: adamw}`."
FORMULAS_INTRODUCTION = """\
The published closed equations, as their papers print them, and the case in which each misleads. `everybyte formulas NAME` prints one."""


def main() -> int:
    """Writes every page that is not up to date."""
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


def pages() -> dict[Path, str]:
    """All pages as they should be, by path."""
    reference = {"job-file.md": job_page(), "commands.md": commands_page(), "formulas.md": formulas_page()}
    return {REFERENCE / name: text for name, text in reference.items()} | {path: with_output(path.read_text(encoding="utf-8")) for path in pages_with_output()}


def pages_with_output() -> list[Path]:
    """The pages whose console blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


def with_output(page: str) -> str:
    """The page with the output of its commands as it is now."""
    return re.sub(r"(?<=```console\n)(.*?)(?=```)", lambda block: run_block(block[1]), page, flags=re.DOTALL)


def run_block(block: str) -> str:
    """A console block, its `$ everybyte` commands run again. A block with other commands stays as it is."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    if not commands or not all(command.startswith("$ everybyte ") for command in commands):
        return block
    return "\n\n".join(f"{command}\n{output_of(command[2:])}" for command in commands) + "\n"


def output_of(command: str) -> str:
    """What a command prints in the root of the project, without colour."""
    words = [str(Path(sys.executable).with_name("everybyte")), *shlex.split(command)[1:]]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(WIDTH)}
    done = subprocess.run(words, cwd=ROOT, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def job_page() -> str:
    """The keys of a job file, section by section, as the structs declare them."""
    docs = field_docs()
    short = [f"Head keys of `{part}`: " + ", ".join(f"`{key}` → `{head}`" for key, head in heads.items()) + "." for part, heads in HEAD_KEY.items()]
    parts = ["# The job file", NOTE, JOB_INTRODUCTION, "\n".join([SHORT_FORMS, *short])]
    parts += [section(path, cls, docs) for path, cls in structs("", Job)]
    return "\n\n".join(parts) + "\n"


def section(path: str, cls: type[msgspec.Struct], docs: dict[str, dict[str, str]]) -> str:
    """One table: key, values, meaning."""
    rows = [f"| `{field.name}` | {values(field.type)} | {docs[cls.__name__].get(field.name, '')} |" for field in fields_of(cls)]
    return "\n".join([f"## {path or 'Top level'}", "", inspect.cleandoc(cls.__doc__ or ""), "", "| key | values | meaning |", "| --- | --- | --- |", *rows])


def values(kind: form.Type) -> str:
    """What may be written for a type."""
    return " or ".join(dict.fromkeys(one_value(member) for member in alternatives(kind)))


def one_value(kind: form.Type) -> str:
    """What may be written for a type that is no union."""
    match kind:
        case form.LiteralType(values=words):
            return ", ".join(f"`{word}`" for word in words)
        case form.IntType() | form.FloatType():
            name = "whole number" if isinstance(kind, form.IntType) else "number"
            low = [f"{sign} {bound:g}" for sign, bound in (("≥", kind.ge), (">", kind.gt)) if bound is not None]
            high = [f"≤ {kind.le:g}"] if kind.le is not None and kind.le < NO_REAL_LIMIT else []
            return " ".join([name, *low, *high])
        case form.StrType():
            return "text"
        case form.BoolType():
            return "`true`, `false`"
        case form.StructType():
            return "a mapping (below)"
        case form.VarTupleType(item_type=item) | form.ListType(item_type=item):
            return f"a list of {values(item)}"
        case form.DictType() | form.AnyType():
            return "a mapping"
        case _:
            return "any"


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands", NOTE, block(output_of("everybyte --help"))]
    parts += [f"## {name}\n\n{block(output_of(f'everybyte {name} --help'))}" for name in COMMANDS]
    return "\n\n".join(parts) + "\n"


def block(text: str) -> str:
    """Text that stays as it is."""
    return f"```\n{text}\n```"


def formulas_page() -> str:
    """The formula book."""
    letters = "\n".join(["| letter | meaning |", "| --- | --- |", *(f"| {letter} | {meaning} |" for letter, meaning in LETTERS.items())])
    parts = ["# The formula book", NOTE, FORMULAS_INTRODUCTION, letters]
    for chapter in dict.fromkeys(entry.chapter for entry in FORMULAS):
        parts.append(f"## {chapter}\n\n{chapter_text(chapter)}")
        parts += [formula_text(entry) for entry in FORMULAS if entry.chapter == chapter]
    return "\n\n".join(parts) + "\n"


def chapter_text(chapter: str) -> str:
    """The docstring of the chapter's module."""
    return inspect.cleandoc(sys.modules[f"everybyte.textbook.{chapter}"].__doc__ or "")


def formula_text(entry: Formula) -> str:
    """One equation with its source and limits."""
    return f"### {entry.name}\n\n`{entry.text}` ({entry.unit})\n\n{entry.summary}\n\n- Source: {entry.citation}\n- Misleads: {entry.wrong_when}"


if __name__ == "__main__":
    sys.exit(main())
