"""Fake tensors against real ones: the peak that the recorder sees is the one that torch's profiler measured on an unmodified run on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, MixtralConfig, PretrainedConfig, Qwen3Config

from everybyte.trace.branches import real_branches
from everybyte.trace.record import Recorder
from everybyte.trace.watch import Watch

transformers.logging.set_verbosity_error()

STEPS = 2
CLOSE = 0.002
"""Share by which the peaks may differ."""
SIZES: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "use_cache": False,
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "gemma3": Gemma3TextConfig(**SIZES, head_dim=32),
    "gpt2": GPT2Config(vocab_size=2048, n_embd=256, n_layer=3, n_head=8, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}
Step = Callable[[], None]


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


def measured(step: Step) -> list[int]:
    """The growth at the peak of each step, from the events of torch's profiler."""
    peaks = []
    for _ in range(STEPS):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            step()
        events = sorted(_allocations(run.profiler.kineto_results.experimental_event_tree()))
        now = peak = 0
        for _, size in events:
            now += size
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


def _allocations(nodes: Any) -> list[tuple[int, int]]:
    found = []
    for node in nodes:
        if node.tag == torch._C._profiler._EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.alloc_size))
        found += _allocations(node.children)
    return found


def traced(make: Callable[[], Step]) -> list[int]:
    """The growth at the peak of each step, as the recorder sees it on fake tensors."""
    peaks = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        recorder = Recorder("cpu")
        with real_branches("cpu"), recorder, Watch(recorder).modules():
            step = make()
            for _ in range(STEPS):
                start, before = len(recorder.events), recorder.current
                step()
                now = peak = before
                for _, size in recorder.events[start:]:
                    now += size
                    peak = max(peak, now)
                peaks.append(peak - before)
    return peaks


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "mixtral"])
def test_fake_peaks_are_real_peaks(name: str, precision: str, recompute: bool) -> None:
    """A step of a tiny language model peaks within 0.2 % of what torch measured on real tensors, whatever the precision and with or without recomputation."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def make() -> Step:
        return build(name, dtype, recompute, precision == "autocast")

    gc.collect()
    expected = measured(make())
    assert traced(make) == pytest.approx(expected, rel=CLOSE)
