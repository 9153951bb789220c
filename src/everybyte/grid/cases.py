"""The cases of a grid: what is asked of each combination, in a form that goes to other processes and machines, and that is known again after a restart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.version import __version__
from everybyte.grid.axes import Axis, combinations, in_full
from everybyte.job.shorthand import expand
from everybyte.plan.start.taken import put

Ask = Literal["estimate", "quick", "trace"]
ASKS: tuple[str, ...] = get_args(Ask)
JOB = "job"
"""The column that says which of several files a row is of."""
TRACED = ("gpu", "steps", "world", "optimizer", "alloc_conf")
"""What else than a program's own arguments a grid of traces goes over."""
MOST_DIGESTED = 1 << 30
"""Bytes of the largest file whose content decides whether a kept row still holds; of a larger one size and date do."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One combination. `job` is a mapping that is still to be read, so that what is wrong with it becomes its row."""

    ask: Ask
    values: dict[str, Any]
    """The columns that tell the combination from others."""
    job: dict[str, Any] | None = None
    program: str = ""
    """What is traced instead of a job, as `everybyte trace` takes it."""
    arguments: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    """Of the trace, by the names of TRACED."""
    files: tuple[str, ...] = ()
    """Digests of the files that the answer depends on."""

    @property
    def key(self) -> str:
        """Equal for equal questions to the same release."""
        return sha256(msgspec.json.encode([__version__, self], order="sorted")).hexdigest()[:32]


def cases_of_jobs(jobs: Sequence[tuple[str, dict[str, Any]]], axes: Sequence[Axis], ask: Ask) -> list[Case]:
    """The cases of jobs by their names. Raises BadInput for an axis that no job has."""
    longs = [(name, expand(raw)) for name, raw in jobs]
    purposes = [purpose for purpose in ("train", "serve") if any(purpose in raw for _, raw in longs)]
    full = [in_full(axis, purposes or ["train", "serve"]) for axis in axes]
    found = []
    for name, raw in longs:
        for values in combinations(full):
            job = msgspec.json.decode(msgspec.json.encode(raw))
            for path, value in values.items():
                put(job, path, value)
            columns = {**({JOB: name} if len(jobs) > 1 else {}), **{path: _shown(value) for path, value in values.items()}}
            found.append(Case(ask=ask, values=columns, job=job, files=_digest_of(job.get("model"))))
    return found


def cases_of_program(target: str, arguments: Sequence[str], axes: Sequence[Axis]) -> list[Case]:
    """The cases of a program that is traced; an axis that begins with a dash is one of its own arguments. Raises BadInput for another one."""
    for axis in axes:
        if axis.name not in TRACED and not axis.name.startswith("-"):
            own = "one of the program's own arguments is written with its dashes, such as --over=--batch-size=1,2,4"
            raise BadInput("--over", f"a trace has no setting {axis.name!r}; it has {', '.join(TRACED)}; {own}")
    files, found = _digest_of(target.partition(":")[0]), []
    for values in combinations(axes):
        options = {name: value for name, value in values.items() if name in TRACED}
        own_arguments = [word for name, value in values.items() if name not in TRACED for word in _argument(name, value)]
        columns = {name: _shown(value) for name, value in values.items()}
        found.append(Case(ask="trace", values=columns, program=target, arguments=(*arguments, *own_arguments), options=options, files=files))
    return found


def _argument(name: str, value: Any) -> tuple[str, ...]:
    """true: the flag alone; false: no such flag."""
    if isinstance(value, bool):
        return (name,) if value else ()
    return (name, str(value))


def _shown(value: Any) -> Any:
    """A value as a cell of a table: numbers, words and switches as they are, all else as JSON."""
    return value if isinstance(value, str | int | float) or value is None else msgspec.json.encode(value, order="sorted").decode()


def _digest_of(path: object) -> tuple[str, ...]:
    if not isinstance(path, str) or not os.path.isfile(path):
        return ()
    size, changed = os.stat(path).st_size, os.stat(path).st_mtime_ns
    if size > MOST_DIGESTED:
        return (f"{size} {changed}",)
    with open(path, "rb") as file:
        return (sha256(file.read()).hexdigest(),)
