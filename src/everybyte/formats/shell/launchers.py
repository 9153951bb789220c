"""Takes launchers and wrappers off a command: from `srun accelerate launch --num_processes 8 x.py --bf16` to `x.py --bf16` and what each of them was told.

Which programs start others, and which of their flags take a value, is data (`launchers.csv`). A word like `mca2` in its column of values is a flag with two.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from os.path import dirname, join
from typing import NamedTuple

from everybyte.formats.bag import normal
from everybyte.formats.command import Launcher, Word

_MOST = 20
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*w?|ipython[\d.]*|\$\{?PY(THON)?\w*\}?")
_SHELL = frozenset(("bash", "sh", "zsh", "dash", "ksh", "ash"))


class Row(NamedTuple):
    """A program that starts others."""

    words: tuple[str, ...]
    name: str
    kind: str
    """`launcher`, `wrapper` (says nothing about the run), `dashes` (the command stands behind `--`), `image` (a container image comes first)."""
    values: dict[str, int]
    """Flags that take words of their own, and how many."""
    skip: int
    """Words before the command that are no flags: a host, a container."""


class Peeled(NamedTuple):
    """A command without its launchers."""

    words: tuple[Word, ...]
    launchers: tuple[Launcher, ...]
    assignments: tuple[Word, ...] = ()
    """`env A=b`: what stands in front of the program."""
    image: Word | None = None
    """The container image in which it runs."""
    script: Word | None = None
    """The text that a shell is told to read: of `bash -c TEXT`."""
    file: Word | None = None
    """The script file that a shell is told to read, whose arguments `words` are."""


@cache
def rows() -> dict[str, list[Row]]:
    """By the first word, those with more words first."""
    found: dict[str, list[Row]] = {}
    with open(join(dirname(__file__), "launchers.csv"), encoding="utf-8", newline="") as lines:
        for words, name, kind, values, skip in list(csv.reader(lines))[1:]:
            counts = {value.rstrip("0123456789"): int(value[-1]) if value[-1].isdigit() else 1 for value in values.split()}
            row = Row(tuple(words.split()), name or words, kind, counts, int(skip))
            found.setdefault(row.words[0], []).append(row)
    return {first: sorted(several, key=lambda row: -len(row.words)) for first, several in found.items()}


def program_name(word: str) -> str:
    """The name of a program: its path's last part, without `.exe`."""
    name = word.replace("\\", "/").rstrip("/").rpartition("/")[2] or word
    return name[:-4] if name.casefold().endswith(".exe") else name


def peel(words: Sequence[Word]) -> Peeled:
    """The command inside its launchers, the outermost first."""
    state = Peeled(tuple(words), ())
    for _ in range(_MOST):
        following = _once(state)
        if following is None:
            return state
        state = following
        if state.script is not None or state.file is not None:
            return state
    return state


def _once(state: Peeled) -> Peeled | None:
    """One layer less; None if nothing is left to take off."""
    words = state.words
    if not words:
        return None
    if len(words) > 1 and _ASSIGNMENT.match(words[0].text):
        return state._replace(words=words[1:], assignments=(*state.assignments, words[0]))
    name = program_name(words[0].text)
    if name == "env":
        return _environment(state)
    if _PYTHON.fullmatch(name):
        return _python(state)
    if name in _SHELL:
        return _shell(state)
    for row in rows().get(name, ()):
        if tuple(word.text for word in words[1 : len(row.words)]) == row.words[1:]:
            return _launched(state, row)
    return _behind_dashes(state)


def _launched(state: Peeled, row: Row) -> Peeled | None:
    own, rest = _own_flags(state.words[len(row.words) :], row)
    if row.kind == "dashes":
        texts = [word.text for word in state.words]
        if "--" not in texts:
            return None
        cut = texts.index("--")
        own, rest = list(state.words[len(row.words) : cut]), list(state.words[cut + 1 :])
    launcher = Launcher(row.name, tuple(own))
    launchers = state.launchers if row.kind == "wrapper" else (*state.launchers, launcher)
    if row.kind == "image":
        return _container(state, row, launcher, rest)
    own_skip = rest[: row.skip]
    rest = rest[row.skip :]
    if rest and rest[0].text == "--":
        rest = rest[1:]
    if row.name == "sbatch" and (wrapped := value_of(own, "wrap")) is not None:
        return state._replace(words=(), launchers=launchers, script=wrapped)
    if not rest:
        return None
    if row.name == "ssh" and len(rest) == 1 and " " in rest[0].text:
        return state._replace(words=(), launchers=launchers, script=rest[0])
    if own_skip and row.kind == "launcher":
        launchers = (*launchers[:-1], Launcher(row.name, (*own, *own_skip)))
    if row.name == "sbatch":
        return state._replace(words=tuple(rest[1:]), launchers=launchers, file=rest[0])
    return state._replace(words=tuple(rest), launchers=launchers)


