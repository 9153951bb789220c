"""Korthikanti et al., table 2, by the ledger's own layers: what a layer of Megatron-LM keeps is the paper's form, byte by byte, and the statistics of
its two norms, which the paper leaves out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everybyte import estimate
from everybyte.engines.megatron.layers.block import Checkpoint, TransformerLayer
from everybyte.engines.megatron.sizes import Dense, Heads, Sizes, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch, Dim, Point
from everybyte.textbook import activations as paper

S, B, H, A = 2048, 4, 6144, 64
STATISTICS = 16
"""Bytes a token of mean and reciprocal deviation of two norms in fp32."""
PAPER = Style(attention="unfused", dropout=True)
LAYERS = {"Transformer Engine": PAPER, "local": replace(PAPER, te=False)}


def kept(style: Style, tp: int, *, sp: bool, whole: bool = False) -> int:
    """Bytes that one rank keeps of one layer of the paper's 22B model."""
    attention = Heads(A, A, H // A, rope=False, bias=True, out_bias=True)
    layer = TransformerLayer(Sizes(H, attention, Dense(4 * H, "gelu", gated=False, bias=True), "layer"), Split(tp, sp), style)
    setup = Setup()
    found = write(Checkpoint(layer, 1) if whole else layer, setup, (layer.split.tokens, Dim("h", H)), setup.weights, keep_gradients=False)
    return found.tally.kept_size.at(Point(Batch(B, S, S)))


@pytest.mark.parametrize("name", LAYERS)
def test_no_parallelism(name: str) -> None:
    """s·b·h·(34 + 5·a·s/h)."""
    assert kept(LAYERS[name], 1, sp=False) == paper.korthikanti_none(s=S, b=B, h=H, a=A) + STATISTICS * S * B


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallelism(name: str, tp: int) -> None:
    """s·b·h·(10 + 24/t + 5·a·s/(h·t)): norms, dropouts and inputs stay whole."""
    assert kept(LAYERS[name], tp, sp=False) == paper.korthikanti_tp(s=S, b=B, h=H, a=A, t=tp) + STATISTICS * S * B


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_and_sequence_parallelism(name: str, tp: int) -> None:
    """s·b·h/t·(34 + 5·a·s/h): everything is divided."""
    assert kept(LAYERS[name], tp, sp=True) == paper.korthikanti_tp_sp(s=S, b=B, h=H, a=A, t=tp) + STATISTICS * S * B // tp


@pytest.mark.parametrize("name", LAYERS)
def test_selective_recomputation(name: str) -> None:
    """34·s·b·h/t, and s·b·h·(10 + 24/t) without sequence parallelism: the scores are made again."""
    style = replace(LAYERS[name], recompute=("core_attn",))
    assert kept(style, 8, sp=True) == paper.korthikanti_selective(s=S, b=B, h=H, t=8) + STATISTICS * S * B // 8
    assert kept(style, 8, sp=False) == paper.korthikanti_selective_tp(s=S, b=B, h=H, t=8) + STATISTICS * S * B


@pytest.mark.parametrize("name", LAYERS)
def test_full_recomputation(name: str) -> None:
    """2·s·b·h: the input of the layer."""
    assert kept(LAYERS[name], 8, sp=False, whole=True) == paper.korthikanti_full(s=S, b=B, h=H)


def test_legacy_layers_with_flash_attention() -> None:
    """Without scores 34·s·b·h stay of table 2, 2·s·b·h more for the copy of the result, and the logarithm of each row's sum."""
    style = replace(LAYERS["local"], attention="flash2")
    assert kept(style, 1, sp=False) == 36 * S * B * H + 4 * A * S * B + STATISTICS * S * B


def test_legacy_swiglu_keeps_what_its_fused_form_makes_again() -> None:
    """A job of local layers with FlashAttention runs SwiGLU as PyTorch writes it: silu(gate) is kept beside gate and up, 2·n·f a layer."""
    shape = {"family": "gpt", "layers": 2, "hidden": 512, "ffn": 1024, "heads": 8, "kv_heads": 8, "vocab": 8192, "activation": "swiglu", "position": "rope"}
    train = {"framework": "megatron", "micro_batch": 2, "seq_len": 512, "attention": "flash2"}
    job = {"model": {"shape": shape}, "hardware": {"gpu": "H100-SXM5-80GB"}, "train": {**train, "extra": {"transformer-impl": "local"}}}
    rows = [row.formula for row in estimate(job).worst.ledger if row.id == "activations/layers.0-1/mlp" and "forward" in row.phases]
    assert rows == ["2·(2·n·2·f + 4·n·f)"]
