"""DeepSpeed, accelerate and peft: files that complete another."""

from __future__ import annotations

import json
from typing import Any

from everybyte.formats.writing.parts import FSDP, model_text, yaml_text, zero_json
from everybyte.formats.writing.settings import Settings, Text


def deepspeed(settings: Settings) -> Text:
    """DeepSpeed's JSON; without ZeRO its stage is 0."""
    config = zero_json(settings) or {"zero_optimization": {"stage": 0}}
    settings.skip("train.precision", "train.micro_batch", "train.grad_accum")
    kind = str(settings.peek("train.precision") or "").partition("-")[0]
    if kind in ("bf16", "fp16"):
        config.setdefault(kind, {})["enabled"] = True
    if settings.take("train.optimizer.name") == "adamw":
        settings.skip("train.optimizer.impl")
        config["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    clip = settings.take("train.grad_clip")
    if clip is not None:
        config["gradient_clipping"] = clip
    return Text(json.dumps(config, indent=2) + "\n", settings.left())


def accelerate(settings: Settings) -> Text:
    """The file that `accelerate config` writes."""
    gpus, each = settings.take("hardware.gpus") or 1, settings.take("hardware.gpus_per_node")
    settings.skip("hardware.gpu")
    precision = str(settings.take("train.precision") or "")
    sharding = str(settings.take("train.sharding") or ("ddp" if gpus > 1 else "none"))
    found: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_processes": gpus, "num_machines": max(gpus // each, 1) if each else 1}
    kind = precision.partition("-")[0]
    found["mixed_precision"] = kind if kind in ("bf16", "fp16", "fp8") else "no"
    if sharding.startswith("zero"):
        found |= {"distributed_type": "DEEPSPEED", "deepspeed_config": _zero(settings, int(sharding[4:]))}
    elif sharding.startswith("fsdp") or sharding == "hsdp":
        found |= {"distributed_type": "FSDP", "fsdp_config": _fsdp(settings, sharding)}
    else:
        found["distributed_type"] = "MULTI_GPU" if gpus > 1 else "NO"
    axes = {
        name: settings.take(f"train.mesh.{axis}") for name, axis in (("tp", "tp"), ("cp", "cp"), ("dp_shard", "dp_shard"), ("dp_replicate", "dp_replicate"))
    }
    if any(axes.values()):
        found["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in axes.items() if size}
    return Text(yaml_text(found), settings.left())


def _zero(settings: Settings, stage: int) -> dict[str, Any]:
    config: dict[str, Any] = {"zero_stage": stage, "zero3_init_flag": stage == 3}
    settings.skip("train.extra.zero3_init_flag")
    for job, key in (("optimizer", "offload_optimizer_device"), ("params", "offload_param_device")):
        config[key] = settings.take(f"train.offload.{job}") or "none"
    accum, clip = settings.take("train.grad_accum"), settings.take("train.grad_clip")
    if accum is not None:
        config["gradient_accumulation_steps"] = accum
    if clip is not None:
        config["gradient_clipping"] = clip
    return config


def _fsdp(settings: Settings, sharding: str) -> dict[str, Any]:
    config: dict[str, Any] = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_offload_params": settings.take("train.offload.params") == "cpu"}
    if sharding.startswith("fsdp2"):
        config |= {"fsdp_version": 2, "fsdp_reshard_after_forward": sharding == "fsdp2"}
    else:
        config |= {"fsdp_version": 1, "fsdp_sharding_strategy": FSDP[sharding]}
    if settings.peek("train.recompute.policy") == "full":
        settings.skip("train.recompute.policy", "train.recompute.reentrant")
        config["fsdp_activation_checkpointing"] = True
    for key, value in settings.below("train.extra").items():
        if key.startswith("fsdp_"):
            settings.skip(f"train.extra.{key}")
            config[key] = value
    return config


KINDS = {
    "dora": "LORA",
    "prefix": "PREFIX_TUNING",
    "prompt": "PROMPT_TUNING",
    "p-tuning": "P_TUNING",
    "trainable-tokens": "TRAINABLE_TOKENS",
    "ln-tuning": "LN_TUNING",
    "multitask-prompt": "MULTITASK_PROMPT_TUNING",
    "adaption-prompt": "ADAPTION_PROMPT",
}


def peft(settings: Settings) -> Text:
    """adapter_config.json."""
    kind = str(settings.take("train.adapter.kind") or "lora")
    found: dict[str, Any] = {"peft_type": KINDS.get(kind, kind.upper()), "base_model_name_or_path": model_text(settings), "task_type": "CAUSAL_LM"}
    rank = settings.take("train.adapter.rank")
    key = "init_r" if kind == "adalora" else "num_virtual_tokens" if kind in ("prefix", "prompt", "p-tuning", "multitask-prompt") else "r"
    found[key] = rank
    found["lora_alpha"] = settings.take("train.adapter.alpha")
    targets, saved = settings.take("train.adapter.targets"), settings.take("train.adapter.modules_to_save")
    found |= {"target_modules": targets, "modules_to_save": saved, "lora_dropout": settings.take("train.extra.lora_dropout")}
    if kind == "dora":
        found["use_dora"] = True
    return Text(json.dumps({name: value for name, value in found.items() if value is not None}, indent=2) + "\n", settings.left())
