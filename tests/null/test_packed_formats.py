"""Bytes of packed matrices, worked out by hand from the layouts that the formats' libraries write."""

from __future__ import annotations

import pytest

from everybyte.basics.dtypes import dtype
from everybyte.layers.recording.setup import Packed
from everybyte.rules.quantization.packed import packed_tensors

ROWS, COLUMNS = 256, 300
NUMBERS = ROWS * COLUMNS


@pytest.mark.parametrize(
    ("packed", "tensors"),
    [
        (Packed("fp8", (), 128), [NUMBERS, 4 * 2 * 3]),  # one fp32 scale a block of 128 × 128, the last column of blocks partly filled
        (Packed("fp8", (), 0), [NUMBERS, 4]),
        (Packed("int8", (), 0), [NUMBERS, 4 * ROWS]),  # LLM.int8: a scale a row
        (Packed("gptq", (), 128, bits=4), [NUMBERS // 2, 3 * ROWS // 2, 2 * 3 * ROWS, 4 * COLUMNS]),
        (Packed("awq", (), 128, bits=4), [NUMBERS // 2, 3 * ROWS // 2, 2 * 3 * ROWS]),
        (Packed("nf4", (), 64, double=True), [NUMBERS // 2, 1200, 4 * 5, 64, 1024, 4]),
        (Packed("nf4", (), 64), [NUMBERS // 2, 4 * 1200, 64]),
    ],
    ids=lambda value: value.format if isinstance(value, Packed) else "",
)
def test_a_matrix_of_256_rows_and_300_columns(packed: Packed, tensors: list[int]) -> None:
    """Each tensor that stands for the matrix: numbers, zeros, scales, groups, tables."""
    assert packed_tensors(packed, ROWS, COLUMNS) == tensors


@pytest.mark.parametrize(("name", "numbers", "nbytes"), [("q8_0", 33, 2 * 34), ("mxfp4", 1, 17), ("int4", 3, 2), ("bf16", 3, 6), ("q6_k", 256, 210)])
def test_a_last_partial_block_is_whole(name: str, numbers: int, nbytes: int) -> None:
    """Formats in blocks store whole blocks."""
    assert dtype(name).nbytes(numbers) == nbytes
