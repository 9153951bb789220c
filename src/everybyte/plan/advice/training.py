"""What can change in a training job, with its price."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.plan.advice.facts import Facts
from everybyte.plan.advice.move import Move, Settings

RANK = 16
"""Of a suggested LoRA: TRL's ModelConfig.lora_r."""
SHORTEST = 512
"""Tokens below which no shorter sequence is suggested."""
MOST_TP = 8
"""Tensor parallelism stays inside a node."""


def _is_adapter(f: Facts) -> bool:
    return f.get("train.adapter") is not None


def _recompute(f: Facts) -> Iterator[Settings]:
    if f.word("train.recompute.policy") != "full":
        yield {"train.recompute.policy": "full"}


def _fused_loss(f: Facts) -> Iterator[Settings]:
    if f.word("train.loss.kind") not in ("fused-linear", "chunked", "vocab-parallel") and "liger" not in (f.get("train.kernels") or ()):
        yield {"train.loss.kind": "fused-linear"}


def _micro_batch(f: Facts) -> Iterator[Settings]:
    size, accumulated = int(f.get("train.micro_batch", 1)), int(f.get("train.grad_accum", 1))
    if f.get("train.tokens") is None:
        sizes = [size // 2**k for k in range(1, 12) if size % 2**k == 0 and size // 2**k >= 1]
        for smaller in sizes:
            key = "train.pipeline.microbatches" if f.get("train.pipeline.microbatches") else "train.grad_accum"
            held = int(f.get(key, accumulated))
            yield {"train.micro_batch": smaller, key: held * (size // smaller)}


def _half_precision(f: Facts) -> Iterator[Settings]:
    if f.word("train.precision") == "fp32":
        yield {"train.precision": "bf16-mixed"}


def _pure_half(f: Facts) -> Iterator[Settings]:
    if f.word("train.precision") in ("fp32", "bf16-mixed", "bf16-master") and not _is_adapter(f):
        yield {"train.precision": "bf16"}


def _half_base(f: Facts) -> Iterator[Settings]:
    if _is_adapter(f) and f.get("train.dtypes.weights") is None and f.word("train.precision") in ("fp32", "bf16-mixed"):
        yield {"train.precision": "bf16-mixed", "train.dtypes.weights": "bf16"}


def _small_optimizer(f: Facts) -> Iterator[Settings]:
    if f.word("train.optimizer.name") in ("adamw", "adam"):
        yield {"train.optimizer.name": "adamw-8bit"}


def _offload_optimizer(f: Facts) -> Iterator[Settings]:
    if f.word("train.offload.optimizer") in ("", "none"):
        yield {"train.offload.optimizer": "cpu"}


def _offload_params(f: Facts) -> Iterator[Settings]:
    if f.word("train.offload.params") in ("", "none") and f.gpus > 1:
        yield {"train.offload.params": "cpu"}


def _offload_activations(f: Facts) -> Iterator[Settings]:
    if f.word("train.offload.activations") in ("", "none"):
        full = {} if f.word("train.recompute.policy") == "full" else {"train.recompute.policy": "full"}
        yield {**full, "train.offload.activations": "cpu"}


def _shards(f: Facts) -> Iterator[Settings]:
    if f.gpus > 1 and f.word("train.sharding") in ("none", "ddp", "zero1", "zero2"):
        yield from ({"train.sharding": word} for word in ("zero2", "fsdp2", "zero3", "fsdp1", "distributed-optimizer") if word != f.word("train.sharding"))


def _lora(f: Facts) -> Iterator[Settings]:
    if not _is_adapter(f):
        yield {"train.adapter.kind": "lora", "train.adapter.rank": RANK, "train.precision": "bf16-mixed", "train.dtypes.weights": "bf16"}


def _qlora(f: Facts) -> Iterator[Settings]:
    for lora in _lora(f):
        yield {**lora, "train.quantization.format": "nf4"}


def _packed_base(f: Facts) -> Iterator[Settings]:
    if _is_adapter(f) and f.get("train.quantization") is None:
        yield {"train.precision": "bf16-mixed", "train.dtypes.weights": "bf16", "train.quantization.format": "nf4"}


def _shorter(f: Facts) -> Iterator[Settings]:
    length = int(f.get("train.seq_len", 0))
    if f.get("train.tokens") is None:
        yield from ({"train.seq_len": length // 2**k} for k in range(1, 12) if length % 2**k == 0 and length // 2**k >= SHORTEST)


def _tensor_parallel(f: Facts) -> Iterator[Settings]:
    tp = int(f.get("train.mesh.tp", 1))
    if f.word("train.framework") in ("megatron", "nemo") and f.gpus > 1:
        yield from ({"train.mesh.tp": 2 * tp * 2**k, "train.mesh.sp": True} for k in range(3) if 2 * tp * 2**k <= min(MOST_TP, f.gpus))


def _stages(f: Facts) -> Iterator[Settings]:
    pp = int(f.get("train.mesh.pp", 1))
    if f.word("train.framework") in ("megatron", "nemo", "torchtitan") and f.gpus > 1:
        yield from ({"train.mesh.pp": pp * 2**k} for k in range(1, 6) if pp * 2**k <= f.gpus)


OF_FULL_TRAINING = ("16-bit base", "16-bit compute", "pure 16 bit", "8-bit optimizer", "checkpointing")
"""Moves that an adapter makes needless, or brings with it."""

TRAINING: tuple[Move, ...] = (
    Move("16-bit compute", 1, "16-bit compute, as is usual; weights and optimizer stay in fp32", _half_precision),
    Move("16-bit base", 1, "the frozen weights in 16 bit, as is usual", _half_base, excludes=("16-bit compute",)),
    Move("fused loss", 1, "needs Liger's fused loss; the result is the same", _fused_loss),
    Move("checkpointing", 2, "about a third more compute time", _recompute, excludes=("offloaded activations",)),
    Move("shards", 2, "weights travel between GPUs in every layer", _shards),
    Move("smaller micro-batch", 2, "the same batch in more, smaller pieces: a little slower", _micro_batch),
    Move("8-bit optimizer", 3, "needs bitsandbytes; losses differ a little", _small_optimizer),
    Move("tensor parallel", 3, "activations travel between GPUs in every layer", _tensor_parallel),
    Move("pipeline", 3, "GPUs wait for one another at the ends of a step", _stages),
    Move("offloaded activations", 4, "kept activations wait in host memory: slower", _offload_activations),
    Move("offloaded optimizer", 4, "optimizer states wait in host memory: the step is slower", _offload_optimizer),
    Move("offloaded weights", 5, "weights wait in host memory: much slower", _offload_params, excludes=("offloaded optimizer",)),
    Move("pure 16 bit", 5, "weights and optimizer in 16 bit: small updates are rounded away", _pure_half, excludes=("16-bit compute",)),
    Move("4-bit base", 5, "QLoRA: the frozen weights in 4 bit, a little slower", _packed_base, changes_objective=True, excludes=("16-bit base",)),
    Move("LoRA", 6, "trains an adapter, not all weights", _lora, changes_objective=True, restarts=True, excludes=("QLoRA", *OF_FULL_TRAINING)),
    Move("QLoRA", 7, "trains an adapter over 4-bit weights", _qlora, changes_objective=True, restarts=True, excludes=("LoRA", *OF_FULL_TRAINING)),
    Move("shorter sequences", 7, "longer texts are cut", _shorter, changes_objective=True),
)
"""In the order of what they cost."""
