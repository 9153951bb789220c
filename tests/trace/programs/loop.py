"""A training script with accelerate's FSDP2, as `accelerate launch` runs it."""

from __future__ import annotations

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"], activation_checkpointing=True
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin, gradient_accumulation_steps=2)
config = LlamaConfig(
    vocab_size=2048, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, use_cache=False
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randint(0, 2048, (512, 128))), batch_size=2, shuffle=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 10, 100)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for (tokens,) in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.is_main_process:
        print(loss.item())
