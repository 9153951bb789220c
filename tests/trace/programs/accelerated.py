"""A Llama under accelerate's FSDP2, as `accelerate launch` runs it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import LlamaConfig, LlamaForCausalLM


def build() -> Callable[[], None]:
    """One step of training."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"], reshard_after_forward=True
    )
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, use_cache=False
    )
    model = LlamaForCausalLM(config)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), foreach=False))
    tokens = torch.randint(0, 2048, (2, 128), device=accelerator.device)

    def step() -> None:
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
