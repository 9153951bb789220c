"""The page of the job file's keys."""

from __future__ import annotations

import msgspec
from msgspec import inspect as form

from everybyte.job import Job
from everybyte.job.described import NO_REAL_LIMIT, alternatives, field_docs, fields_of, structs
from everybyte.job.shorthand import HEAD_KEY
from writers.markdown import docstring, page, table

INTRODUCTION = """\
YAML, JSON and TOML are read alike. A key that is not listed here is refused with the nearest known one. A key that is left out is not its default:
the framework's default is filled in, and the answer says so."""
SHORT_FORMS = "One word stands for a part of the job with that word as its head key: `optimizer: adamw` is `optimizer: {name: adamw}`."


def job_page() -> str:
    """The keys of a job file, section by section, as the structs declare them."""
    docs = field_docs()
    short = [f"Head keys of `{part}`: " + ", ".join(f"`{key}` → `{head}`" for key, head in heads.items()) + "." for part, heads in HEAD_KEY.items()]
    return page("The job file", INTRODUCTION, "\n".join([SHORT_FORMS, *short]), *(section(path, cls, docs) for path, cls in structs("", Job)))


def section(path: str, cls: type[msgspec.Struct], docs: dict[str, dict[str, str]]) -> str:
    """One table: key, values, meaning."""
    rows = [(f"`{field.name}`", values(field.type), docs[cls.__name__].get(field.name, "")) for field in fields_of(cls)]
    return "\n\n".join([f"## {path or 'Top level'}", docstring(cls), table(("key", "values", "meaning"), rows)])


def values(kind: form.Type) -> str:
    """What may be written for a type."""
    return " or ".join(dict.fromkeys(one_value(member) for member in alternatives(kind)))


def one_value(kind: form.Type) -> str:
    """What may be written for a type that is no union."""
    match kind:
        case form.LiteralType(values=words):
            return ", ".join(f"`{word}`" for word in words)
        case form.IntType() | form.FloatType():
            name = "whole number" if isinstance(kind, form.IntType) else "number"
            low = [f"{sign} {bound:g}" for sign, bound in (("≥", kind.ge), (">", kind.gt)) if bound is not None]
            high = [f"≤ {kind.le:g}"] if kind.le is not None and kind.le < NO_REAL_LIMIT else []
            return " ".join([name, *low, *high])
        case form.StrType():
            return "text"
        case form.BoolType():
            return "`true`, `false`"
        case form.StructType():
            return "a mapping (below)"
        case form.VarTupleType(item_type=item) | form.ListType(item_type=item):
            return f"a list of {values(item)}"
        case form.DictType() | form.AnyType():
            return "a mapping"
        case _:
            return "any"
