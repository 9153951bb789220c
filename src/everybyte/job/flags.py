"""The flags of `train` and `serve`: one table from flag to key path. Types and allowed words follow from the job's form, so they cannot drift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

HARDWARE_GROUP, BATCH, NUMBERS, ADAPTERS, SAVERS, PARALLEL, ENGINE, CACHE, MORE = (
    "Hardware",
    "Model code and batch",
    "Numbers and optimizer",
    "Adapters and quantization",
    "Memory savers",
    "Parallelism",
    "Engine and weights",
    "Context and cache",
    "Further settings",
)
"""Headings of --help."""


class Flag(NamedTuple):
    """A flag and the key that it sets. `implies` sets further keys, unless other flags do; with them the value may be left out."""

    name: str
    path: str
    help: str
    group: str
    implies: tuple[tuple[str, str], ...] = ()


HARDWARE = (
    Flag("--gpu", "hardware.gpu", "GPU, such as h100, 4090, 8xh200, or a size: 24GB.", HARDWARE_GROUP),
    Flag("--gpus", "hardware.gpus", "Number of GPUs of the whole job.", HARDWARE_GROUP),
    Flag("--gpus-per-node", "hardware.gpus_per_node", "GPUs in one machine.", HARDWARE_GROUP),
    Flag("--host-memory-gib", "hardware.host_memory_gib", "Host memory per machine, in GiB.", HARDWARE_GROUP),
    Flag("--alloc-conf", "env.alloc_conf", "PYTORCH_CUDA_ALLOC_CONF.", HARDWARE_GROUP),
    Flag("--name", "name", "Name of the job in answers.", MORE),
)

LORA = (("train.adapter.kind", "lora"),)

TRAIN = (
    *HARDWARE,
    Flag("--framework", "train.framework", "Whose code runs the step.", BATCH),
    Flag("--framework-version", "train.version", "Its release, such as 'transformers 4.48'.", BATCH),
    Flag("--micro-batch", "train.micro_batch", "Sequences per GPU and micro-batch.", BATCH),
    Flag("--seq-len", "train.seq_len", "Tokens per sequence.", BATCH),
    Flag("--tokens", "train.tokens", "Tokens per micro-batch, when sequences are packed.", BATCH),
    Flag("--grad-accum", "train.grad_accum", "Micro-batches per step.", BATCH),
    Flag("--algorithm", "train.extra.rlhf_type", "Preference training: dpo, kto, orpo, grpo, rloo, ppo, rm.", BATCH),
    Flag("--precision", "train.precision", "Numbers of weights and compute.", NUMBERS),
    Flag("--weights-dtype", "train.dtypes.weights", "What weights are stored in.", NUMBERS),
    Flag("--optimizer", "train.optimizer.name", "For example adamw, adamw-8bit, adafactor, sgd, muon.", NUMBERS),
    Flag("--optimizer-impl", "train.optimizer.impl", "How PyTorch runs its step.", NUMBERS),
    Flag("--optimizer-dtype", "train.optimizer.state_dtype", "Format of the optimizer's states.", NUMBERS),
    Flag("--optimizer-in-backward", "train.optimizer.in_backward", "Each parameter steps as soon as its gradient is there.", NUMBERS),
    Flag("--paged", "train.optimizer.paged", "Optimizer states may move to the host.", NUMBERS),
    Flag("--grad-clip", "train.grad_clip", "Largest norm of the gradients.", NUMBERS),
    Flag("--lora", "train.adapter.rank", "LoRA, of this rank.", ADAPTERS, LORA),
    Flag("--qlora", "train.adapter.rank", "LoRA, of this rank, over NF4 weights.", ADAPTERS, (*LORA, ("train.quantization.format", "nf4"))),
    Flag("--dora", "train.adapter.rank", "DoRA, of this rank.", ADAPTERS, (("train.adapter.kind", "dora"),)),
    Flag("--adapter", "train.adapter.kind", "Any other kind of adapter.", ADAPTERS),
    Flag("--lora-alpha", "train.adapter.alpha", "Scale of the adapter; no bytes depend on it.", ADAPTERS),
    Flag("--targets", "train.adapter.targets", "Modules with commas between, or all-linear.", ADAPTERS),
    Flag("--adapter-dtype", "train.adapter.dtype", "What adapter weights are stored in.", ADAPTERS),
    Flag("--quantization", "train.quantization.format", "Format of the frozen base weights.", ADAPTERS),
    Flag("--double-quantization", "train.quantization.double", "The scales are quantized as well.", ADAPTERS),
    Flag("--freeze", "train.freeze", "Patterns of modules that are not trained, with commas between.", ADAPTERS),
    Flag("--recompute", "train.recompute.policy", "Activation checkpointing.", SAVERS),
    Flag("--recompute-every", "train.recompute.every", "Checkpoint each n-th layer only.", SAVERS),
    Flag("--offload-optimizer", "train.offload.optimizer", "Where optimizer states wait.", SAVERS),
    Flag("--offload-params", "train.offload.params", "Where weights wait.", SAVERS),
    Flag("--offload-activations", "train.offload.activations", "Where kept activations wait.", SAVERS),
    Flag("--attention", "train.attention", "Whose attention runs.", SAVERS),
    Flag("--loss", "train.loss.kind", "Whose cross entropy runs.", SAVERS),
    Flag("--loss-chunks", "train.loss.chunks", "Pieces of a chunked loss.", SAVERS),
    Flag("--kernels", "train.kernels", "Fused kernels with commas between, such as liger.", SAVERS),
    Flag("--compile", "train.compile", "torch.compile.", SAVERS),
    Flag("--sharding", "train.sharding", "What data-parallel GPUs share.", PARALLEL),
    Flag("--tp", "train.mesh.tp", "Tensor-parallel GPUs.", PARALLEL),
    Flag("--sp", "train.mesh.sp", "Sequence parallel, beside --tp.", PARALLEL),
    Flag("--cp", "train.mesh.cp", "Context-parallel GPUs.", PARALLEL),
    Flag("--pp", "train.mesh.pp", "Pipeline stages.", PARALLEL),
    Flag("--ep", "train.mesh.ep", "Expert-parallel GPUs.", PARALLEL),
    Flag("--dp-shard", "train.mesh.dp_shard", "GPUs that share the states.", PARALLEL),
    Flag("--dp-replicate", "train.mesh.dp_replicate", "Groups that hold the same shards.", PARALLEL),
    Flag("--schedule", "train.pipeline.schedule", "Order of forward and backward in a pipeline.", PARALLEL),
    Flag("--microbatches", "train.pipeline.microbatches", "Micro-batches per step of a pipeline.", PARALLEL),
    Flag("--dropout", "train.dropout", "Dropout, if it is not the model's.", MORE),
)

SERVE = (
    *HARDWARE,
    Flag("--engine", "serve.engine", "Whose memory rules apply.", ENGINE),
    Flag("--engine-version", "serve.version", "Its release.", ENGINE),
    Flag("--weights", "serve.weights.format", "Format of the weights, such as bf16, fp8, awq, q4_k_m.", ENGINE),
    Flag("--weights-bits", "serve.weights.bits", "Mean bits per weight (exl3, mlx).", ENGINE),
    Flag("--group-size", "serve.weights.group_size", "Weights that share a scale.", ENGINE),
    Flag("--memory-fraction", "serve.memory_fraction", "Share of the GPU that the engine may use.", ENGINE),
    Flag("--cuda-graphs", "serve.cuda_graphs", "Whether CUDA graphs are captured.", ENGINE),
    Flag("--attention", "serve.attention", "Whose attention runs.", ENGINE),
    Flag("--gpu-layers", "serve.gpu_layers", "Layers on the GPU (llama.cpp); -1 is all.", ENGINE),
    Flag("--context", "serve.context", "Tokens per sequence, such as 32k or max.", CACHE),
    Flag("--sequences", "serve.sequences", "Sequences at once.", CACHE),
    Flag("--kv-dtype", "serve.kv_dtype", "Format of the KV cache, such as fp8 or q8_0.", CACHE),
    Flag("--batched-tokens", "serve.batched_tokens", "Tokens that are computed at once.", CACHE),
    Flag("--ubatch", "serve.ubatch", "Tokens that llama.cpp computes at once.", CACHE),
    Flag("--block-size", "serve.block_size", "Tokens per page of the cache.", CACHE),
    Flag("--parallel-slots", "serve.parallel_slots", "Sequences of llama.cpp's server.", CACHE),
    Flag("--swa-full", "serve.swa_full", "Sliding-window layers keep the whole context.", CACHE),
    Flag("--tp", "serve.mesh.tp", "Tensor-parallel GPUs.", PARALLEL),
    Flag("--pp", "serve.mesh.pp", "Pipeline stages.", PARALLEL),
    Flag("--dp", "serve.mesh.dp", "Data-parallel replicas.", PARALLEL),
    Flag("--ep", "serve.mesh.ep", "Expert-parallel GPUs.", PARALLEL),
    Flag("--draft", "serve.draft.method", "Speculative decoding: mtp, eagle3 ...", MORE),
    Flag("--draft-tokens", "serve.draft.tokens", "Tokens guessed at once.", MORE),
    Flag("--lora", "serve.lora.rank", "Adapters are served; their largest rank.", MORE),
    Flag("--lora-count", "serve.lora.count", "Adapters held at once.", MORE),
)

TABLES = {"train": TRAIN, "serve": SERVE}
_BY_PATH = {(purpose, flag.path): flag.name for purpose, flags in TABLES.items() for flag in reversed(flags)}


def as_flags(changes: Mapping[str, Any], purpose: str) -> str:
    """`--recompute full --micro-batch 1`: key paths and values as they are typed."""
    left = dict(changes)
    words = []
    if left.get("train.adapter.kind") in ("lora", "dora"):
        rank = left.pop("train.adapter.rank", None)
        words.append(f"--{left.pop('train.adapter.kind')}" + (f" {rank}" if rank else ""))
    elif "train.adapter.rank" in left:
        words.append(f"--lora {left.pop('train.adapter.rank')}")
    if "serve.kv_dtype.k" in left:
        keys, values = left.pop("serve.kv_dtype.k"), left.pop("serve.kv_dtype.v", None)
        left |= {"serve.kv_dtype": keys} if values in (None, keys) else {"serve.kv_dtype.k": keys, "serve.kv_dtype.v": values}
    for path, value in left.items():
        name = _BY_PATH.get((purpose, path))
        if name is None:
            words.append(f"--set {path}={_plain(value)}")
        elif isinstance(value, bool):
            words.append(name if value else f"--no-{name.removeprefix('--')}")
        else:
            words.append(f"{name} {_plain(value)}")
    return " ".join(words)


def _plain(value: Any) -> str:
    """A value as a command line has it; lists with commas between."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
