"""Packed weights against the libraries that make them: bytes of every tensor."""

from __future__ import annotations

import pytest
import torch

from everybyte.layers.recording.setup import Packed
from everybyte.rules.quantization.packed import packed_tensors

SHAPES = [(256, 64), (320, 512), (1024, 384), (7, 96), (2048, 2048)]
functional = pytest.importorskip("bitsandbytes.functional")


def sizes(*tensors: torch.Tensor) -> list[int]:
    """Bytes of tensors, largest first."""
    return sorted((t.numel() * t.element_size() for t in tensors), reverse=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("group", [64, 128, 256])
def test_bitsandbytes_4bit_without_double_quantisation(shape: tuple[int, int], kind: str, group: int) -> None:
    """Packed numbers, a maximum a block and the code table are equal to the byte."""
    packed, state = functional.quantize_4bit(torch.randn(*shape), blocksize=group, quant_type=kind)
    assert sizes(packed, state.absmax, state.code) == sorted(packed_tensors(Packed(kind, group_size=group), *shape), reverse=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bitsandbytes_4bit_with_double_quantisation(shape: tuple[int, int]) -> None:
    """The maxima are packed too: 8 bit, one fp32 for 256 of them, a second table and an offset."""
    packed, state = functional.quantize_4bit(torch.randn(*shape), blocksize=64, quant_type="nf4", compress_statistics=True)
    real = sizes(packed, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
    assert real == sorted(packed_tensors(Packed("nf4", group_size=64, double=True), *shape), reverse=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_has_a_scale_a_row(shape: tuple[int, int]) -> None:
    """LLM.int8 weights: one byte a number and one fp32 a row."""
    packed, scales, _ = functional.int8_vectorwise_quant(torch.randn(*shape, dtype=torch.float16))
    assert sizes(packed, scales) == sorted(packed_tensors(Packed("int8"), *shape), reverse=True)


@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 32), (8, 128), (4, -1)])
def test_gptq_layout(bits: int, group: int) -> None:
    """The tensors of a GPTQ linear layer as its module declares them: int32 words of numbers and zeros, fp16 scales, int32 groups."""
    rows, cols = 512, 1024
    groups = cols // group if group > 0 else 1
    qweight = torch.zeros(cols // 32 * bits, rows, dtype=torch.int32)
    qzeros = torch.zeros(groups, rows // 32 * bits, dtype=torch.int32)
    scales = torch.zeros(groups, rows, dtype=torch.float16)
    g_idx = torch.zeros(cols, dtype=torch.int32)
    assert packed_tensors(Packed("gptq", group_size=group, bits=bits), rows, cols) == [t.numel() * t.element_size() for t in (qweight, qzeros, scales, g_idx)]
    assert packed_tensors(Packed("awq", group_size=group, bits=bits), rows, cols) == [t.numel() * t.element_size() for t in (qweight, qzeros, scales)]
