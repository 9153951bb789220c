"""Accounts for `out = model(ids, labels=ids); out.loss.backward(); optimizer.step(); optimizer.zero_grad()`."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.catalog.releases import release_in, stated
from everybyte.engines.pytorch import automodel
from everybyte.engines.pytorch.extra import Keys
from everybyte.job import Job, Train
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.conventions import PLAIN, Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.over_gpus import spread
from everybyte.rules.from_job.parallel_plan import rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.step.cache import stores
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training


def loss(train: Train, choices: ResolvedSettings) -> str:
    """The loop holds the model's output while backward runs, logits included, unless train.extra.keeps_outputs is false."""
    kind = train.loss.kind if train.loss else None
    if kind not in (None, "standard", "fused-linear"):
        raise Unsupported(
            "train.loss.kind", f"{kind!r} is not supported for a plain loop, which may write it in many ways; supported: standard and fused-linear"
        )
    if kind == "fused-linear":
        return "fused-linear"
    kernels = train.kernels or ()
    if "cut-cross-entropy" in kernels:
        return "cut"
    if "foak-ce" in kernels:
        return "foak-as-made"
    if is_llm_foundry(train):
        choices.assume("llm-foundry's loss is flash-attn's fused cross entropy on the logits as they are (loss_fn: fused_crossentropy)")
        return "flash-attn"
    narrow = (train.loss.logits_dtype if train.loss else None) in ("bf16", "fp16")
    if not section(train.extra, Keys).keeps_outputs:
        return "narrow" if narrow else "hf"
    choices.assume("the loop keeps the model's output, with its logits, until backward has run")
    return "narrow-outputs-alive" if narrow else "hf-outputs-alive"


def is_llm_foundry(train: Train) -> bool:
    """Whether the loop is llm-foundry's: Composer's trainer around MPT, with a fused loss and norms in low precision."""
    return "llm-foundry" in stated(train.version)


DEFAULTS = Defaults("PyTorch", precision="fp32", loss=loss, batch_bytes_per_token=16)


def defaults(train: Train) -> Defaults:
    """A loop passes ids and labels alone: SDPA is causal without a mask, but for the versions that make one."""
    masked = release_in(train.version, "transformers").has("makes_masks") and not section(train.extra, Keys).use_cache
    kernels = Kernels(masked=masked or section(train.extra, Keys).padded, norm="narrow" if is_llm_foundry(train) else "eager")
    conventions = Conventions(wraps="accelerate") if train.framework == "accelerate" else PLAIN
    return replace(DEFAULTS, kernels=automodel.kernels(kernels) if automodel.is_automodel(train) else kernels, conventions=conventions)


JOINED = frozenset({"key", "value", "latent", "rotary key"})
"""Caches whose copies layers declare (layers.ops.join)."""


def with_cache(train: Train, network: Network, recipe: Recipe, choices: ResolvedSettings) -> Recipe:
    """The recipe of a loop that leaves the cache of keys and values on, if it says so. A model that recomputes its blocks itself gives them none
    (transformers modeling_layers.py); blocks that are wrapped from outside, as FSDP's checkpoint wrapper does, know nothing of it and return keys and
    values, which the output holds."""
    caches = {cache.name if cache.kind == "kv" else cache.kind for store in stores(network) for cache in store.caches}
    recomputes = recipe.recompute.mode != "none"
    if not caches or (recomputes and not _wraps_blocks(train)):
        return recipe
    if not section(train.extra, Keys).use_cache:
        choices.assume("the model's KV cache is off; a loop that leaves config.use_cache on says so with train.extra.use_cache")
        return recipe
    if not caches <= JOINED:
        raise Unsupported("train.extra.use_cache", f"{network.family} caches more than keys and values, whose copies are not supported; supported: false")
    if not recomputes and not release_in(train.version, "transformers").has("cache_joins"):
        raise Unsupported("train.extra.use_cache", "needs transformers 4.56 or later, whose cache copies its input; false works with all")
    life: Literal["forward", "backward"] = "backward" if section(train.extra, Keys).keeps_outputs else "forward"
    return replace(recipe, setup=replace(recipe.setup, kernels=replace(recipe.setup.kernels, past=life)))


def _wraps_blocks(train: Train) -> bool:
    """Whether recomputing is put around the blocks from outside (torch's apply_activation_checkpointing), as loops with FSDP do."""
    return (train.sharding or "").startswith(("fsdp", "hsdp"))


def _refuse_pipelines(train: Train) -> None:
    """A pipeline's script has more on the device than the model that it trains: text encoders, an autoencoder."""
    library = section(train.extra, Keys).library
    if library not in ("transformers", "timm"):
        raise Unsupported(
            "train.extra.library", f"{library!r}: the other models of its pipelines are not in the job and not supported; supported: one model in a loop"
        )


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a plain loop. Data-parallel ranks are alike."""
    assert job.train is not None
    choices = ResolvedSettings()
    _refuse_pipelines(job.train)
    if automodel.is_automodel(job.train):
        choices.assume("where the job is silent, NeMo Automodel is taken to do as a plain loop does; its own defaults are not worked out")
    usual = defaults(job.train)
    recipe = recipe_of(job.train, network, usual, choices)
    recipe = with_cache(job.train, network, replace(recipe, empties_cache=section(job.train.extra, Keys).empty_cache), choices)
    found = spread(job.train, job.hardware, network, recipe, usual, choices)
    own, recipe = automodel.by_parts(network, found.recipe) if automodel.is_automodel(job.train) else (network, found.recipe)
    bill = training(own, recipe, device.compute_capability, layout=found.layout)
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)