def _own_flags(words: Sequence[Word], row: Row) -> tuple[list[Word], list[Word]]:
    """The launcher's own flags with their values, and the rest."""
    index = 0
    while index < len(words):
        text = words[index].text
        if text == "--":
            index += 1
            break
        if not text.startswith("-") or text == "-":
            if not _is_gap(words[index], row):
                break
            index += 1
            continue
        index += 1
        if "=" in text and text.startswith("--"):
            continue
        index += _taken(text, row)
    return list(words[:index]), list(words[index:])


def _is_gap(word: Word, row: Row) -> bool:
    """An unknown word among a launcher's flags that is named like more of them, such as `$SRUN_ARGS`."""
    named = re.fullmatch(r"\$\{?\w*(ARG|OPT|FLAG|PARAM)\w*(\[[@*]\])?\}?", word.text, re.IGNORECASE)
    return bool(word.unknown) and named is not None and row.kind in ("launcher", "image")


def _taken(text: str, row: Row) -> int:
    """How many words behind a flag are its values."""
    name = normal(text)
    if "*" in row.values and text.startswith("--"):
        return 1
    if name in row.values:
        return row.values[name]
    short = text[1:2]
    if not text.startswith("--") and len(text) > 2 and row.kind == "image" and text[1:].isalpha():
        return row.values.get(text[-1], 0)  # -itv: the last of several short flags may take a value
    if not text.startswith("--") and short in row.values and len(text) == 2:
        return row.values[short]
    return 0


def value_of(own: Sequence[Word], *names: str) -> Word | None:
    """The value of one of a launcher's flags."""
    found = None
    for i, word in enumerate(own):
        written, equals, inline = word.text.partition("=")
        if written.startswith("-") and normal(written) in names:
            found = word._replace(text=inline) if equals else own[i + 1] if i + 1 < len(own) else None
    return found


def _environment(state: Peeled) -> Peeled | None:
    """`env -i A=b program`."""
    rest = list(state.words[1:])
    while rest and rest[0].text.startswith("-"):
        takes = rest[0].text in ("-u", "--unset", "-C", "--chdir")
        rest = rest[2 if takes else 1 :]
    assignments = list(state.assignments)
    while rest and _ASSIGNMENT.match(rest[0].text):
        assignments.append(rest.pop(0))
    return state._replace(words=tuple(rest), assignments=tuple(assignments)) if rest else None


def _python(state: Peeled) -> Peeled | None:
    """`python -u -m module`, `python script.py`: the module or script is the program."""
    rest = list(state.words[1:])
    while rest and rest[0].text.startswith("-") and rest[0].text not in ("-m", "-c", "-"):
        rest = rest[2 if rest[0].text in ("-X", "-W") else 1 :]
    if not rest or rest[0].text in ("-c", "-"):
        return None
    if rest[0].text == "-m":
        rest = rest[1:]
    return state._replace(words=tuple(rest)) if rest else None


def _shell(state: Peeled) -> Peeled | None:
    """`bash -lc TEXT`, `bash script.sh arguments`."""
    rest = list(state.words[1:])
    while rest and rest[0].text.startswith(("-", "+")):
        flag = rest.pop(0).text
        if flag in ("-o", "+o", "-O", "--rcfile", "--init-file") and rest:
            rest.pop(0)
        if not flag.startswith("--") and "c" in flag[1:]:
            return state._replace(words=tuple(rest[1:]), script=rest[0]) if rest else None
    return state._replace(words=tuple(rest[1:]), file=rest[0]) if rest else None


def _container(state: Peeled, row: Row, launcher: Launcher, rest: list[Word]) -> Peeled | None:
    """`docker run ... IMAGE command`: `--entrypoint` comes before the command."""
    image = rest[0] if row.words[0] != "kubectl" and rest else value_of(launcher.words, "image")
    if row.words[0] == "kubectl":
        own, behind = _own_flags(rest[1:], row)
        launcher = Launcher(row.name, (*launcher.words, *own))
        image, rest = value_of(launcher.words, "image"), [rest[0], *behind] if rest else []
    if image is None or not rest:
        return None
    command = [word for word in rest[1:] if word.text != "--"] if row.words[0] == "kubectl" else rest[1:]
    entry = value_of(launcher.words, "entrypoint")
    if entry is not None and entry.text:
        command = [*_split(entry), *command]
    return state._replace(words=tuple(command), launchers=(*state.launchers, launcher), image=image)


def _split(word: Word) -> list[Word]:
    return [word._replace(text=text) for text in word.text.split()]


def _behind_dashes(state: Peeled) -> Peeled | None:
    """`submit.py --gpus 8 -- accelerate launch ...`: a program that nobody knows, in front of one that is known to start others."""
    texts = [word.text for word in state.words]
    if "--" not in texts[1:]:
        return None
    cut = texts.index("--", 1)
    inner = state.words[cut + 1 :]
    if not inner:
        return None
    name = program_name(inner[0].text)
    if name not in rows() and not _PYTHON.fullmatch(name) and name not in _SHELL and name not in ("env", "vllm", "tune", "axolotl", "llamafactory-cli"):
        return None
    launcher = Launcher(program_name(state.words[0].text), tuple(state.words[1:cut]))
    return state._replace(words=tuple(inner), launchers=(*state.launchers, launcher))
