"""Options of `train` and `serve` from the table of flags (`job.flags`), and the job that a command line stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import click
from msgspec import inspect

from everybyte.basics.errors import BadInput
from everybyte.cli.options import Command
from everybyte.job import Job, RawJob
from everybyte.job.flags import Flag

UNSAID = -1
"""Value of a flag that was given without one: only what it implies is set."""


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
    return Kind(click.INT if inspect.IntType in has else click.STRING, is_switch=False, is_list=False, words=())


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
    text = " ".join(filter(None, (flag.help, f"One of {', '.join(kind.words)}." if kind.words and not kind.is_list else "")))
    if kind.is_switch:
        return click.option(f"{flag.name}/--no-{flag.name.removeprefix('--')}", _parameter(flag), default=None, help=text or None)
    if flag.implies:
        return click.option(flag.name, _parameter(flag), type=kind.click_type, is_flag=False, flag_value=UNSAID, default=None, metavar="[N]", help=text)
    metavar = "WORD" if kind.words or kind.is_list else "TEXT" if kind.click_type is click.STRING else "N"
    return click.option(flag.name, _parameter(flag), type=kind.click_type, default=None, metavar=metavar, help=text or None)


def _parameter(flag: Flag) -> str:
    return "flag_" + flag.name.removeprefix("--").replace("-", "_")


def raw_job(purpose: str, model: str, flags: Sequence[Flag], given: dict[str, Any], settings: Sequence[str]) -> RawJob:
    """The job that a command line stands for, still to be checked. Raises BadInput for flags that contradict one another."""
    raw: dict[str, Any] = {"model": model, purpose: {}}
    set_by: dict[str, str] = {}
    chosen = [flag for flag in flags if given[_parameter(flag)] is not None]
    for flag in chosen:
        value = given[_parameter(flag)]
        if value == UNSAID and flag.implies:
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
    return RawJob(raw, lambda path: _flag_for(path, set_by))


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
