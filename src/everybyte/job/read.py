"""Reads jobs from files, standard input and mappings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from os.path import splitext
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import plain_yaml
from everybyte.job.check import refuse_contradictions
from everybyte.job.form import Job
from everybyte.job.plain import refuse_unless_plain
from everybyte.job.shorthand import expand

MOST_BYTES = 4 * 2**20
"""Size of the largest job file that is read."""

STDIN = "-"


class RawJob(NamedTuple):
    """A mapping that was read and is not checked yet. `place_of` says where a key path was written: a file and line, or a flag."""

    mapping: dict[str, Any]
    place_of: Callable[[str], str]

    @property
    def name(self) -> str | None:
        """The name that the job gives itself, even if the rest of it cannot be used."""
        name = self.mapping.get("name")
        return name if isinstance(name, str) else None

    def job(self) -> Job:
        """The job. Raises BadInput with key path and place."""
        try:
            return job_from_mapping(self.mapping)
        except BadInput as error:
            raise type(error)(error.path, f"{error.message} [{self.place_of(error.path)}]") from None


def read_job(source: str | PathLike[str] | Mapping[str, Any]) -> Job:
    """The job of a YAML, JSON or TOML file, of standard input (`-`), or of a mapping.

    Raises BadInput with the key path (`train.optimizer.impl`), what was given and what is allowed; for a file that cannot be read or parsed, with
    file, line and column.
    """
    if isinstance(source, Mapping):
        return job_from_mapping(dict(source))
    return load(source).job()


def load(source: str | PathLike[str]) -> RawJob:
    """The mapping of a YAML, JSON or TOML file, or of standard input (`-`). Raises BadInput with file, line and column."""
    return parse(text_of(fspath(source)), fspath(source))


def job_from_mapping(raw: dict[str, Any]) -> Job:
    """The job of a mapping in the contract's form, shorthand included. Raises BadInput."""
    refuse_unless_plain(raw)
    expanded = expand(raw)
    try:
        job = msgspec.convert(expanded, Job)
    except msgspec.ValidationError as error:
        from everybyte.job.fault import find_fault

        raise find_fault(expanded, Job) or BadInput("job", str(error)) from None
    refuse_contradictions(job)
    return job


def parse(text: str, source: str) -> RawJob:
    """The mapping of a text: JSON or TOML by the ending of `source`; without one JSON if it starts like an object of JSON, else YAML. Raises BadInput."""
    shown = "standard input" if source == STDIN else source
    ending = splitext(source)[1].casefold()
    is_json = ending == ".json" or (ending not in (".yaml", ".yml", ".toml") and text.lstrip().startswith('{"'))
    is_yaml = not is_json and ending != ".toml"
    if is_yaml and (plain := plain_yaml.load(text)) is not None:
        return RawJob(plain, lambda path: _line_in_yaml(text, path, shown))
    if is_yaml:
        from everybyte.job import yaml_text as reader
    elif is_json:
        from everybyte.job import json_text as reader  # type: ignore[no-redef]  # three modules with the same function
    else:
        from everybyte.job import toml_text as reader  # type: ignore[no-redef]
    raw = reader.load(text, shown)
    if not isinstance(raw, dict):
        what = "it is empty" if raw is None else f"its top level is a {type(raw).__name__}"
        raise BadInput(shown, f"a job is a mapping with keys such as model, hardware and train, but {what}")
    return RawJob(raw, (lambda path: _line_in_yaml(text, path, shown)) if is_yaml else (lambda _: shown))


def _line_in_yaml(text: str, path: str, shown: str) -> str:
    from everybyte.job import yaml_text

    line = yaml_text.line_of(text, path)
    return f"{shown}, line {line}" if line else shown


def text_of(source: str) -> str:
    """The text of a file, within bounds of size and as UTF-8."""
    shown = "standard input" if source == STDIN else source
    try:
        if source == STDIN:
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(shown.replace("\x00", "\\0"), f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise BadInput(repr(source), "is not a file name: it holds a NUL character") from None
    if len(data) > MOST_BYTES:
        raise BadInput(shown, f"is larger than {MOST_BYTES // 2**20} MiB, which no job file is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(shown, f"is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from None
    if "\x00" in text:
        raise BadInput(shown, f"is not text: it holds a NUL character at position {text.index(chr(0))}")
    return text
