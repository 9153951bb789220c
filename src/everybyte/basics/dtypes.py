"""Number formats: bits an element, or bytes a block for the packed ones."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.citation import Citation
from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.basics.units import ceil_div

_IEEE = Citation("IEEE 754 and bfloat16: width of the type")
_OCP = Citation("OCP Microscaling Formats (MX) v1.0, section 5: 32 elements share one 8-bit scale")
_GGML = Citation("llama.cpp ggml/src/ggml-common.h, static_assert of each block type")


class DType(NamedTuple):
    """A number format stored in blocks of `block_elements` that take `block_bytes` bytes. Plain types have one element a block."""

    name: str
    block_elements: int
    block_bytes: int
    source: Citation = _IEEE

    @property
    def bits(self) -> float:
        """Bits an element, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` numbers; a last partial block counts whole."""
        return ceil_div(elements, self.block_elements) * self.block_bytes


def _plain(name: str, size: int) -> DType:
    return DType(name, 1, size)


FP64, FP32, TF32 = _plain("fp64", 8), _plain("fp32", 4), _plain("tf32", 4)
BF16, FP16, FP8 = _plain("bf16", 2), _plain("fp16", 2), _plain("fp8", 1)
INT64, INT32, INT16, INT8, UINT8, BOOL = (_plain(n, s) for n, s in (("int64", 8), ("int32", 4), ("int16", 2), ("int8", 1), ("uint8", 1), ("bool", 1)))
UINT64, UINT32, UINT16, COMPLEX64 = (_plain(n, s) for n, s in (("uint64", 8), ("uint32", 4), ("uint16", 2), ("complex64", 8)))

_GGML_BLOCKS = {
    "q1_0": (128, 18),
    "q2_0": (64, 18),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q8_1": (32, 36),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q8_k": (256, 292),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
}

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        FP64,
        FP32,
        TF32,
        BF16,
        FP16,
        FP8,
        INT64,
        INT32,
        INT16,
        INT8,
        UINT8,
        BOOL,
        UINT64,
        UINT32,
        UINT16,
        COMPLEX64,
        DType("e8m0", 1, 1, _OCP),
        DType("fp6", 4, 3, _OCP),
        DType("mxfp8", 32, 33, _OCP),
        DType("mxfp4", 32, 17, _OCP),
        DType("nvfp4", 16, 9, Citation("NVIDIA NVFP4: 16 elements share one E4M3 scale; the fp32 scale of a tensor is counted apart")),
        DType("int4", 2, 1),
        DType("fp4", 2, 1),
        DType("nf4", 2, 1),
        *(DType(name, elements, size, _GGML) for name, (elements, size) in _GGML_BLOCKS.items()),
    )
}

_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "f64": "fp64",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "f8_e4m3": "fp8",
    "f8_e5m2": "fp8",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
}


def dtype(name: str, path: str = "dtype") -> DType:
    """The number format called `name` (`bf16`, `torch.bfloat16`, `BF16`, `q4_k`). Raises BadInput with the nearest names."""
    folded = name.casefold().removeprefix("torch.")
    found = DTYPES.get(_ALIASES.get(folded, folded))
    if found is None:
        raise BadInput(path, f"unknown number format {name!r}{did_you_mean(folded, [*DTYPES, *_ALIASES])}")
    return found
