"""One more state-space, linear-attention or hybrid layer keeps for backward exactly the bytes that our account says."""

from __future__ import annotations

from typing import Any

import pytest
from hybrids import config_of, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_bytes import blocks, layer_bytes, predicted

from everybyte.models.registry import build

TOKENS = {
    "mamba": 9,
    "falcon-mamba": 9,
    "jamba": 12,
    "mamba2": 40,
    "bamba": 40,
    "falcon-h1": 40,
    "falcon-h1-norm": 40,
    "granite-hybrid": 40,
    "granite-hybrid-dense": 40,
    "nemotron-h-mamba": 40,
    "nemotron-h-attention": 40,
    "nemotron-h-mlp": 40,
    "nemotron-h-moe": 40,
    "qwen3-next-linear": 150,
    "qwen3-next-full": 40,
    "qwen3.5": 150,
    "qwen3.5-moe": 150,
    "kimi-linear": 150,
    "kimi-linear-full": 40,
    "zamba2": 40,
    "zamba2-adapters": 40,
    "zamba2-mamba": 40,
}
"""Tokens of a sequence in the test of a case: more than one chunk where the layer works in chunks."""


def compare(name: str, b: int, s: int, attention: str = "sdpa", **more: Any) -> None:
    """Asserts that a layer of the case keeps as much as we say, and shows both lists if not."""
    measured, by_shape = layer_bytes(lambda layers: model_of(config_of(name, layers, attn_implementation=attention, **more)), b, s)
    config = config_of(name, 2, **more)
    network = build({**config.to_dict(), "architectures": config.architectures})
    total, rows = predicted(blocks(network)[1:], network.hidden, b, s, attention=attention)
    assert total == measured, f"torch: {sorted(by_shape.items(), key=lambda item: -item[1])}\nours: {sorted(rows, key=lambda row: -row[2])}"


@pytest.mark.parametrize("name", TOKENS)
def test_a_layer_keeps_what_torch_keeps(name: str) -> None:
    """Saved bytes of each kind of layer in bf16 are equal to the byte, of one sequence and of several."""
    for b, s in ((2, TOKENS[name]), (1, TOKENS[name] + 7)):
        compare(name, b, s)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 2),
    s=st.sampled_from([18, 33, 48]),
    heads=st.sampled_from([(4, 2), (6, 3), (8, 1)]),
    head_dim=st.sampled_from([8, 12]),
    state=st.sampled_from([8, 20]),
    kernel=st.sampled_from([3, 4]),
)
def test_any_shape_of_mamba2(b: int, s: int, heads: tuple[int, int], head_dim: int, state: int, kernel: int) -> None:
    """Mamba-2 layers of any sizes over more than one chunk are equal to the byte, whether the last chunk is full or not."""
    inner = heads[0] * head_dim
    compare("mamba2", b, s, hidden_size=inner // 2, num_heads=heads[0], n_groups=heads[1], head_dim=head_dim, state_size=state, conv_kernel=kernel)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 2),
    s=st.sampled_from([65, 128]),
    heads=st.sampled_from([(2, 4), (2, 2), (1, 3)]),
    widths=st.sampled_from([(8, 12), (16, 8)]),
    name=st.sampled_from(["qwen3-next-linear", "qwen3.5"]),
)
def test_any_shape_of_the_delta_rule(b: int, s: int, heads: tuple[int, int], widths: tuple[int, int], name: str) -> None:
    """Gated delta nets of any numbers and widths of heads are equal to the byte."""
    compare(name, b, s, linear_num_key_heads=heads[0], linear_num_value_heads=heads[1], linear_key_head_dim=widths[0], linear_value_head_dim=widths[1])
