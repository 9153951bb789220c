"""transformers, TRL, LLaMA-Factory and axolotl: YAML of arguments."""

from __future__ import annotations

from typing import Any

from everybyte.formats.writing.parts import ATTENTION, DTYPES, FSDP, model_text, optimizer_word, yaml_text, zero_json
from everybyte.formats.writing.settings import Settings, Text
from everybyte.formats.writing.tables import from_table


def trl(settings: Settings) -> Text:
    """Arguments of TRL's scripts and of transformers' Trainer."""
    found: dict[str, Any] = {"model_name_or_path": model_text(settings)}
    found |= _loading(settings, "dtype") | _adapter_trl(settings) | _trainer(settings)
    found["max_length"] = settings.take("train.seq_len")
    found |= from_table(settings, "training/trl.csv", "training/hf.csv")
    written = _done(found, settings)
    method = settings.peek("train.extra.rlhf_type") or "sft"
    return written._replace(text=f"# trl {method} --config THIS_FILE\n{written.text}")


def llama_factory(settings: Settings) -> Text:
    """LLaMA-Factory's YAML."""
    method = settings.take("train.extra.rlhf_type")
    found: dict[str, Any] = {"model_name_or_path": model_text(settings), "stage": method or "sft", "do_train": True}
    found |= _kind_llama_factory(settings)
    if settings.peek("train.recompute.policy") == "none":
        settings.skip("train.recompute.policy", "train.recompute.reentrant")
        found["disable_gradient_checkpointing"] = True
    elif (reentrant := settings.peek("train.recompute.reentrant")) is not None:
        settings.skip("train.recompute.policy", "train.recompute.reentrant")
        found["use_reentrant_gc"] = reentrant
    if settings.peek("train.precision") == "bf16":
        settings.take("train.precision")
        found["pure_bf16"] = True
    found["cutoff_len"] = settings.take("train.seq_len")
    if settings.peek("train.adapter.kind") is not None:
        settings.skip("train.dtypes.weights")  # the type that is computed in
    attention = settings.take("train.attention")
    found["flash_attn"] = {"flash2": "fa2", "sdpa": "sdpa", "eager": "disabled"}.get(str(attention))
    arguments = _trainer(settings)
    if arguments.pop("use_liger_kernel", None):
        found["enable_liger_kernel"] = True
    found |= arguments | from_table(settings, "training/llama_factory.csv", "training/hf.csv")
    return _done(found, settings)


