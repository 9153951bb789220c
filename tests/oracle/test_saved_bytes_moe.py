"""One more layer of a model with experts or latent attention keeps for backward exactly the bytes that our account says."""

from __future__ import annotations

from typing import Any

import pytest
from hybrids import config_of, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_bytes import blocks, layer_bytes, predicted

from everybyte.models.registry import build

EXPERTS = [
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "dbrx",
    "glm4-moe",
    "gpt-oss",
    "minimax-m2",
    "mimo-v2",
    "mimo-v2-full",
    "ernie-moe",
    "hunyuan-moe",
    "llama4-rope",
    "llama4-nope",
    "minimax-m3",
    "minimax-m3-dense",
    "step-3.7",
    "step-3.7-sliding",
]
LATENT = [
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v3-dense",
    "deepseek-v3-no-q-latent",
    "deepseek-v3-wide-values",
    "deepseek-v3.2",
    "glm-4.7-flash",
    "glm-5",
    "deepseek-v4-sliding",
    "deepseek-v4-hashed",
    "deepseek-v4-heavy",
    "deepseek-v4-sparse",
]
EAGER_ONLY = {"gpt-oss", "mimo-v2", "mimo-v2-full", "deepseek-v4-sliding", "deepseek-v4-hashed", "deepseek-v4-heavy", "deepseek-v4-sparse"}
"""Transformers has no SDPA form of these."""


def compare(name: str, b: int, s: int, attention: str, experts: str = "grouped", **more: Any) -> None:
    """Asserts that a layer of the case keeps as much as we say, and shows both lists if not."""

    def make(layers: int) -> Any:
        config = config_of(name, layers, attn_implementation=attention, **more)
        if experts == "loop":
            config._experts_implementation = "eager"
        return model_of(config)

    measured, by_shape = layer_bytes(make, b, s)
    config = config_of(name, 2, **more)
    network = build({**config.to_dict(), "architectures": config.architectures})
    total, rows = predicted(blocks(network)[1:], network.hidden, b, s, attention=attention, experts=experts)
    assert total == measured, f"torch: {sorted(by_shape.items(), key=lambda item: -item[1])}\nours: {sorted(rows, key=lambda row: -row[2])}"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", EXPERTS + LATENT)
def test_a_layer_keeps_what_torch_keeps(name: str, attention: str) -> None:
    """Saved bytes of each family in bf16 are equal to the byte, of one sequence and of several."""
    if attention == "sdpa" and name in EAGER_ONLY:
        pytest.skip("transformers has no SDPA form of this family")
    for b, s in ((2, 32), (1, 24), (3, 40)):
        compare(name, b, s, attention)


TABLE = [
    (2, 32, 96, 8, 2, 16, 176, 498448, 377616),
    (1, 64, 160, 4, 4, 32, 384, 809744, 712464),
    (3, 48, 128, 16, 8, 8, 320, 2006224, 1315024),
    (1, 128, 256, 4, 1, 64, 704, 2799120, 2407952),
]
"""Mixtral rows of measurements with torch 2.13: b, s, h, heads, KV heads, head width, ffn, bytes of eager and of SDPA attention."""


@pytest.mark.parametrize("row", TABLE)
def test_mixtral_keeps_the_bytes_that_were_measured_before(row: tuple[int, ...]) -> None:
    """Four shapes of Mixtral with both attentions give the recorded figures."""
    b, s, h, a, k, d, f, eager, sdpa = row
    network = build(
        {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": 512,
            "hidden_size": h,
            "intermediate_size": f,
            "num_hidden_layers": 2,
            "num_attention_heads": a,
            "num_key_value_heads": k,
            "head_dim": d,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        }
    )
    for attention, expected in (("eager", eager), ("sdpa", sdpa)):
        assert predicted(blocks(network)[1:], h, b, s, attention=attention)[0] == expected


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen2-moe", "hunyuan-moe"])
def test_experts_one_after_the_other_keep_what_torch_keeps(name: str) -> None:
    """The loop over experts, whose routing weights have the type of the hidden states, keeps what transformers' loop keeps."""
    compare(name, 2, 32, "sdpa", experts="loop")


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 3),
    s=st.sampled_from([8, 24, 40]),
    heads=st.sampled_from([(4, 1), (4, 2), (6, 3)]),
    head_dim=st.sampled_from([8, 24]),
    hidden=st.sampled_from([32, 80]),
    ffn=st.sampled_from([16, 56]),
    experts=st.sampled_from([(4, 1), (4, 2), (6, 3)]),
    name=st.sampled_from(["mixtral", "qwen3-moe"]),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_any_shape_of_experts(
    b: int, s: int, heads: tuple[int, int], head_dim: int, hidden: int, ffn: int, experts: tuple[int, int], name: str, attention: str
) -> None:
    """Shapes drawn at random, heads wider or narrower than the hidden states, are equal to the byte."""
    counts = {"num_experts_per_tok": experts[1], "num_local_experts" if name == "mixtral" else "num_experts": experts[0]}
    width = {"intermediate_size": ffn} if name == "mixtral" else {"moe_intermediate_size": ffn}
    compare(name, b, s, attention, hidden_size=hidden, num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=head_dim, **counts, **width)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 2),
    s=st.sampled_from([16, 40]),
    heads=st.sampled_from([2, 4]),
    ranks=st.sampled_from([(24, 16), (40, 32)]),
    widths=st.sampled_from([(16, 8, 16), (8, 8, 24), (24, 16, 40)]),
    attention=st.sampled_from(["sdpa", "eager"]),
)
def test_any_shape_of_latent_attention(b: int, s: int, heads: int, ranks: tuple[int, int], widths: tuple[int, int, int], attention: str) -> None:
    """Latent attention with any ranks and widths of heads, values narrower, wider or as wide as keys, is equal to the byte."""
    compare(
        "deepseek-v3",
        b,
        s,
        attention,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        q_lora_rank=ranks[0],
        kv_lora_rank=ranks[1],
        qk_nope_head_dim=widths[0],
        qk_rope_head_dim=widths[1],
        head_dim=widths[1],
        v_head_dim=widths[2],
    )
