"""Published cache sizes and the rule of 1.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.textbook import inference as inf


def test_cache_of_a_52b_model() -> None:
    """Transformer Inference Arithmetic: 64 layers of 8,192 take 2,097,152 bytes a token."""
    assert inf.kv_mha(e=2, L=64, h=8192, s=1, b=1) == 2_097_152


@pytest.mark.parametrize(
    ("L", "k", "d", "published"),
    [(80, 8, 128, 327_680), (126, 8, 128, 516_096), (32, 8, 128, 131_072), (32, 32, 128, 524_288)],
    ids=["Qwen2.5-72B", "Llama-3.1-405B", "Llama-3.1-8B", "Llama-2-7B"],
)
def test_grouped_heads(L: int, k: int, d: int, published: int) -> None:
    """Bytes a token as printed in table 1 of DeepSeek-AI 2025 (arXiv 2505.09343) and the model cards."""
    assert inf.kv_gqa(e=2, L=L, k=k, d=d, s=1, b=1) == published


def test_latent_attention() -> None:
    """DeepSeek-V3 takes 70,272 bytes a token (table 1 of DeepSeek-AI 2025): 61 layers of 512 + 64."""
    assert inf.kv_mla(e=2, L=61, kv_lora=512, rope=64, s=1, b=1) == 70_272


def test_rolling_buffer_of_mistral() -> None:
    """Mistral 7B, section 2: at 32k tokens a window of 4,096 keeps an eighth of the cache."""
    sizes = {"e": 2, "L": 32, "k": 8, "d": 128, "b": 1}
    assert 8 * inf.kv_window(s=32768, w=4096, **sizes) == inf.kv_gqa(s=32768, **sizes)


@given(s=st.integers(0, 10**6), w=st.integers(1, 10**6), b=st.integers(1, 64))
def test_a_window_never_needs_more(s: int, w: int, b: int) -> None:
    """A sliding window is never above the full cache and equal to it while the text is shorter."""
    window, full = inf.kv_window(e=2, L=4, k=2, d=8, s=s, w=w, b=b), inf.kv_gqa(e=2, L=4, k=2, d=8, s=s, b=b)
    assert window <= full
    assert (window == full) == (s <= w)


def test_the_rule_of_1_2() -> None:
    """A 70B model in 16 bits is 168 GB by the rule, and 42 GB in 4 bits."""
    assert inf.inference_rule_bits(P=70 * 10**9, bits=16) == 168 * 10**9
    assert inf.inference_rule_bits(P=70 * 10**9, bits=4) == 42 * 10**9
    assert inf.inference_rule(weights=140 * 10**9) == 168 * 10**9


def test_the_rule_misses_a_long_context() -> None:
    """One sequence of 131,072 tokens doubles the bytes of Llama-3.1-8B, where the rule adds a fifth."""
    weights = 2 * 8_030_261_248
    real = inf.inference(weights=weights, e=2, L=32, k=8, d=128, s=131_072, b=1)
    assert real > 2 * weights > inf.inference_rule(weights=weights)
