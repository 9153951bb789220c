"""Bytes of weights in packed formats: each matrix is several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everybyte.basics.citation import Citation
from everybyte.basics.dtypes import DTYPES
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import ceil_div
from everybyte.layers.recording.setup import Packed

BNB = Citation("bitsandbytes functional.py quantize_4bit, autograd/_functions.py; equal to the byte on three shapes (tests/oracle)")
GPTQ = Citation("AutoGPTQ qlinear modules: qweight, qzeros, scales (fp16), g_idx (int32)")
TORCHAO = Citation("torchao nf4tensor.py NF4Tensor.from_tensor: block_size 64, scaler_block_size 256")
FP8 = Citation("transformers integrations/finegrained_fp8.py FP8Linear: weight and weight_scale_inv; DeepSeek-V3 technical report, section 3.3")
GROUPED = Citation("compressed-tensors compressors/quantized_compressors/pack_quantized.py: weight_packed and weight_scale, symmetric")
EXL3 = Citation("exllamav3 modules/quant/exl3.py LinearEXL3: trellis, suh, svh")
MLX = Citation("mlx python/mlx/nn/layers/quantized.py QuantizedLinear: weight, scales, biases")
MEAN = Citation("the average bits per weight that the job states")
AWQ = Citation("AutoAWQ WQLinear: qweight, qzeros, scales (fp16)")


def bitsandbytes_4bit(packed: Packed, rows: int, cols: int) -> list[int]:
    """NF4 or FP4: two numbers a byte, one fp32 absmax a block, a code table of 16 fp32; with double quantisation the absmax are
    8 bit with one fp32 for 256 of them, a second code table of 256 fp32 and an offset."""
    numbers = rows * cols
    blocks = ceil_div(numbers, packed.group_size)
    data = [ceil_div(numbers, 2)]
    if packed.double:
        return [*data, blocks, 4 * ceil_div(blocks, 256), 16 * 4, 256 * 4, 4]
    return [*data, 4 * blocks, 16 * 4]


def bitsandbytes_4bit_text(packed: Packed) -> str:
    """The same in letters."""
    blocks = f"ceil(P/{packed.group_size})"
    return f"ceil(P/2) + {blocks} + 4·ceil({blocks}/256) + 64 + 1024 + 4" if packed.double else f"ceil(P/2) + 4·{blocks} + 64"


def bitsandbytes_int8(packed: Packed, rows: int, cols: int) -> list[int]:
    """LLM.int8: one byte a number and one fp32 scale a row of the output."""
    return [rows * cols, 4 * rows]


def torchao_nf4(packed: Packed, rows: int, cols: int) -> list[int]:
    """NF4Tensor: two numbers a byte, one int8 scaler for 64 of them, one bf16 factor for 256 scalers, a mean and a table of 16."""
    numbers = rows * cols
    scalers = ceil_div(numbers, packed.group_size)
    return [ceil_div(numbers, 2), scalers, 2 * ceil_div(scalers, 256), 2, 16 * 2]


def torchao_nf4_text(packed: Packed) -> str:
    """The same in letters."""
    scalers = f"ceil(P/{packed.group_size})"
    return f"ceil(P/2) + {scalers} + 2·ceil({scalers}/256) + 2 + 32"


def gptq(packed: Packed, rows: int, cols: int) -> list[int]:
    """Packed numbers and zeros in int32 words, fp16 scales of each group of inputs, the group of each input."""
    groups = ceil_div(cols, packed.group_size) if packed.group_size > 0 else 1
    return [rows * cols * packed.bits // 8, groups * rows * packed.bits // 8, groups * rows * 2, cols * 4]


def gptq_text(packed: Packed) -> str:
    """The same in letters."""
    return f"{awq_text(packed)} + 4·cols"


def awq(packed: Packed, rows: int, cols: int) -> list[int]:
    """As GPTQ without the group of each input."""
    return gptq(packed, rows, cols)[:3]


def awq_text(packed: Packed) -> str:
    """The same in letters."""
    groups = f"ceil(cols/{packed.group_size})·rows" if packed.group_size > 0 else "rows"
    return f"floor(P·{packed.bits}/8) + floor({groups}·{packed.bits}/8) + 2·{groups}"


def grouped(packed: Packed, rows: int, cols: int) -> list[int]:
    """Packed numbers and a 16-bit scale of each group of inputs, no zero points."""
    groups = ceil_div(cols, packed.group_size) if packed.group_size > 0 else 1
    return [rows * cols * packed.bits // 8, 2 * groups * rows]


def grouped_text(packed: Packed) -> str:
    """The same in letters."""
    groups = f"ceil(cols/{packed.group_size})·rows" if packed.group_size > 0 else "rows"
    return f"floor(P·{packed.bits}/8) + 2·{groups}"


def trellis(packed: Packed, rows: int, cols: int) -> list[int]:
    """EXL3: a trellis of so many bits a number, a 16-bit sign and scale for each input and each output."""
    return [ceil_div(rows * cols * packed.bits, 8 * packed.parts), 2 * cols, 2 * rows]


def trellis_text(packed: Packed) -> str:
    """The same in letters."""
    return f"ceil(P·{packed.bits}/{8 * packed.parts}) + 2·cols + 2·rows"


def affine(packed: Packed, rows: int, cols: int) -> list[int]:
    """MLX: packed numbers, a 16-bit scale and a 16-bit bias of each group of inputs."""
    groups = ceil_div(cols, packed.group_size) * rows
    return [rows * cols * packed.bits // 8, 2 * groups, 2 * groups]


def affine_text(packed: Packed) -> str:
    """The same in letters."""
    return f"floor(P·{packed.bits}/8) + 4·ceil(cols/{packed.group_size})·rows"


def mean_bits(packed: Packed, rows: int, cols: int) -> list[int]:
    """A format without a public layout: so many bits a number in the mean, scales and codebooks included, as the tool that packed it printed."""
    return [ceil_div(rows * cols * packed.bits, 8 * packed.parts)]


def mean_bits_text(packed: Packed) -> str:
    """The same in letters."""
    return f"ceil(P·{packed.bits}/{8 * packed.parts})"


def blockwise(packed: Packed, rows: int, cols: int) -> list[int]:
    """A number format with its scales inside (fp8, mxfp4, nvfp4, GGUF types)."""
    return [DTYPES[packed.format].nbytes(rows * cols)]


def blockwise_text(packed: Packed) -> str:
    """The same in letters."""
    kind = DTYPES[packed.format]
    return "P" if kind.block_bytes == kind.block_elements else f"{kind.block_bytes}·ceil(P/{kind.block_elements})"


def fp8(packed: Packed, rows: int, cols: int) -> list[int]:
    """One byte a number and an fp32 scale for each square block of `group_size`; one scale in all where there are no blocks."""
    side = packed.group_size
    blocks = ceil_div(rows, side) * ceil_div(cols, side) if side > 0 else 1
    return [rows * cols, 4 * blocks]


def fp8_text(packed: Packed) -> str:
    """The same in letters."""
    side = packed.group_size
    return f"P + 4·ceil(rows/{side})·ceil(cols/{side})" if side > 0 else "P + 4"


class PackedForm(NamedTuple):
    """A packed format: sizes of the tensors that stand for a matrix of rows × cols, the same as a formula in P = rows·cols, and the source."""

    tensors: Callable[[Packed, int, int], list[int]]
    formula: Callable[[Packed], str]
    citation: Citation


FORMATS: dict[str, PackedForm] = {
    "nf4": PackedForm(bitsandbytes_4bit, bitsandbytes_4bit_text, BNB),
    "fp4": PackedForm(bitsandbytes_4bit, bitsandbytes_4bit_text, BNB),
    "int8": PackedForm(bitsandbytes_int8, lambda _: "P + 4·rows", BNB),
    "nf4-torchao": PackedForm(torchao_nf4, torchao_nf4_text, TORCHAO),
    "gptq": PackedForm(gptq, gptq_text, GPTQ),
    "awq": PackedForm(awq, awq_text, AWQ),
    "exl3": PackedForm(trellis, trellis_text, EXL3),
    "mlx": PackedForm(affine, affine_text, MLX),
    "int4": PackedForm(grouped, grouped_text, GROUPED),
    "fp8": PackedForm(fp8, fp8_text, FP8),
    "mean": PackedForm(mean_bits, mean_bits_text, MEAN),
    **{name: PackedForm(blockwise, blockwise_text, DTYPES[name].source) for name in ("mxfp8", "mxfp4", "nvfp4")},
}
"""Packed formats by name; a new one is one row."""


def packed_tensors(packed: Packed, rows: int, cols: int, path: str = "train.quantization.format") -> list[int]:
    """Bytes of each tensor that stands for a packed matrix. Raises Unsupported for an unknown format."""
    if packed.format not in FORMATS:
        raise Unsupported(path, f"{packed.format!r} is not supported here; supported: {', '.join(sorted(FORMATS))}")
    return FORMATS[packed.format].tensors(packed, rows, cols)
