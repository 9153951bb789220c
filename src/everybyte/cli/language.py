"""The language of a command: `--lang zh` anywhere on its line, else what the environment asks for; help and messages in it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeVar

import click

from everybyte.basics.errors import BadInput
from everybyte.report.language import LANGUAGES, language, said, speak

Command = TypeVar("Command", bound=click.Command)
OPTION = "--lang"


def chosen_language(args: Sequence[str]) -> list[str]:
    """The arguments without `--lang CODE`, which is put into effect. Raises BadInput for a language that is not known."""
    speak(None)
    out = list(args)
    for index, word in enumerate(args):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == OPTION:
            code = value if equals else args[index + 1] if index + 1 < len(args) else ""
            if code not in LANGUAGES:
                raise BadInput(OPTION, f"{code!r} is not known; supported: {', '.join(LANGUAGES)}")
            speak(code)
            del out[index : index + (1 if equals else 2)]
            break
    return out


def in_language(command: Command) -> Command:
    """The command with its help in the language in use, or a copy of it that has; examples stay as they are."""
    if language() == "en":
        return command
    spoken = copy(command)
    spoken.help = "\n\n".join(_paragraph(part) for part in (command.help or "").split("\n\n"))
    spoken.params = [_option(parameter) for parameter in command.params]
    return spoken


def _option(parameter: click.Parameter) -> click.Parameter:
    if not isinstance(parameter, click.Option) or not parameter.help:
        return parameter
    spoken = copy(parameter)
    spoken.help = said(parameter.help)
    return spoken


def _paragraph(text: str) -> str:
    return text if text.lstrip().startswith("\b") else said(" ".join(text.split()))
