"""Keys of a job that change nothing in its answer: found by leaving each of them out, so that none is ignored in silence.

What a data table knows of such a key (`catalog/data/idle_keys.csv`) is said with it: that the engine has no such setting, that its effect is not worked
out, or why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import USER
from everybyte.catalog.extra_keys import NO_EFFECT, NOT_COUNTED
from everybyte.catalog.names import read_table
from everybyte.job import Job
from everybyte.job.plain import join
from everybyte.rules.accounting.account import Account, Rank

FOREIGN = "foreign"
ALWAYS = {
    "train": frozenset({"framework", "version", "micro_batch", "seq_len", "tokens", "precision"}),
    "serve": frozenset({"engine", "version", "weights", "load"}),
}
"""Keys that every engine reads, and those that speed alone depends on."""
ON = frozenset({"cuda_graphs", "multimodal", "zero_grad_set_to_none"})
"""Keys whose True says what is so anyway."""
NEUTRAL = (False, 0, 0.0, 1, "none", "auto", ())
"""Values that say what is so anyway."""


class Leaf(NamedTuple):
    """A given value, and the job without it."""

    path: str
    value: Any
    without: Job


class Known(NamedTuple):
    """What the table says of a key."""

    effect: str
    reason: str


def tell_idle_keys(job: Job, found: Account, account_of: Callable[[Job], Account]) -> None:
    """Says of every given key without effect that it has none."""
    idle = [leaf.path for leaf in _idle(job, found, account_of)]
    if not idle:
        return
    engine = _engine(job)
    known = {path: known_of(path, engine) for path in idle}
    for path, row in known.items():
        if row is not None and row.effect == NO_EFFECT:
            found.choices.assume(f"{path} changes nothing here: {row.reason}")
        elif row is not None and row.effect == FOREIGN:
            found.choices.warn(f"{path} is not read: {engine} has no such setting ({row.reason})")
    others = [path for path, row in known.items() if row is not None and row.effect == NOT_COUNTED]
    if others:
        found.choices.warn(f"known settings whose effect on memory is not worked out, so not counted: {', '.join(others)}")
    others = [path for path, row in known.items() if row is None]
    if others:
        found.choices.warn(f"given without effect: {', '.join(others)}; {engine} does not have that, or not together with the other settings")


def _idle(job: Job, found: Account, account_of: Callable[[Job], Account]) -> Iterator[Leaf]:
    """What can be left out without a difference."""
    notes = {setting.key: setting.value for setting in found.choices.settings}
    told = {setting.key for setting in found.choices.settings if setting.origin.startswith(f"{USER};")}
    for leaf in leaves(job):
        if leaf.path in told:
            continue
        try:
            other = account_of(leaf.without)
        except BadInput:
            continue
        if _same(found, other) and not _is_default(leaf, notes, other):
            yield leaf


def leaves(job: Job) -> Iterator[Leaf]:
    """The given values of `train` or `serve` that are worth leaving out."""
    part = "train" if job.train is not None else "serve"
    form: Any = getattr(job, part)
    for path, value, without in _below(form, part, ALWAYS[part]):
        yield Leaf(path, value, msgspec.structs.replace(job, **{part: without}))


def _below(form: Any, place: str, skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any, Any]]:
    """(path, value, form without it) of everything that is given in a form, its own forms entered."""
    for name in form.__struct_fields__:
        value = getattr(form, name)
        if name in skip or value is None:
            continue
        path = f"{place}.{name}"
        if isinstance(value, msgspec.Struct):
            for inner, given, rest in _below(value, path):
                yield inner, given, msgspec.structs.replace(form, **{name: rest})
        elif isinstance(value, dict):
            for key, given in value.items():
                if given is not None and given != "auto":
                    yield join(path, key), given, msgspec.structs.replace(form, **{name: {k: v for k, v in value.items() if k != key}})
        elif name == "kernels":
            for item in value:
                yield f"{path}.{item}", item, msgspec.structs.replace(form, **{name: tuple(other for other in value if other != item)})
        elif name in _optional(form.__class__) and not _is_neutral(name, value):
            yield path, value, msgspec.structs.replace(form, **{name: None})


@cache
def _optional(form: type[msgspec.Struct]) -> frozenset[str]:
    """Keys that need not be given."""
    return frozenset(field.name for field in msgspec.structs.fields(form) if field.default is None)


def _is_neutral(name: str, value: Any) -> bool:
    return value is True if name in ON else any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL)


def _same(found: Account, other: Account) -> bool:
    """Whether two accounts have the same figures and say the same."""
    return _said(found) == _said(other) and len(found.ranks) == len(other.ranks) and all(map(_same_rank, found.ranks, other.ranks))


def _said(account: Account) -> tuple[Any, ...]:
    """What an account says beside its ranks."""
    choices = account.choices
    return account.figures, account.refusals, account.capacity, account.trainable_params, choices.assumptions, choices.warnings


def _same_rank(one: Rank, other: Rank) -> bool:
    return one.outside == other.outside and one.host == other.host and (one.bill == other.bill or one.bill.totals() == other.bill.totals())


def _is_default(leaf: Leaf, notes: dict[str, Any], other: Account) -> bool:
    """Whether the job states what would be so without it, which the settings of the answer tell."""
    value = next((setting.value for setting in other.choices.settings if setting.key == leaf.path), None)
    return value is not None and value in (leaf.value, notes.get(leaf.path))


def _engine(job: Job) -> str:
    """Framework or engine by its word."""
    if job.train is not None:
        return job.train.framework or "pytorch"
    return (job.serve.engine if job.serve is not None else None) or "transformers"


@cache
def _table() -> dict[tuple[str, str], Known]:
    """(key, engine or `*`) -> what is known."""
    found = {}
    for key, engines, effect, reason in read_table("idle_keys.csv")[1:]:
        for engine in engines.split():
            found[key, engine] = Known(effect, reason)
    return found


def known_of(path: str, engine: str) -> Known | None:
    """What the table says of a key, or of the form that it is in."""
    table = _table()
    *above, _ = path.split(".")
    places = (path, ".".join(above))
    return next((known for place in places for name in (engine, "*") if (known := table.get((place, name))) is not None), None)
