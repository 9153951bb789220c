"""Fake tensors against real ones: the peak that the recorder sees is the one that torch's profiler measured on an unmodified run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import transformers
from peaks import CLOSE, Step, measured, traced, traced_with_highest, tracked_highest
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, MixtralConfig, PretrainedConfig, Qwen3Config
from usual import matrix

transformers.logging.set_verbosity_error()

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "use_cache": False,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "gemma3": Gemma3TextConfig(**SIZES, head_dim=32),
    "gpt2": GPT2Config(vocab_size=2048, n_embd=256, n_layer=3, n_head=8, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}


def build(name: str, dtype: torch.dtype, recompute: bool, autocast: bool) -> Step:
    """One step of training of a tiny model, as a user writes it."""
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=dtype, attn_implementation="sdpa")
    model.train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    tokens = torch.randint(0, 2048, (2, 256))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def maker(name: str, precision: str, recompute: bool) -> Callable[[], Step]:
    """What builds the step of a case."""
    return lambda: build(name, torch.bfloat16 if precision == "bf16" else torch.float32, recompute, precision == "autocast")


def called(name: str, precision: str, recompute: bool) -> str:
    """The name of a case."""
    return f"{name}-{precision}-{'recomputed' if recompute else 'kept'}"


ALL = list(product(CONFIGS, ("fp32", "bf16", "autocast"), (False, True)))


@pytest.mark.parametrize(("name", "precision", "recompute"), matrix(ALL, called=called))
def test_fake_peaks_are_real_peaks(name: str, precision: str, recompute: bool) -> None:
    """A step of a tiny language model peaks within 0.2 % of what torch measured on real tensors, whatever the precision and with or without recomputation."""
    make = maker(name, precision, recompute)
    assert traced(make) == pytest.approx(measured(make()), rel=CLOSE)


@pytest.mark.parametrize(("name", "precision", "recompute"), matrix(ALL, together=1, called=called))
def test_the_highest_instant_is_that_of_torchs_own_tracker(name: str, precision: str, recompute: bool) -> None:
    """To the byte."""
    make = maker(name, precision, recompute)
    assert traced_with_highest(make)[1] == tracked_highest(make)