def axolotl(settings: Settings) -> Text:
    """axolotl's YAML."""
    found: dict[str, Any] = {"base_model": model_text(settings)}
    precision = str(settings.take("train.precision") or "")
    kind, _, way = precision.partition("-")
    settings.skip("train.dtypes.weights")
    if kind in ("bf16", "fp16"):
        found |= {kind: True} if way else {{"bf16": "bfloat16", "fp16": "float16"}[kind]: True, "bf16": False}
    elif precision == "fp32":
        found["bf16"] = False
    found |= _adapter_axolotl(settings)
    found["optimizer"] = optimizer_word(settings, "transformers")
    found |= _recompute(settings)
    kernels = list(settings.take("train.kernels") or ())
    loss = settings.take("train.loss.kind")
    if "liger" in kernels:
        found |= {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rms_norm": True, "liger_glu_activation": True, "liger_rope": True}
        found["liger_fused_linear_cross_entropy"] = True if loss == "fused-linear" else None
    if "cut-cross-entropy" in kernels:
        found["plugins"] = [*found.get("plugins", []), "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]
    found["attn_implementation"] = ATTENTION.get(str(settings.take("train.attention")))
    found |= _sharding(settings)
    found["rl"] = settings.take("train.extra.rlhf_type")
    found |= from_table(settings, "training/axolotl.csv")
    return _done(found, settings)


def _done(found: dict[str, Any], settings: Settings) -> Text:
    return Text(yaml_text({key: value for key, value in found.items() if value is not None}), settings.left())


def _loading(settings: Settings, key: str) -> dict[str, Any]:
    """The type that the base is loaded in, and autocast over it."""
    precision = str(settings.take("train.precision") or "")
    kind, _, way = precision.partition("-")
    stored = settings.take("train.dtypes.weights") if way == "mixed" else None
    found: dict[str, Any] = {}
    if way and kind in ("bf16", "fp16"):
        found[kind] = True
    elif precision in ("bf16", "fp16", "fp32"):
        found |= {key: DTYPES[precision], "bf16": False, "fp16": False}
    if stored is not None:
        found[key] = DTYPES.get(stored)
    return found


def _trainer(settings: Settings) -> dict[str, Any]:
    """TrainingArguments."""
    found: dict[str, Any] = {}
    precision = str(settings.peek("train.precision") or "")
    zero = zero_json(settings)
    if zero is not None:
        found["deepspeed"] = zero
    kind, _, way = precision.partition("-")
    settings.skip("train.precision")
    if way:
        found[kind] = True
    found |= _recompute(settings)
    found["optim"] = optimizer_word(settings, "transformers")
    rank = settings.take("train.optimizer.rank")
    found["optim_args"] = f"rank={rank}" if rank else None
    found["attn_implementation"] = ATTENTION.get(str(settings.take("train.attention")))
    kernels = settings.take("train.kernels") or ()
    found["use_liger_kernel"] = True if "liger" in kernels else None
    if zero is None:
        found |= _sharding(settings)
    return found


def _recompute(settings: Settings) -> dict[str, Any]:
    policy, reentrant = settings.take("train.recompute.policy"), settings.take("train.recompute.reentrant")
    if policy is None:
        return {}
    found: dict[str, Any] = {"gradient_checkpointing": policy == "full"}
    if policy == "full" and reentrant is not None:
        found["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant}
    return found


def _sharding(settings: Settings) -> dict[str, Any]:
    """FSDP by the Trainer's keys."""
    zero = zero_json(settings)
    if zero is not None:
        return {"deepspeed": zero}
    sharding = str(settings.peek("train.sharding") or "")
    if not sharding.startswith("fsdp") and sharding != "hsdp":
        settings.skip("train.sharding")
        return {}
    settings.take("train.sharding")
    offload = settings.take("train.offload.params") == "cpu"
    if sharding.startswith("fsdp2"):
        config: dict[str, Any] = {"fsdp_version": 2, "reshard_after_forward": sharding == "fsdp2"}
    else:
        config = {"fsdp_version": 1, "fsdp_sharding_strategy": FSDP[sharding]}
    if offload:
        config["offload_params"] = True
    return {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": config} if not sharding.startswith("fsdp2") else {"fsdp_config": config}


def _adapter_trl(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = settings.take("train.adapter.kind")
    if kind in ("lora", "dora"):
        found |= {"use_peft": True, "lora_r": settings.take("train.adapter.rank"), "lora_alpha": settings.take("train.adapter.alpha")}
        found["lora_target_modules"] = settings.take("train.adapter.targets")
        found["lora_modules_to_save"] = settings.take("train.adapter.modules_to_save")
        found["lora_dropout"] = settings.take("train.extra.lora_dropout")
        found["use_dora"] = True if kind == "dora" else None
    return found | _packed(settings, "use_bnb_nested_quant")


def _packed(settings: Settings, double: str) -> dict[str, Any]:
    kind = settings.peek("train.quantization.format")
    if kind == "int8":
        settings.take("train.quantization.format")
        return {"load_in_8bit": True}
    if kind not in ("nf4", "fp4"):
        return {}
    settings.skip("train.quantization.format")
    found: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, double: settings.take("train.quantization.double")}
    storage = settings.take("train.quantization.storage")
    found["bnb_4bit_quant_storage"] = DTYPES.get(str(storage), storage)
    return found


def _adapter_axolotl(settings: Settings) -> dict[str, Any]:
    kind = settings.peek("train.adapter.kind")
    packed = settings.peek("train.quantization.format")
    if kind not in ("lora", "dora"):
        return {}
    settings.skip("train.adapter.kind")
    found: dict[str, Any] = {"adapter": "qlora" if packed in ("nf4", "fp4") else "lora", "peft_use_dora": True if kind == "dora" else None}
    found |= {"lora_r": settings.take("train.adapter.rank"), "lora_alpha": settings.take("train.adapter.alpha")}
    found["lora_dropout"] = settings.take("train.extra.lora_dropout")
    targets = settings.take("train.adapter.targets")
    found |= {"lora_target_linear": True} if targets == "all-linear" else {"lora_target_modules": targets}
    found["lora_modules_to_save"] = settings.take("train.adapter.modules_to_save")
    if packed == "gptq":
        settings.take("train.quantization.format")
        found["gptq"] = True
    elif packed is not None:
        inner = _packed(settings, "bnb_4bit_use_double_quant")
        found |= {key: inner.pop(key) for key in ("load_in_4bit", "load_in_8bit") if key in inner}
        rest = {key: value for key, value in inner.items() if value is not None}
        found["bnb_config_kwargs"] = rest or None
    return found


def _kind_llama_factory(settings: Settings) -> dict[str, Any]:
    kind = settings.peek("train.adapter.kind")
    if kind is None:
        return {"finetuning_type": "full"}
    if kind not in ("lora", "dora"):
        return {}
    settings.skip("train.adapter.kind")
    targets = settings.take("train.adapter.targets")
    found: dict[str, Any] = {"finetuning_type": "lora", "lora_rank": settings.take("train.adapter.rank"), "lora_alpha": settings.take("train.adapter.alpha")}
    found["lora_target"] = "all" if targets == "all-linear" else ",".join(targets) if targets else None
    found["additional_target"] = ",".join(settings.take("train.adapter.modules_to_save") or ()) or None
    found["lora_dropout"] = settings.take("train.extra.lora_dropout")
    found["use_dora"] = True if kind == "dora" else None
    packed = settings.peek("train.quantization.format")
    if packed in ("nf4", "fp4", "int8"):
        settings.skip("train.quantization.format", "train.quantization.storage")
        found |= {"quantization_bit": 8 if packed == "int8" else 4, "quantization_type": packed if packed != "int8" else None}
        found["double_quantization"] = settings.take("train.quantization.double")
    return found
