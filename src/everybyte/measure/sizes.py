"""Sizes as tools print them. torch, vLLM, SGLang, DeepSpeed, Megatron, TensorRT-LLM and LMDeploy mean 2^10 by KB, 2^20 by MB, 2^30 by GB; mlx powers of ten."""

from __future__ import annotations

import re

BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SIZE = r"-?[\d.,]*\d\s?(?:bytes|Bytes|[KMGTkmgt]i?[Bb]|B\b|[KMGT]\b)"
"""What a size looks like in a log: `1.63 GiB`, `0 bytes`, `1900,00 MiB`, `20.00G`."""
UNKNOWN_ABOVE = 1 << 62
"""2^64 bytes and 17179869184.00 GiB are what a driver says that does not know."""
_PARTS = re.compile(r"(-?[\d.,]*\d)\s?([A-Za-z]*)")


def number(text: str) -> float:
    """A number with separators of thousands, or with a decimal comma: `1,234.5`, `1900,00`, `103,760`."""
    if "," in text and "." not in text and re.fullmatch(r"-?\d+,\d{1,2}", text):
        return float(text.replace(",", "."))
    return float(text.replace(",", ""))


def size(text: str, *, decimal: bool = False) -> int | None:
    """Bytes of a printed size; None where the number says that nobody knows, or is none. Raises ValueError for what is no size."""
    found = _PARTS.match(text.strip())
    if found is None:
        raise ValueError(text)
    unit = found.group(2)[:1].casefold()
    factor = (DECIMAL if decimal else BINARY)["" if unit == "b" else unit]
    try:
        nbytes = round(number(found.group(1)) * factor)
    except (ValueError, OverflowError):  # two points, or more digits than a number has
        return None
    return None if nbytes >= UNKNOWN_ABOVE else nbytes


def resolution(text: str, *, decimal: bool = False) -> int:
    """Bytes of the last printed digit of a size."""
    found = _PARTS.match(text.strip())
    if found is None:
        raise ValueError(text)
    digits = found.group(1)
    places = len(digits.rpartition(".")[2]) if "." in digits else (len(digits.rpartition(",")[2]) if re.fullmatch(r"-?\d+,\d{1,2}", digits) else 0)
    unit = found.group(2)[:1].casefold()
    return max(int((DECIMAL if decimal else BINARY)["" if unit == "b" else unit] / 10**places), 1)
