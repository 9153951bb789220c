"""Finds what is wrong with a mapping that is not of the form, and says it in one sentence: place, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.job.plain import join


def find_fault(raw: Any, form: type) -> BadInput | None:
    """The first fault of `raw` as a `form`, in the order of the keys in `raw`; None if there is none."""
    return _fault("", raw, inspect.type_info(form))


def _fault(path: str, value: Any, form: inspect.Type) -> BadInput | None:
    if isinstance(form, inspect.UnionType):
        return _fault_of_union(path, value, form)
    if isinstance(form, inspect.StructType) and isinstance(value, dict):
        return _fault_of_struct(path, value, form)
    if isinstance(form, inspect.VarTupleType) and isinstance(value, list | tuple):
        return _first(_fault(f"{path}[{i}]", item, form.item_type) for i, item in enumerate(value))
    if isinstance(form, inspect.DictType) and isinstance(value, dict):
        return _first(_fault(join(path, key), item, form.value_type) for key, item in value.items())
    if _accepts(form, value):
        return None
    return BadInput(path, f"expected {describe(form)}, got {_shown(value)}{_hint(form, value)}")


def _first(faults: Any) -> BadInput | None:
    return next((fault for fault in faults if fault), None)


def _fault_of_struct(path: str, value: dict[str, Any], form: inspect.StructType) -> BadInput | None:
    fields = {field.encode_name: field for field in form.fields}
    for key, item in value.items():
        if key not in fields:
            hint = _deeper(path, key, form) or did_you_mean(key, fields) or f" (known: {', '.join(fields)})"
            return BadInput(join(path, key), f"unknown key{hint}")
        fault = _fault(join(path, key), item, fields[key].type)
        if fault:
            return fault
    missing = next((name for name, field in fields.items() if field.required and name not in value), None)
    return BadInput(join(path, missing), f"missing; expected {describe(fields[missing].type)}") if missing else None


def _deeper(path: str, key: str, form: inspect.StructType) -> str:
    """Where in the mappings inside `form` a key of that name has its place; empty if nowhere."""
    places = [place for place in _paths(path, form) if place.endswith(f".{key}")]
    return f"; its place is {' or '.join(places[:3])}" if places else ""


def _paths(path: str, form: inspect.Type) -> Iterator[str]:
    """Every key of a form and of the mappings inside it."""
    for member in form.types if isinstance(form, inspect.UnionType) else (form,):
        if isinstance(member, inspect.StructType):
            for field in member.fields:
                here = join(path, field.encode_name)
                yield here
                yield from _paths(here, field.type)


def _fault_of_union(path: str, value: Any, form: inspect.UnionType) -> BadInput | None:
    """The fault of the member that the value comes closest to: the one of the same kind, if there is one."""
    kinds = (
        (dict, (inspect.StructType, inspect.DictType)),
        (list, (inspect.VarTupleType,)),
        (tuple, (inspect.VarTupleType,)),
    )
    for kind, members in kinds:
        same = [member for member in form.types if isinstance(value, kind) and isinstance(member, members)]
        if same:
            return _fault(path, value, same[0])
    if any(_accepts(member, value) for member in form.types):
        return None
    return BadInput(path, f"expected {describe(form)}, got {_shown(value)}{_hint(form, value)}")


def _accepts(form: inspect.Type, value: Any) -> bool:
    """Whether a value that is neither mapping nor list is of `form`."""
    match form:
        case inspect.AnyType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType():
            return any(type(value) is type(word) and value == word for word in form.values)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(form, value)
        case inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool) and _within(form, value)
    return False


def _within(form: inspect.IntType | inspect.FloatType, value: float) -> bool:
    low_ok = (form.ge is None or value >= form.ge) and (form.gt is None or value > form.gt)
    return low_ok and (form.le is None or value <= form.le)


def describe(form: inspect.Type) -> str:
    """What a form accepts, in words."""
    match form:
        case inspect.UnionType():
            named = dict.fromkeys(describe(member) for member in form.types if not isinstance(member, inspect.NoneType))
            return " or ".join(named)
        case inspect.LiteralType():
            return "one of " + ", ".join(str(word) for word in form.values) if len(form.values) > 1 else str(form.values[0])
        case inspect.IntType():
            return "a whole number" + _limits(form)
        case inspect.FloatType():
            return "a number" + _limits(form)
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType():
            return f"a list of {_plural(form.item_type)}"
        case inspect.StructType():
            return "a mapping with " + ", ".join(field.encode_name for field in form.fields)
    return "a mapping"


def _plural(form: inspect.Type) -> str:
    match form:
        case inspect.StrType():
            return "names"
        case inspect.IntType():
            return "whole numbers" + _limits(form)
        case inspect.FloatType():
            return "numbers" + _limits(form)
    return describe(form).removeprefix("one of ")


def _limits(form: inspect.IntType | inspect.FloatType) -> str:
    low, low_word = (form.gt, "above") if form.gt is not None else (form.ge, "from")
    if low is None:
        return ""
    high = "" if form.le is None else f" {'up ' if low_word == 'above' else ''}to {_number(form.le)}"
    return f" {low_word} {_number(low)}{high}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else repr(value[:77] + "...")
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return {None: "nothing", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)


def _hint(form: inspect.Type, value: Any) -> str:
    """The way out that a slip of the pen suggests."""
    members = form.types if isinstance(form, inspect.UnionType) else (form,)
    if not isinstance(value, str):
        text_wanted = any(isinstance(member, inspect.StrType) for member in members)
        return "; put it in quotes" if text_wanted and isinstance(value, int | float | bool) else ""
    words = [str(word) for member in members if isinstance(member, inspect.LiteralType) for word in member.values]
    if words:
        return did_you_mean(value, words)
    number_wanted = any(isinstance(member, inspect.IntType | inspect.FloatType) for member in members)
    return "; write the number without quotes" if number_wanted and value.strip().lstrip("+-").isdigit() else ""
