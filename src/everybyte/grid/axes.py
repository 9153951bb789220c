"""The axes of a grid: a setting, and the values that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from msgspec import inspect

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.job import Job, yaml_text
from everybyte.plan.keys import SPOKEN

MOST_CASES = 1_000_000
"""More combinations are a slip of the pen: at 2 ms each they take half an hour on one core, at 50 ms half a day."""
OPEN = ("train.extra", "serve.extra", "model", "given")
"""Parts of a job whose keys others decide."""


class Axis(NamedTuple):
    """A setting by its key path, or an option of a trace, and its values in order."""

    name: str
    values: tuple[Any, ...]


def read_axis(text: str) -> Axis:
    """`train.micro_batch=1,2,4` or `model=[a, b]`: values are YAML, with commas between. Raises BadInput."""
    name, equals, values = text.partition("=")
    if name.startswith("--") and not equals:
        raise BadInput("--over", f"{text!r} names no values; write --over=--batch-size=1,2,4")
    if not equals or not name.strip() or not values.strip():
        raise BadInput("--over", f"{text!r} names no values; write --over train.micro_batch=1,2,4")
    found = yaml_text.load(values if values.lstrip().startswith("[") else f"[{values}]", f"--over {name}")
    return axis_of(name.strip(), found, "--over")


def read_axes(over: object, place: str) -> list[Axis]:
    """The axes of the `over` section of a file. Raises BadInput."""
    if not isinstance(over, Mapping) or not over:
        raise BadInput(f"{place}: over", "maps settings to lists of values, such as train.micro_batch: [1, 2, 4]")
    return [axis_of(str(name), values, f"{place}: over") for name, values in over.items()]


def axis_of(name: str, values: object, place: str) -> Axis:
    """An axis whose values were read. Raises BadInput where there is none, and where one stands there twice."""
    if not isinstance(values, list) or not values:
        raise BadInput(place, f"{name} needs a list of values, such as [1, 2, 4]")
    twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
    if twice is not None:
        raise BadInput(place, f"{name} names {twice!r} twice")
    return Axis(name, tuple(values))


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Every combination of values, the last axis changing first. Raises BadInput for a name that stands twice, and for more than any machine can answer."""
    names = [axis.name for axis in axes]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise BadInput("--over", f"{name} is an axis twice; give all its values at once")
    count = prod(len(axis.values) for axis in axes)
    if count > MOST_CASES:
        raise BadInput("--over", f"{count:,} combinations are more than {MOST_CASES:,}; leave values out")
    return (dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in axes)))


def in_full(axis: Axis, purposes: Sequence[str]) -> Axis:
    """The axis with the whole key path of a job: `micro_batch` -> `train.micro_batch`. Raises BadInput with the nearest names."""
    name = axis.name.replace("-", "_")
    if name.startswith(OPEN) or name in _paths():
        return axis._replace(name=name)
    spoken = {f"{purpose}.{words[name]}" for purpose in purposes if name in (words := SPOKEN[purpose])}
    sections = (*(f"{purpose}." for purpose in purposes), "hardware.", "env.")
    direct = {path for path in _paths() if path.endswith(f".{name}") and path.count(".") == name.count(".") + 1 and path.startswith(sections)}
    found = sorted(spoken or direct or {path for path in _paths() if path.endswith(f".{name}") and path.startswith(sections)})
    if len(found) == 1:
        return axis._replace(name=found[0])
    if found:
        raise BadInput("--over", f"{axis.name} could be {' or '.join(found)}; write the whole path")
    known = [path.partition(".")[2] if path.startswith(sections[:-2]) else path for path in _paths() if path.startswith((*sections, "model"))]
    raise BadInput("--over", f"a job has no setting {axis.name!r}{did_you_mean(axis.name, known)}")


@cache
def _paths() -> tuple[str, ...]:
    return tuple(dict.fromkeys(_paths_of("", inspect.type_info(Job))))


def _paths_of(path: str, form: inspect.Type) -> Iterator[str]:
    if path:
        yield path
    for member in form.types if isinstance(form, inspect.UnionType) else (form,):
        if isinstance(member, inspect.StructType):
            for field in member.fields:
                yield from _paths_of(f"{path}.{field.encode_name}" if path else field.encode_name, field.type)
