"""Options of `train` and `serve` from the table of flags (`job.flags`), and the job that a command line stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import click
from msgspec import inspect

from everybyte.basics.errors import BadInput
from everybyte.cli.foreign import UNSAID as UNSAID_WORD
from everybyte.cli.model_name import name_model
from everybyte.cli.options import Command
from everybyte.job import Job, RawJob
from everybyte.job.flags import Flag
from everybyte.job.shorthand import expand
from everybyte.job.spelling import count, respelled

UNSAID = -1
"""Value of a flag that was given without one: only what it implies is set."""


class Count(click.ParamType[int]):
    """A whole number, also as `32k`."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; `max` stays a word, which the model answers."""
        if value == UNSAID_WORD:
            return UNSAID
        found = value if isinstance(value, int) else int(value) if SIGNED.fullmatch(value) else count(value)
        if found is None and not (value == MOST and param is not None and param.name in MAY_BE_MOST):
            self.fail(f"{value!r} is not a whole number, such as 4096 or 32k", param, ctx)
        return value if found is None else found


COUNT = Count()
SIGNED = re.compile(r"-[0-9]+")
MOST = "max"
"""The longest sequence that the model was made for."""
MAY_BE_MOST = ("flag_context", "flag_seq_len")


class Kind(NamedTuple):
    """How a key's values are written on a command line."""

    click_type: click.ParamType[Any] | None
    is_switch: bool
    is_list: bool
    words: tuple[str, ...]


def kind_of(path: str) -> Kind:
    """From the form of the key. What several forms can hold is text, and the reader of the job decides."""
    members = _form_of(path)
    words = tuple(str(word) for member in members if isinstance(member, inspect.LiteralType) for word in member.values)
    has = {type(member) for member in members}
    if inspect.BoolType in has and inspect.StrType not in has:
        return Kind(None, is_switch=True, is_list=False, words=())
    is_list = inspect.VarTupleType in has
    if is_list or inspect.StrType in has or words:
        return Kind(click.STRING, is_switch=False, is_list=is_list, words=words)
    if inspect.FloatType in has:
        return Kind(click.FLOAT, is_switch=False, is_list=False, words=())
    return Kind(COUNT if inspect.IntType in has else click.STRING, is_switch=False, is_list=False, words=())


@cache
def _form_of(path: str) -> tuple[inspect.Type, ...]:
    members: tuple[inspect.Type, ...] = (inspect.type_info(Job),)
    for name in path.split("."):
        struct = next((member for member in members if isinstance(member, inspect.StructType)), None)
        if struct is None:
            return (inspect.StrType(),)  # a setting in `extra`, which the framework reads
        form = next(field.type for field in struct.fields if field.encode_name == name)
        members = form.types if isinstance(form, inspect.UnionType) else (form,)
    return members


def job_flags(flags: Sequence[Flag]) -> Callable[[Command], Command]:
    """Adds the flags of a table, and --set for every other key."""

    def decorate(command: Command) -> Command:
        text = "Any other key of the job: train.extra.packing=true."
        command = click.option("--set", "set_", metavar="KEY=VALUE", multiple=True, help=text)(command)
        for flag in reversed(flags):
            command = _option(flag)(command)
        return command

    return decorate


def _option(flag: Flag) -> Callable[[Command], Command]:
    kind = kind_of(flag.path)
    text = " ".join(filter(None, (flag.help, _one_of(flag, kind))))
    if kind.is_switch:
        return click.option(f"{flag.name}/--no-{flag.name.removeprefix('--')}", _parameter(flag), default=None, help=text or None)
    if flag.implies:
        return click.option(flag.name, _parameter(flag), type=kind.click_type, is_flag=False, flag_value=UNSAID, default=None, metavar="[N]", help=text)
    metavar = "WORD" if kind.words or kind.is_list else "TEXT" if kind.click_type is click.STRING else "N"
    return click.option(flag.name, _parameter(flag), type=kind.click_type, default=None, metavar=metavar, help=text or None)


MOST_WORDS = 15
"""Words of a flag that its help lists; of more it names the first."""


def _one_of(flag: Flag, kind: Kind) -> str:
    words = kind.words
    if not words or kind.is_list:
        return ""
    return f"One of {', '.join(words)}." if len(words) <= MOST_WORDS else f"For example {', '.join(words[: MOST_WORDS // 2])} ..."


def _parameter(flag: Flag) -> str:
    return "flag_" + flag.name.removeprefix("--").replace("-", "_")


def raw_job(purpose: str, model: str, flags: Sequence[Flag], given: dict[str, Any], settings: Sequence[str]) -> RawJob:
    """The job that a command line stands for, still to be checked. Raises BadInput for flags that contradict one another."""
    raw: dict[str, Any] = {"model": model, purpose: {}}
    set_by: dict[str, str] = {}
    chosen = [flag for flag in flags if given[_parameter(flag)] is not None]
    for flag in chosen:
        value = given[_parameter(flag)]
        if (value == UNSAID and flag.implies) or value == AUTO.get(flag.path):
            continue
        if flag.path in set_by:
            raise BadInput(flag.name, f"sets {flag.path}, and so does {set_by[flag.path]}")
        set_by[flag.path] = flag.name
        _set(raw, flag.path, _written(value, kind_of(flag.path)))
    for flag in chosen:
        for path, word in flag.implies:
            if path not in set_by:
                _set(raw, path, word)
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise BadInput("--set", f"{setting!r} is not of the form KEY=VALUE")
        _set(raw, path, _value(value))
    name_model(raw, purpose)
    _resolve_most(raw, purpose)
    return RawJob(respelled(expand(raw)), lambda path: _flag_for(path, set_by))


AUTO = {"serve.weights.format": "auto"}
"""Values that say the same as leaving the flag out."""


def _resolve_most(raw: dict[str, Any], purpose: str) -> None:
    """`max` tokens are the positions that the model was made for."""
    for key in ("context", "seq_len"):
        if raw[purpose].get(key) == MOST:
            from everybyte.models.source import network_of

            positions = network_of(raw["model"], "model").max_positions
            if not positions:
                raise BadInput(f"{purpose}.{key}", "the model's configuration states no largest length; write a number")
            raw[purpose][key] = positions


def _written(value: Any, kind: Kind) -> Any:
    """Lists are written with commas between; a word that stands for a whole list stays a word."""
    return [word.strip() for word in value.split(",")] if kind.is_list and value not in kind.words else value


def _flag_for(path: str, set_by: dict[str, str]) -> str:
    """The flag that set the key, or a key above or below it."""
    related = (flag for key, flag in set_by.items() if path.startswith(key) or key.startswith(f"{path}."))
    return ", ".join(dict.fromkeys(related)) or "command line"


def _set(raw: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    target = raw
    for section in sections:
        inner = target.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput("--set", f"{path} lies inside {section}, which is {inner!r}")
        target = inner
    target[last] = value


def _value(text: str) -> Any:
    from everybyte.job import yaml_text

    return yaml_text.load(text, "--set")
