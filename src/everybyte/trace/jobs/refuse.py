"""What of a job a trace cannot follow: each refusal names the key and a way round. Nothing of a job is silently left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from everybyte.basics.dtypes import FP32
from everybyte.basics.errors import Unsupported
from everybyte.engines.pytorch.extra import Keys
from everybyte.job import Job, Train
from everybyte.job.extra import section
from everybyte.rules.from_job.adapters import PREPARED
from everybyte.rules.step.recipe import Recipe
from everybyte.trace.jobs.optimizers import OPTIMIZERS

FOLLOWED = frozenset(
    {
        "framework",
        "version",
        "micro_batch",
        "seq_len",
        "tokens",
        "grad_accum",
        "precision",
        "dtypes.weights",
        "dtypes.compute",
        "dtypes.grads",
        "dtypes.master",
        "dtypes.optimizer",
        "optimizer.name",
        "optimizer.impl",
        "optimizer.state_dtype",
        "optimizer.paged",
        "adapter.kind",
        "adapter.rank",
        "adapter.alpha",
        "adapter.targets",
        "adapter.modules_to_save",
        "adapter.dtype",
        "adapter.trainable_params",
        "quantization.format",
        "quantization.bits",
        "quantization.group_size",
        "quantization.double",
        "quantization.kbit_prep",
        "quantization.storage",
        "freeze",
        "recompute.policy",
        "recompute.reentrant",
        "attention",
        "loss.kind",
        "loss.logits_dtype",
        "dropout",
        "zero_grad_set_to_none",
        "grad_clip",
        "extra.lora_dropout",
        "extra.keeps_outputs",
        "extra.empty_cache",
        "extra.packing",
        "extra.padded",
        "extra.use_cache",
        "extra.include_tokens_per_second",
    }
)
"""Keys of `train` that a trace follows, or that only say more about the same run."""
OWN_CODE = "trace a function or script of your own that does it"
HELP = {
    "kernels": "a trace of a job has transformers' own kernels; trace a script that applies the fused ones, or the same job without them",
    "compile": "torch.compile needs a real GPU; trace the eager job",
    "sharding": "the trace of a job runs one GPU; trace your own loop with --world",
    "mesh": "the trace of a job runs one GPU; trace your own loop with --world",
    "pipeline": "the trace of a job runs one GPU; trace your own loop with --world",
    "buckets": "the trace of a job runs one GPU; trace your own loop with --world",
    "offload": f"host memory is not traced from a job; {OWN_CODE}",
}
"""First part of a key -> why, and a way round."""
SIZES = ("mesh.", "pipeline.", "recompute.")
"""How keys begin for which one is none."""
ATTENTION_LOSSES = ("hf", "hf-outputs-alive", "hf-shifted", "hf-rebound", "hf-unraised")
ADAPTERS = ("lora", "rslora", "dora")


def refuse_job(job: Job, frameworks: Collection[str]) -> None:
    """Raises Unsupported for the first key that a trace does not follow."""
    if job.train is None:
        raise Unsupported("serve", "a trace of a job runs a training step; serving engines have CUDA kernels of their own: ask `everybyte estimate`")
    framework = job.train.framework or "pytorch"
    if framework not in frameworks:
        raise Unsupported("train.framework", f"{framework!r}: a trace of a job runs the loops of {', '.join(frameworks)}; trace {framework}'s own script")
    if ((job.hardware.gpus if job.hardware else None) or 1) > 1:
        raise Unsupported("hardware.gpus", HELP["mesh"])
    if job.given:
        raise Unsupported("given", "a trace computes every figure; leave it out")
    for key, value in _leaves(msgspec.to_builtins(job.train)):
        asks = value is not None and value is not False and value not in ("none", ()) and not (value == 1 and key.startswith(SIZES))
        if asks and key not in FOLLOWED:
            raise Unsupported(f"train.{key}", HELP.get(key.split(".")[0], f"a trace of a job does not follow it; leave it out, or {OWN_CODE}"))


def _leaves(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """`optimizer.name`, "adamw": the settings of a part of a job by their keys."""
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def refuse_recipe(train: Train, recipe: Recipe, *, mixture: bool) -> None:
    """Raises Unsupported for what the job's settings, with their defaults, come to and no program here does. `mixture`: the network has experts."""
    _refuse_kinds(recipe)
    kernels = recipe.setup.kernels
    if section(train.extra, Keys).padded and (not kernels.masked or kernels.attention == "flash"):
        raise Unsupported("train.extra.padded", "padded batches are traced in a plain loop (train.framework: pytorch) with sdpa or eager attention")
    plan, setup = recipe.optimizer, recipe.setup
    if mixture and setup.packed is not None and kernels.experts != "grouped":
        raise Unsupported("train.version", "experts were linear layers then, and packed; the installed transformers joins them: ask `everybyte estimate`")
    stepped = FP32 if setup.adapter is not None else setup.weights
    if plan.master is not None:
        raise Unsupported("train.precision", f"no optimizer of PyTorch keeps a master copy; bf16-mixed keeps fp32 weights, or {OWN_CODE}")
    if recipe.gradient not in (None, stepped):
        raise Unsupported("train.dtypes.grads", f"PyTorch's gradients have the type of their weights, {stepped.name}")
    if plan.state not in (None, stepped):
        raise Unsupported("train.dtypes.optimizer", f"PyTorch's optimizers keep states in the type of the weights, {stepped.name}")


def _refuse_kinds(recipe: Recipe) -> None:
    plan, setup = recipe.optimizer, recipe.setup
    adapter, kernels = setup.adapter, setup.kernels
    if plan.name not in OPTIMIZERS or plan.in_backward:
        raise Unsupported("train.optimizer.name", f"{plan.name!r} is none of those that a trace of a job has: {', '.join(sorted(OPTIMIZERS))}")
    if setup.packed is not None and setup.packed.format not in PREPARED:
        formats = ", ".join(PREPARED)
        raise Unsupported("train.quantization.format", f"{setup.packed.format!r}: a trace of a job has bitsandbytes' {formats}; ask `everybyte estimate`")
    if adapter is not None and adapter.kind not in ADAPTERS:
        raise Unsupported("train.adapter.kind", f"{adapter.kind!r}: a trace of a job has {', '.join(ADAPTERS)}; {OWN_CODE}")
    if kernels.loss not in ATTENTION_LOSSES:
        raise Unsupported("train.loss.kind", "a trace of a job has transformers' own losses: trace a script, or the job with the standard one")
    if kernels.attention == "flash" and (setup.compute or setup.weights) == FP32:
        raise Unsupported("train.attention", "flash attention runs in 16 bit; take sdpa, or a 16-bit precision")
