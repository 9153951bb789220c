"""Keys of a job that change nothing in its answer: found by leaving each of them out, so that none is ignored in silence.

A key of which another value would make a difference is named among the assumptions. One of which none would is warned of, with what a data table knows
of it (`catalog/data/idle_keys.csv`): that the engine has no such setting, that its effect is not worked out, or why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import USER
from everybyte.catalog.extra_keys import NO_EFFECT, NOT_COUNTED
from everybyte.catalog.names import read_table
from everybyte.job import Job
from everybyte.job.form import KvDType
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
WHOLE = frozenset({"kv_dtype"})
"""Forms of several words that say one thing."""
NEUTRAL = (False, 0, 0.0, 1, "none", "auto", ())
"""Values that say what is so anyway."""


NOBODYS = "nobody's word"
"""A value that is refused wherever the key is read against a list of words."""


class Leaf(NamedTuple):
    """A given value, and the job with another in its place."""

    path: str
    value: Any
    others: tuple[Any, ...]
    """Values of its type that could stand there."""
    put: Callable[[Any], Job]
    """The job with a value in its place; None leaves it out."""


class Known(NamedTuple):
    """What the table says of a key."""

    effect: str
    reason: str


def tell_idle_keys(job: Job, found: Account, account_of: Callable[[Job], Account]) -> None:
    """Says of every given key without effect that it has none."""
    idle = list(_idle(job, found, account_of))
    if not idle:
        return
    engine, choices = _engine(job), found.choices
    known = {leaf.path: known_of(leaf.path, engine) for leaf in idle}
    for path, row in known.items():
        if row is not None and row.effect == NO_EFFECT:
            choices.assume(f"{path} changes nothing here: {row.reason}")
    rest = [leaf for leaf in idle if (row := known[leaf.path]) is None or row.effect != NO_EFFECT]
    heard = [leaf.path for leaf in rest if _is_heard(leaf, found, account_of)]
    if heard:
        choices.assume(f"the answer is the same without {', '.join(heard)}")
    for path, row in known.items():
        if row is not None and row.effect == FOREIGN and path not in heard:
            choices.warn(f"{path} is not read: {engine} has no such setting ({row.reason})")
    unheard = [leaf.path for leaf in rest if leaf.path not in heard]
    others = [path for path in unheard if (row := known[path]) is not None and row.effect == NOT_COUNTED]
    if others:
        choices.warn(f"known settings whose effect on memory is not worked out, so not counted: {', '.join(others)}")
    others = [path for path in unheard if known[path] is None]
    if others:
        choices.warn(f"given without effect: {', '.join(others)}; {engine} does not have that, or not together with the other settings")


def _idle(job: Job, found: Account, account_of: Callable[[Job], Account]) -> Iterator[Leaf]:
    """What can be left out without a difference, where it is not the default that the settings of the answer tell."""
    told = {setting.key for setting in found.choices.settings if setting.origin.startswith(f"{USER};")}
    for leaf in leaves(job):
        if leaf.path in told:
            continue
        try:
            other = account_of(leaf.put(None))
        except BadInput:
            continue
        if _same(found, other) and not _is_default(leaf, other):
            yield leaf


def _is_heard(leaf: Leaf, found: Account, account_of: Callable[[Job], Account]) -> bool:
    """Whether another value would make a difference, or be refused."""
    for value in leaf.others:
        try:
            if not _same(found, account_of(leaf.put(value))):
                return True
        except BadInput:
            return True
    return False


def leaves(job: Job) -> Iterator[Leaf]:
    """The given values of `train` or `serve` that are worth leaving out."""
    part = "train" if job.train is not None else "serve"
    return _below(getattr(job, part), part, lambda form: msgspec.structs.replace(job, **{part: form}), ALWAYS[part])


def _below(form: Any, place: str, put: Callable[[Any], Job], skip: frozenset[str] = frozenset()) -> Iterator[Leaf]:
    """Everything that is given in a form, its own forms entered."""
    for name in form.__struct_fields__:
        value = getattr(form, name)
        if name in skip or value is None:
            continue

        def inside(other: Any, name: str = name) -> Job:
            return put(msgspec.structs.replace(form, **{name: other}))

        path = f"{place}.{name}"
        if isinstance(value, msgspec.Struct) and name not in WHOLE:
            yield from _below(value, path, inside)
        elif isinstance(value, dict):
            yield from _keys(value, path, inside)
        elif name == "kernels":
            for item in value:
                rest = tuple(other for other in value if other != item)
                yield Leaf(f"{path}.{item}", item, (), lambda _, rest=rest, inside=inside: inside(rest))  # type: ignore[misc]
        elif name in _optional(form.__class__) and not _is_neutral(name, value):
            yield Leaf(path, value, _others(value, _words(form.__class__).get(name, ())), inside)


def _keys(given: dict[str, Any], place: str, put: Callable[[Any], Job]) -> Iterator[Leaf]:
    """The keys of `extra`."""
    for key, value in given.items():
        if value is None or value == "auto":
            continue

        def inside(other: Any, key: str = key) -> Job:
            return put({**given, key: other} if other is not None else {name: kept for name, kept in given.items() if name != key})

        yield Leaf(join(place, key), value, _others(value, ()), inside)


def _others(value: Any, words: tuple[str, ...]) -> tuple[Any, ...]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (2 * value, value / 2 if isinstance(value, float) else max(value // 2, 1))
    if isinstance(value, KvDType):
        return (KvDType(k=NOBODYS, v=NOBODYS),)
    return (*(word for word in words if word != value), *((NOBODYS,) if isinstance(value, str) else ()))


@cache
def _optional(form: type) -> frozenset[str]:
    """Keys that need not be given."""
    return frozenset(field.name for field in msgspec.structs.fields(form) if field.default is None)


@cache
def _words(form: type) -> dict[str, tuple[str, ...]]:
    """Keys with a closed list of words, and the list."""
    found = {}
    for name, kind in get_type_hints(form).items():
        lists = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
        if lists:
            found[name] = tuple(word for part in lists for word in get_args(part))
    return found


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


def _is_default(leaf: Leaf, other: Account) -> bool:
    """Whether the settings of the answer without it tell the same value."""
    return any(setting.key == leaf.path and setting.value == leaf.value for setting in other.choices.settings)


def _engine(job: Job) -> str:
    """Framework or engine by its word."""
    if job.train is not None:
        return job.train.framework or "pytorch"
    return (job.serve.engine if job.serve is not None else None) or "transformers"


@cache
def _table() -> dict[tuple[str, str], Known]:
    """(key, engine or `*`) -> what is known."""
    return {(key, engine): Known(effect, reason) for key, engines, effect, reason in read_table("idle_keys.csv")[1:] for engine in engines.split()}


def known_of(path: str, engine: str) -> Known | None:
    """What the table says of a key, or of the form that it is in."""
    table = _table()
    *above, _ = path.split(".")
    places = (path.replace("-", "_"), ".".join(above))
    return next((known for place in places for name in (engine, "*") if (known := table.get((place, name))) is not None), None)
