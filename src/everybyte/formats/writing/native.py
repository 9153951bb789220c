"""Megatron-LM, torchtune, torchtitan and LitGPT: frameworks with models and loops of their own."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.formats.training.builders import models_of
from everybyte.formats.writing.parts import command_text, flags_of, model_text, optimizer_word, yaml_text
from everybyte.formats.writing.settings import Settings, Text
from everybyte.formats.writing.tables import from_table, nested

TO_TUNE = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")


def megatron(settings: Settings) -> Text:
    """A `torchrun pretrain_gpt.py` command."""
    model_ranks = 1
    for axis in ("tp", "pp", "cp"):
        model_ranks *= settings.peek(f"train.mesh.{axis}") or 1
    gpus, each = settings.take("hardware.gpus") or model_ranks, settings.take("hardware.gpus_per_node")
    settings.skip("hardware.gpu")
    per_node = min(each or 8, gpus)
    flags: dict[str, Any] = {"use_mcore_models": True} | _shape(settings) | _megatron_step(settings)
    micro, accum = settings.peek("train.micro_batch"), settings.take("train.grad_accum")
    stated = settings.take("train.extra.global-batch-size")
    ranks = gpus // model_ranks
    flags["global_batch_size"] = stated or (micro * accum * ranks if micro and accum and ranks else None)
    settings.skip("train.mesh.dp_shard", "train.mesh.dp_replicate")
    flags |= from_table(settings, "training/megatron.csv")
    if settings.peek("model.shape.kv_heads"):
        flags |= {"group_query_attention": True, "num_query_groups": settings.take("model.shape.kv_heads")}
    program = f"torchrun --nproc_per_node {per_node} --nnodes {max(gpus // per_node, 1)} pretrain_gpt.py"
    return Text(command_text(program, flags_of(flags)), settings.left())


def _shape(settings: Settings) -> dict[str, Any]:
    """Flags for what has no row of its own: words, and Megatron's defaults turned off."""
    if isinstance(settings.peek("model"), str):
        raise Unsupported("model", "Megatron-LM's flags hold sizes and no name; give the job a model.shape, or export to nemo or ms-swift's form")
    found: dict[str, Any] = {}
    activation, norm, position = (settings.take(f"model.shape.{key}") for key in ("activation", "norm", "position"))
    found[{"swiglu": "swiglu", "squared-relu": "squared_relu", "geglu": "quick_geglu"}.get(str(activation), "openai_gelu")] = (
        True if activation != "gelu" else None
    )
    found["normalization"] = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}.get(str(norm))
    found["position_embedding_type"] = {"rope": "rope", "none": "none", "learned": "learned_absolute"}.get(str(position))
    found["untie_embeddings_and_output_weights"] = True if settings.take("model.shape.tied") is False else None
    found["disable_bias_linear"] = True if settings.take("model.shape.bias") is False else None
    settings.skip("model.shape.family", "model.shape.padded_vocab")
    vocab = settings.take("model.shape.vocab")
    found["vocab_size"] = vocab
    layers = settings.take("model.shape.moe_layers")
    total = settings.peek("model.shape.layers")
    if layers is not None and total:
        found["moe_layer_freq"] = "([" + ",".join("1" if index in layers else "0" for index in range(total)) + "])"
    found["multi_latent_attention"] = True if settings.below("model.shape.mla") else None
    window = settings.take("model.shape.sliding_window")
    found["window_size"] = f"({window},0)" if window else None
    return found


