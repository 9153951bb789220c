"""The settings of PyTorch's caching allocator: the text of PYTORCH_CUDA_ALLOC_CONF as a value.

Names, limits and meanings are those of c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp (2.13).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from everybyte.basics.errors import BadInput, Unsupported, did_you_mean
from everybyte.basics.record import Record
from everybyte.basics.units import MiB

SEGMENT = 20 * MiB
"""kLargeBuffer: what requests between 1 and 10 MiB are served from."""
INTERVALS = 16
"""Rounding can differ between sizes from 1 MiB, 2 MiB, ... 32 GiB on."""


class AllocatorSettings(Record, frozen=True):
    """What changes which bytes are reserved."""

    expandable_segments: bool = False
    max_split_bytes: int = 0
    """Blocks of this size or more are handed out whole and never split; 0: no such size."""
    max_rounding_bytes: int = SEGMENT
    """How much larger than a request such a whole block may be, less one byte; where it is not stated, a large segment."""
    roundup_divisions: tuple[int, ...] = ()
    """Steps between two powers of two to which sizes are rounded, for sizes from 1 MiB (and below), 2 MiB, 4 MiB, ... on; empty: none."""
    collect_above: float = 0.0
    """The part of the allowed memory above which cached blocks that were not used for long are given back; 0: never."""
    memory_fraction: float = 1.0
    """The part of the device's memory that is allowed."""
    segment_bytes: int = SEGMENT

    def allowed_bytes(self, total: int) -> int:
        """What the process may reserve on a device of `total` bytes; 0: all of it."""
        return int(self.memory_fraction * total) if self.memory_fraction < 1 else 0


DEFAULT = AllocatorSettings()
ENDLESS = 1 << 56
"""Bytes that no device has."""


def read_alloc_conf(text: str, key: str = "env.alloc_conf", *, expandable: bool = False) -> AllocatorSettings:
    """The settings that `text` asks for; `expandable` where it does not say. Refusals name `key`, the option and what is known instead."""
    found: dict[str, Any] = {}
    for name, value in _options(text, key):
        field, read = MODELLED.get(name, ("", None))
        if read is not None:
            found[field] = read(value, f"{key}: {name}")
        elif name == "backend":
            _check_backend(value, f"{key}: {name}")
        elif name not in WITHOUT_EFFECT:
            raise BadInput(key, f"{name!r} is no option of PyTorch's allocator{did_you_mean(name, KNOWN)}")
    least = found.get("segment_bytes", SEGMENT)
    for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
        size = found.get(MODELLED[name][0], least)
        if size < least:
            raise BadInput(f"{key}: {name}", f"{size // MiB} is less than {least // MiB}, the size of a large segment")
    return AllocatorSettings(**{"expandable_segments": expandable, "max_rounding_bytes": least} | found)


def _options(text: str, key: str) -> list[tuple[str, str]]:
    """(option, value) of `a:1,b:[2:3,>:4]`; blanks mean nothing."""
    dense = "".join(text.split()).rstrip(",")
    if not dense:
        return []
    found = re.findall(r"([^,:\[\]]*):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)", dense)
    if "".join(f"{name}:{value}," for name, value in found) != dense + ",":
        raise BadInput(key, f"{text!r} is not of the form option:value,option:value; lists are written [256:1,512:2,>:4]")
    return found


def _flag(value: str, key: str) -> bool:
    if value not in ("True", "False"):
        raise BadInput(key, f"{value!r} is neither True nor False")
    return value == "True"


def _number(value: str, key: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise BadInput(key, f"{value!r} is not a whole number")
    return int(value)


def _mib(value: str, key: str) -> int:
    return _number(value, key) * MiB


def _segment(value: str, key: str) -> int:
    size = _mib(value, key)
    if size <= 10 * MiB:
        raise BadInput(key, f"{value} is not above 10, from where on requests get segments of their own")
    return size


def _part(value: str, key: str, *, ends: bool = False) -> float:
    """A number between 0 and 1; `ends`: these too."""
    try:
        number = float(value)
    except ValueError:
        raise BadInput(key, f"{value!r} is not a number") from None
    if not (0 <= number <= 1 if ends else 0 < number < 1):
        raise BadInput(key, f"{value} is not {'from 0 to 1' if ends else 'between 0 and 1'}")
    return number


def _divisions(value: str, key: str) -> tuple[int, ...]:
    """`8` for all sizes, or `[256:2,512:4,>:8]`: below 512 MiB two steps between powers of two, below 1 GiB four, above eight. What the list leaves
    between two of its sizes is not rounded; neither is what lies below 2 MiB if it begins with `>`."""
    if not value.startswith("["):
        return (_steps(value, key, least=1),) * INTERVALS
    found, last, below = [0] * INTERVALS, 0, True
    for entry in filter(None, value[1:-1].split(",")):
        start, _, steps = entry.partition(":")
        number = _steps(steps, key)
        if start == ">":
            found[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(_power(start, key).bit_length() - 1, INTERVALS - 1)
        found[0 if below else last : last + 1] = [number] * (last + 1 if below else 1)
        below = False
    return tuple(found)


def _steps(value: str, key: str, least: int = 0) -> int:
    """A power of two, or 0 for no rounding where that is allowed."""
    return 0 if least == 0 and value == "0" else _power(value, key)


def _power(value: str, key: str) -> int:
    number = _number(value, key)
    if number.bit_count() != 1:
        raise BadInput(key, f"{value!r} is not a power of two")
    return number


def _check_backend(value: str, key: str) -> None:
    if value in ("cudaMallocAsync", "hipMallocAsync"):
        raise Unsupported(key, f"{value}'s pools belong to the driver and are not modelled; without it the answer is that of PyTorch's own allocator")
    if value != "native":
        raise BadInput(key, f"{value!r} is not known; native is")


def _fraction(value: str, key: str) -> float:
    return _part(value, key, ends=True)


MODELLED: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_bytes", _mib),
    "max_non_split_rounding_mb": ("max_rounding_bytes", _mib),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "garbage_collection_threshold": ("collect_above", _part),
    "per_process_memory_fraction": ("memory_fraction", _fraction),
    "large_segment_size_mb": ("segment_bytes", _segment),
}
"""Option -> field of the settings, and who reads its value."""
WITHOUT_EFFECT = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_free_catch_all",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
    }
)
"""Options of locks, host memory and errors: no byte of the device depends on them."""
KNOWN = (*MODELLED, "backend", *sorted(WITHOUT_EFFECT))
