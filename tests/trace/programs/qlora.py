"""A QLoRA run of the Trainer over a model of the hub, as tutorials write it."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


class Tokens(Dataset[dict[str, Any]]):
    """Rows of the same length."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = torch.arange(256)
        return {"input_ids": row, "labels": row}


packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config=packed, attn_implementation="flash_attention_2", device_map="auto")
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, bf16=True, max_steps=20, logging_steps=1, report_to=[])
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
