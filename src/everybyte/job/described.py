"""The settings of a job as data: key path, kind, choices, bounds, and the meaning that stands under each field of the form.

The pages of the reference and the web page's list of settings are written from this, so that they cannot say anything else than the form does.
"""

from __future__ import annotations

import ast
import inspect as source
from functools import cache
from types import ModuleType
from typing import Literal

import msgspec
from msgspec import inspect

from everybyte.job import form as job_form
from everybyte.job.form import Job
from everybyte.job.words import KV_FORMATS, WEIGHT_FORMATS

Kind = Literal["whole", "number", "text", "flag", "choice", "list", "mapping"]
Word = str | int

NO_REAL_LIMIT = 10**9
"""Upper bounds from here on only catch slips of the pen and are not told."""

EVERYDAY = frozenset(
    {
        "name",
        "model",
        "hardware.gpu",
        "hardware.gpus",
        "train.framework",
        "train.micro_batch",
        "train.seq_len",
        "train.grad_accum",
        "train.precision",
        "train.optimizer.name",
        "train.adapter.kind",
        "train.adapter.rank",
        "train.adapter.targets",
        "train.quantization.format",
        "train.sharding",
        "train.mesh.tp",
        "train.mesh.pp",
        "train.mesh.cp",
        "train.mesh.ep",
        "train.recompute.policy",
        "train.attention",
        "serve.engine",
        "serve.weights.format",
        "serve.kv_dtype.k",
        "serve.kv_dtype.v",
        "serve.context",
        "serve.sequences",
        "serve.memory_fraction",
        "serve.mesh.tp",
        "serve.mesh.pp",
        "serve.gpu_layers",
    }
)
"""What most jobs state; every other setting is `wide`."""

SUGGESTED: dict[str, tuple[str, ...]] = {"serve.weights.format": WEIGHT_FORMATS, "serve.kv_dtype.k": KV_FORMATS, "serve.kv_dtype.v": KV_FORMATS}
"""Texts that have usual words, though others are accepted too."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the job file. `values` are all words of a choice, of a text the usual ones; bounds that only catch slips of the pen are None."""

    key: str
    section: str
    kind: Kind
    values: tuple[Word, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    meaning: str = ""
    wide: bool = True


@cache
def settings() -> tuple[Described, ...]:
    """Every setting that holds a value of its own, in the order of the file; parts of the job are represented by the settings inside them."""
    docs = field_docs()
    found = []
    for path, cls in structs("", Job):
        for field in fields_of(cls):
            plain = [kind for kind in alternatives(field.type) if not isinstance(kind, inspect.StructType)]
            if plain:
                key = f"{path}.{field.name}".lstrip(".")
                found.append(_described(key, plain, docs[cls.__name__].get(field.name, "")))
    return tuple(found)


def _described(key: str, kinds: list[inspect.Type], meaning: str) -> Described:
    """The setting as its usual kind has it: a list where one is allowed beside a single word, else the first."""
    usual = next((kind for kind in kinds if isinstance(kind, inspect.VarTupleType)), kinds[0]) if _words(kinds) else kinds[0]
    low, high = _bounds(usual)
    return Described(
        key=key,
        section=key.rpartition(".")[0],
        kind=_kind(usual),
        values=_words(kinds) or SUGGESTED.get(key, ()),
        minimum=low,
        maximum=high,
        meaning=meaning,
        wide=key not in EVERYDAY,
    )


def _kind(form: inspect.Type) -> Kind:
    match form:
        case inspect.LiteralType():
            return "choice"
        case inspect.IntType():
            return "whole"
        case inspect.FloatType():
            return "number"
        case inspect.BoolType():
            return "flag"
        case inspect.VarTupleType():
            return "list"
        case inspect.StrType():
            return "text"
    return "mapping"


def _words(kinds: list[inspect.Type]) -> tuple[Word, ...]:
    """The words that are allowed alone or in a list."""
    inside = [kind.item_type if isinstance(kind, inspect.VarTupleType) else kind for kind in kinds]
    return tuple(word for kind in inside if isinstance(kind, inspect.LiteralType) for word in kind.values if isinstance(word, str | int))


def _bounds(form: inspect.Type) -> tuple[float | None, float | None]:
    if not isinstance(form, inspect.IntType | inspect.FloatType):
        return None, None
    return (form.ge if form.ge is not None else form.gt), (form.le if form.le is not None and form.le < NO_REAL_LIMIT else None)


def structs(path: str, cls: type[msgspec.Struct]) -> list[tuple[str, type[msgspec.Struct]]]:
    """The struct and all structs below it with their key paths, in the order of the file."""
    found = [(path, cls)]
    for field in fields_of(cls):
        for kind in alternatives(field.type):
            if isinstance(kind, inspect.StructType):
                found += structs(f"{path}.{field.name}".lstrip("."), kind.cls)
    return found


def fields_of(cls: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The fields of a struct."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return info.fields


def alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """The members of a union, without None; a type that is no union is its own member."""
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [member for member in members if not isinstance(member, inspect.NoneType)]


@cache
def field_docs(module: ModuleType = job_form) -> dict[str, dict[str, str]]:
    """The docstring under each field of the module's classes, those of the job's structs if none is named, by class and field."""
    tree = ast.parse(source.getsource(module))
    found: dict[str, dict[str, str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found[cls.name] = {}
        for field, doc in zip(cls.body, cls.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                found[cls.name][field.target.id] = " ".join(str(doc.value.value).split())
    return found
