"""A training script with the Trainer of transformers: `python trainer.py fsdp2|ddp FOLDER`."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

SHARDED = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}


class Words(Dataset[dict[str, torch.Tensor]]):
    """Samples of 128 tokens."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 2048, (128,))
        return {"input_ids": tokens, "labels": tokens}


kind, folder = sys.argv[1:]
config = LlamaConfig(
    vocab_size=2048, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, use_cache=False
)
settings = TrainingArguments(
    output_dir=folder,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=100,
    bf16=True,
    logging_steps=1,
    report_to=[],
    **(SHARDED if kind == "fsdp2" else {}),
)
Trainer(model=LlamaForCausalLM(config), args=settings, train_dataset=Words()).train()
