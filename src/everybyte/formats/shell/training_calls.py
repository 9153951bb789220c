"""A training program in Python as the command that says the same: the arguments of `SFTConfig(...)`, `LoraConfig(...)`, `from_pretrained(...)` as flags."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

TRAINERS = {
    "TrainingArguments": "",
    "Seq2SeqTrainingArguments": "",
    "UnslothTrainingArguments": "",
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "ORPOConfig": "orpo",
    "KTOConfig": "kto",
    "GRPOConfig": "grpo",
    "RewardConfig": "reward",
    "CPOConfig": "cpo",
    "SFTTrainer": "sft",
    "DPOTrainer": "dpo",
    "GRPOTrainer": "grpo",
}
"""Calls whose arguments are the trainer's own -> TRL's method."""

_ADAPTER = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
_PACKED = {"bnb_4bit_use_double_quant": "use_bnb_nested_quant"}
_LOADED = {"model_name": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path", "dtype": "torch_dtype"}
_TAKEN_OF_LOADERS = frozenset((*_LOADED, "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit", "max_seq_length", "full_finetuning"))
_TAKEN_OF_TRAINERS = frozenset(("max_seq_length", "packing", "max_length", "max_prompt_length"))
_LOADERS = ("AutoModel", "Fast", "LlamaFor", "Qwen", "Mistral", "Gemma")


def words_of(tree: ast.Module, value: Callable[[ast.expr], Any], unknown: object, script: str) -> list[tuple[str, int]]:
    """The words of a command with their lines; empty if the program sets up no training."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    trainers = [node for node in calls if _name(node) in TRAINERS]
    if not trainers:
        return []
    method = next((TRAINERS[_name(node)] for node in trainers if TRAINERS[_name(node)]), "")
    fast = any("FastLanguageModel" in ast.unparse(node.func) or "FastModel" in ast.unparse(node.func) for node in calls)
    program = ["unsloth-cli.py"] if fast else ["trl", method] if method else [script]
    words = [(word, trainers[0].lineno) for word in program]
    for node in calls:
        for name, item in _settings(node, value):
            found = _dtype(item) or value(item)
            if found is not unknown and found is not None:
                words += _flag(name, found, item.lineno)
    return words


def _settings(node: ast.Call, value: Callable[[ast.expr], Any]) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a call under the names of flags."""
    name = _name(node)
    named = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    if name in TRAINERS:
        yield from ((key, item) for key, item in named if name.endswith(("Config", "Arguments")) or key in _TAKEN_OF_TRAINERS)
        first = next((item for key, item in named if key == "model"), None)
        if name.endswith("Trainer") and first is not None and isinstance(value(first), str):
            yield "model_name_or_path", first
    elif name in ("LoraConfig", "get_peft_model") and any(key == "r" for key, _ in named):
        yield "use_peft", ast.copy_location(ast.Constant(value=True), node)
        yield from ((_ADAPTER.get(key, key), item) for key, item in named if key in _ADAPTER or key.startswith(("lora_", "use_")))
    elif name == "BitsAndBytesConfig":
        yield from ((_PACKED.get(key, key), item) for key, item in named)
    elif name == "from_pretrained" and ast.unparse(node.func).startswith(_LOADERS):
        if node.args:
            yield "model_name_or_path", node.args[0]
        yield from ((_LOADED.get(key, key), item) for key, item in named if key in _TAKEN_OF_LOADERS)


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _dtype(item: ast.expr) -> str | None:
    """`torch.bfloat16` -> bfloat16."""
    is_torch = isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "torch"
    return item.attr if is_torch and isinstance(item, ast.Attribute) else None


def _flag(name: str, value: Any, line: int) -> list[tuple[str, int]]:
    if isinstance(value, list):
        return [(f"--{name}", line), *((str(item), line) for item in value)] if all(isinstance(item, str | int | float) for item in value) else []
    if isinstance(value, str | int | float):
        return [(f"--{name}", line), (str(value), line)]
    return []
