"""Sizes. Bytes are int everywhere; GiB is 2^30, GB is 10^9, and the letters always mean it."""

from __future__ import annotations

import re

from everybyte.basics.errors import BadInput

KiB = 2**10
MiB = 2**20
GiB = 2**30
TiB = 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

UNITS: dict[str, int] = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
_BY_FOLDED = {name.casefold(): size for name, size in UNITS.items()}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for whole numbers."""
    return -(-a // b)


def round_up(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return ceil_div(n, multiple) * multiple


def show_bytes(n: int, unit: str | None = None) -> str:
    """`21.4 GiB`: n bytes in `unit`, or in the largest binary unit that keeps the number at 1 or above.

    A size that is whole in its unit prints without decimals only for plain bytes.
    """
    if unit is None:
        unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if abs(n) >= UNITS[u]), "B")
    if unit == "B":
        return f"{n:,} B"
    value = n / UNITS[unit]
    return f"{value:,.2f} {unit}" if abs(value) < 100 else f"{value:,.1f} {unit}"


def parse_size(text: str) -> int:
    """Bytes of `40 GiB`, `24GB` or `512 B`. Raises BadInput for anything else."""
    match = _SIZE.fullmatch(text)
    unit = _BY_FOLDED.get(match[2].casefold()) if match else None
    if match is None or unit is None:
        raise BadInput("size", f"{text!r} is not a size; write a number with B, MiB, GiB or GB, such as 80 GiB")
    return int(float(match[1]) * unit)