def _megatron_step(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    precision = str(settings.take("train.precision") or "")
    if precision.endswith("-master"):
        found[precision.partition("-")[0]] = True
    elif precision == "fp8":
        found |= {"bf16": True, "fp8_format": settings.take("train.extra.fp8-format") or "hybrid"}
    word = {"distributed-optimizer": "use_distributed_optimizer", "megatron-fsdp": "use_megatron_fsdp", "fsdp2": "use_torch_fsdp2"}.get(
        str(settings.take("train.sharding"))
    )
    if word:
        found[word] = True
    dropout = settings.take("train.dropout")
    if dropout is not None:
        found |= {"attention_dropout": dropout, "hidden_dropout": dropout}
    name = settings.take("train.optimizer.name")
    found["optimizer"] = {"adamw": "adam"}.get(str(name), name)
    settings.skip("train.pipeline.schedule")
    found["num_virtual_stages_per_pipeline_rank"] = settings.take("train.pipeline.virtual")
    found["sequence_parallel"] = settings.take("train.mesh.sp")
    if settings.take("train.offload.optimizer") == "cpu":
        found["optimizer_cpu_offload"] = True
    grads, reduced = settings.peek("train.dtypes.grads"), settings.take("train.dtypes.reduce")
    if grads == "bf16" and reduced in (None, "bf16"):
        settings.take("train.dtypes.grads")
        found["grad_reduce_in_bf16"] = True
    elif grads == "fp32":
        settings.take("train.dtypes.grads")
        found["accumulate_allreduce_grads_in_fp32"] = True
    moment = settings.peek("train.dtypes.optimizer")
    if moment is not None:
        found["exp_avg_sq_dtype"] = moment
    return found


def torchtune(settings: Settings) -> Text:
    """A configuration for `tune run`."""
    model = model_text(settings)
    builder = next((name for name, known in models_of("torchtune").items() if known == model), None)
    if builder is None:
        raise Unsupported("model", f"torchtune has no builder for {model} that is known here")
    family = builder.rsplit("_", 1)[0].replace("_instruct", "")
    kind, packed = settings.take("train.adapter.kind"), settings.take("train.quantization.format")
    prefix = ("q" if packed == "nf4" else "") + {"lora": "lora_", "dora": "dora_"}.get(str(kind), "")
    found: dict[str, Any] = {"model._component_": f"torchtune.models.{family}.{prefix}{builder}"}
    if kind is not None:
        targets = settings.take("train.adapter.targets") or ()
        found["model.lora_attn_modules"] = [TO_TUNE[name] for name in targets if name in TO_TUNE]
        found["model.apply_lora_to_mlp"] = all(name in targets for name in MLP)
        found["model.apply_lora_to_output"] = "lm_head" in targets
    found |= _tune_step(settings)
    found |= from_table(settings, "training/torchtune.csv")
    return Text(yaml_text(nested({key: value for key, value in found.items() if value is not None})), settings.left())


def _tune_step(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": settings.take("train.precision"), "optimizer._component_": optimizer_word(settings, "torch")}
    impl = settings.take("train.optimizer.impl")
    found["optimizer.fused"] = True if impl == "fused" else None
    found["optimizer_in_bwd"] = settings.take("train.optimizer.in_backward")
    policy = settings.take("train.recompute.policy")
    found["enable_activation_checkpointing"] = None if policy is None else policy == "full"
    found["enable_activation_offloading"] = True if settings.take("train.offload.activations") == "cpu" else None
    found["fsdp_cpu_offload"] = True if settings.take("train.offload.params") == "cpu" else None
    sharding = settings.take("train.sharding")
    found["fsdp_reshard_after_forward"] = False if sharding == "fsdp2-no-reshard" else None
    loss = settings.take("train.loss.kind")
    words = {"chunked": "torchtune.modules.loss.LinearCrossEntropyLoss", "standard": "torch.nn.CrossEntropyLoss"}
    found["loss._component_"] = words.get(str(loss))
    settings.skip("hardware.gpus", "hardware.gpu", "hardware.gpus_per_node")
    return found


def torchtitan(settings: Settings) -> Text:
    """The TOML of torchtitan until v0.2.2."""
    model = model_text(settings)
    builder = next((name for name, known in models_of("torchtitan").items() if known == model), None)
    if builder is None:
        raise Unsupported("model", f"torchtitan has no flavor for {model} that is known here")
    name, _, flavor = builder.partition(" ")
    found: dict[str, Any] = {"model.name": name, "model.flavor": flavor.upper().replace("X", "x").replace("17B", "17b") if name != "llama4" else flavor}
    precision, sharding = settings.take("train.precision"), settings.take("train.sharding")
    if precision in ("bf16", "fp16"):
        found["training.dtype"] = {"bf16": "bfloat16", "fp16": "float16"}[precision]
    elif precision == "fp32":
        found["training.mixed_precision_param"] = "float32"
    elif precision == "fp8":
        found["model.converters"] = ["quantize.linear.float8"]
    found["parallelism.fsdp_reshard_after_forward"] = "never" if sharding == "fsdp2-no-reshard" else None
    shards = settings.take("train.mesh.dp_shard")
    found["parallelism.data_parallel_shard_degree"] = 1 if sharding in ("none", "ddp") else shards
    policy, every = settings.take("train.recompute.policy"), settings.take("train.recompute.every")
    found["activation_checkpoint.mode"] = policy
    found["activation_checkpoint.selective_ac_option"] = str(every) if every else None
    found["training.enable_cpu_offload"] = True if settings.take("train.offload.params") == "cpu" else None
    found["optimizer.implementation"] = settings.take("train.optimizer.impl")
    if settings.peek("train.optimizer.name") == "adamw":
        settings.take("train.optimizer.name")
        found["optimizer.name"] = "AdamW"
    if settings.peek("train.grad_accum") == 1:
        settings.take("train.grad_accum")
    settings.skip("hardware.gpus", "hardware.gpu", "hardware.gpus_per_node")
    found |= from_table(settings, "training/torchtitan.csv")
    return Text(_toml(nested({key: value for key, value in found.items() if value is not None})), settings.left())


def _toml(content: dict[str, Any]) -> str:
    """Sections of plain values as TOML."""
    import json

    parts = []
    for section, values in content.items():
        lines = [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def litgpt(settings: Settings) -> Text:
    """LitGPT's YAML."""
    model = model_text(settings)
    words = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true", "bf16-mixed": "bf16-mixed", "fp16-mixed": "16-mixed"}
    found: dict[str, Any] = {"checkpoint_dir": f"checkpoints/{model}", "precision": words.get(str(settings.take("train.precision")))}
    packed, double = settings.take("train.quantization.format"), settings.take("train.quantization.double")
    if packed is not None:
        found["quantize"] = "bnb." + packed + ("-dq" if double else "")
    gpus, each = settings.take("hardware.gpus") or 1, settings.take("hardware.gpus_per_node")
    settings.skip("hardware.gpu", "train.sharding")
    found |= {"devices": each or gpus, "num_nodes": max(gpus // each, 1) if each else 1}
    if settings.take("train.adapter.kind") == "lora":
        targets = settings.take("train.adapter.targets") or ()
        for key, module in (
            ("lora_query", "q_proj"),
            ("lora_key", "k_proj"),
            ("lora_value", "v_proj"),
            ("lora_projection", "o_proj"),
            ("lora_head", "lm_head"),
        ):
            found[key] = targets == "all-linear" or module in targets
        found["lora_mlp"] = targets == "all-linear" or all(name in targets for name in MLP)
    micro, accum = settings.peek("train.micro_batch"), settings.take("train.grad_accum")
    if micro and accum:
        found["train.global_batch_size"] = micro * accum * gpus
    if settings.peek("train.optimizer.name") == "adamw":
        settings.skip("train.optimizer.name", "train.optimizer.impl")
        found["optimizer.class_path"] = "torch.optim.AdamW"
    found |= from_table(settings, "training/litgpt.csv")
    return Text(yaml_text(nested({key: value for key, value in found.items() if value is not None})), settings.left())
