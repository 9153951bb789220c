"""A container as a command: image, entry point, arguments, environment and GPUs, whatever file they stand in."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

from everybyte.formats.command import Command, Launcher, Word
from everybyte.formats.context import Context
from everybyte.formats.place import Given, Place
from everybyte.formats.shell.counts import named_gpu
from everybyte.formats.shell.script import commands_of_words
from everybyte.formats.source import Source

_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:?[-?+])((?:[^{}]|\{[^{}]*\})*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\$|\$\((\w+)\)")


class Container(NamedTuple):
    """What is known of a container."""

    image: str
    words: tuple[Word, ...]
    """Entry point and arguments; empty or flags only if the image starts its own program."""
    environment: Mapping[str, Given]
    gpus: Word | None = None
    """What `docker run --gpus` would say: a count, `all`, `device=0,1`."""
    gpu: Given | None = None
    """The kind of GPU."""
    own_entry: bool = False
    """The words begin with a program, so that the image's own does not start."""


def commands_of(container: Container, source: Source, context: Context) -> list[Command]:
    """The commands of a container: one, or those of the script that its shell reads."""
    launchers: tuple[Launcher, ...] = ()
    if container.gpus is not None:
        launchers = (Launcher("container", (Word("--gpus", container.gpus.place), container.gpus)),)
    commands = commands_of_words(container.words, source, context, environment=container.environment, launchers=launchers, image=container.image)
    if container.gpu is None:
        return commands
    return [command._replace(settings={**command.settings, "hardware.gpu": container.gpu}) for command in commands]


def split(text: str, place: Place) -> list[Word]:
    """A text as the words that a shell would make of it."""
    try:
        parts = shlex.split(text.replace("\n", " "), comments=False)
    except ValueError:
        parts = text.split()
    return [Word(part, place) for part in parts]


def interpolated(text: str, variables: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """A text with compose's `${VAR:-default}` put in, and the names that nobody sets."""
    unset: list[str] = []

    def one(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name, operator, word = match[1] or match[4], match[2] or "", match[3] or ""
        value = variables.get(name)
        if operator.endswith("+"):
            return interpolated(word, variables)[0] if value else ""
        if value is None or (operator.startswith(":") and not value):
            if operator.endswith("-"):
                inner, missing = interpolated(word, variables)
                unset.extend(missing)
                return inner
            unset.append(name)
            return match.group()
        return value

    return _VARIABLE.sub(one, text), tuple(unset)


def of_kubernetes(text: str, environment: Mapping[str, Given]) -> str:
    """A text with `$(NAME)` put in, as Kubernetes does for arguments."""

    def one(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        given = environment.get(match[1])
        return match.group() if given is None or given.value is None else str(given.value)

    return _OF_KUBERNETES.sub(one, text)


@cache
def _labels() -> list[tuple[str, str]]:
    with open(join(dirname(__file__), "labels.csv"), encoding="utf-8", newline="") as lines:
        return [(label, gpu) for label, gpu in list(csv.reader(lines))[1:]]


def gpu_of_label(label: Any, place: Place) -> Given | None:
    """The GPU that a node label, machine type or resource profile speaks of: `nvidia-l4`, `p5.48xlarge`; None if none is known."""
    text = str(label).casefold()
    for beginning, gpu in _labels():
        if text.startswith(beginning):
            return Given(gpu, place)
    return named_gpu(text.replace("nvidia-", "").replace("tesla-", ""), Word(text, place))
