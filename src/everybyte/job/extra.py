"""Keys of `extra`: settings that only one framework has, read as typed sections.

A section is a struct of the keys that one part of the code reads. A key is written as its framework writes it: hyphens, spaces and underscores mean the
same, leading hyphens are dropped, and environment variables stay as they are. Which keys a framework has at all is checked in `rules.accounting.known_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job.plain import join


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that one part of the code reads. None, or a field's default, stands for a key that is not given."""


S = TypeVar("S", bound=Section)


def canonical(key: str) -> str:
    """`--moe-grouped-gemm` -> `moe_grouped_gemm`; `NVTE_FUSED_ATTN` stays."""
    return key if key.isupper() else key.lstrip("-").replace("-", "_").replace(" ", "_").casefold()


@cache
def keys_of(kind: type[Section]) -> frozenset[str]:
    """The keys of a section, in their canonical form."""
    return frozenset(kind.__struct_encode_fields__)


@cache
def _may_be_null(kind: type[Section]) -> frozenset[str]:
    """Keys for which null says something else than their absence: those whose default is UNSET."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind) if field.default is msgspec.UNSET)


def section(extra: Mapping[str, Any] | None, kind: type[S], place: str = "train.extra") -> S:
    """What `extra` says of the keys of a section; null counts as not given. Raises BadInput with the key as it is written."""
    if not extra:
        return kind()
    written = {canonical(key): key for key in extra}
    found = {name: extra[key] for name, key in written.items() if name in keys_of(kind) and (extra[key] is not None or name in _may_be_null(kind))}
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise _fault(found, kind, written, place) or BadInput(place, str(error)) from None


def _fault(found: dict[str, Any], kind: type[Section], written: dict[str, str], place: str) -> BadInput | None:
    from everybyte.job.fault import find_fault  # only where something is wrong

    fault = find_fault(found, kind)
    if fault is None:
        return None
    name = next((name for name in found if fault.path == name or fault.path.startswith((f"{name}.", f"{name}["))), fault.path)
    return BadInput(join(place, written.get(name, name)) + fault.path[len(name) :], fault.message)
