"""Accounts for `out = model(ids, labels=ids); out.loss.backward(); optimizer.step(); optimizer.zero_grad()`."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.catalog.releases import release_in
from everybyte.engines.pytorch import automodel, prime_rl, xtuner
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels
from everybyte.rules.accounting.account import Account, Device
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
    if "cut-cross-entropy" in (train.kernels or ()):
        return "cut"
    if not says(train, "keeps_outputs", default=True):
        return "hf"
    choices.assume("the loop keeps the model's output, with its logits, until backward has run")
    return "hf-outputs-alive"


DEFAULTS = Defaults("PyTorch", precision="fp32", loss=loss, batch_bytes_per_token=16)

EXTRAS = {
    "padded": "batches have padding, so that SDPA gets a mask",
    "empty_cache": "the loop calls torch.cuda.empty_cache() between steps",
    "keeps_outputs": "the model's output, logits included, is held while backward runs",
    "use_cache": "config.use_cache stays on, as transformers has it, so that forward fills a KV cache",
}
"""Keys of train.extra that say more about the loop."""


def defaults(train: Train) -> Defaults:
    """A loop passes ids and labels alone: SDPA is causal without a mask, but for the versions that make one."""
    masked = release_in(train.version, "transformers").has("makes_masks") and not says(train, "use_cache")
    kernels = Kernels(masked=masked or says(train, "padded"))
    return replace(DEFAULTS, kernels=automodel.kernels(kernels) if automodel.is_automodel(train) else kernels)


JOINED = frozenset({"key", "value", "latent", "rotary key"})
"""Caches whose copies layers declare (layers.ops.join)."""


def with_cache(train: Train, network: Network, recipe: Recipe, choices: ResolvedSettings) -> Recipe:
    """The recipe of a loop that leaves the cache of keys and values on, if it says so. Recomputed blocks get none (transformers modeling_layers.py)."""
    caches = {cache.name if cache.kind == "kv" else cache.kind for store in stores(network) for cache in store.caches}
    if not caches or recipe.recompute.mode != "none":
        return recipe
    if not says(train, "use_cache"):
        choices.assume("the model's KV cache is off; a loop that leaves config.use_cache on says so with train.extra.use_cache")
        return recipe
    if not caches <= JOINED:
        raise Unsupported("train.extra.use_cache", f"{network.family} caches more than keys and values, whose copies are not supported; supported: false")
    if not release_in(train.version, "transformers").has("cache_joins"):
        raise Unsupported("train.extra.use_cache", "needs transformers 4.56 or later, whose cache copies its input; false works with all")
    life: Literal["forward", "backward"] = "backward" if says(train, "keeps_outputs", default=True) else "forward"
    return replace(recipe, setup=replace(recipe.setup, kernels=replace(recipe.setup.kernels, past=life)))


def says(train: Train, key: str, *, default: bool = False) -> bool:
    """Whether train.extra sets one of EXTRAS."""
    value = (train.extra or {}).get(key, default)
    if not isinstance(value, bool):
        raise BadInput(f"train.extra.{key}", f"must be true or false ({EXTRAS[key]}), not {value!r}")
    return value


def _refuse_pipelines(train: Train) -> None:
    """A pipeline's script has more on the device than the model that it trains: text encoders, an autoencoder."""
    library = (train.extra or {}).get("library", "transformers")
    if library not in ("transformers", "timm"):
        raise Unsupported(
            "train.extra.library", f"{library!r}: the other models of its pipelines are not in the job and not supported; supported: one model in a loop"
        )


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a plain loop. Data-parallel ranks are alike."""
    assert job.train is not None
    if prime_rl.is_prime_rl(job.train):
        return prime_rl.account(job, network, device)
    if xtuner.is_xtuner(job.train):
        return xtuner.account(job, network, device)
    choices = ResolvedSettings()
    _refuse_pipelines(job.train)
    usual = defaults(job.train)
    recipe = recipe_of(job.train, network, usual, choices)
    recipe = with_cache(job.train, network, replace(recipe, empties_cache=says(job.train, "empty_cache")), choices)
    found = spread(job.train, job.hardware, network, recipe, usual.framework, choices)
    own, recipe = automodel.by_parts(network, found.recipe) if automodel.is_automodel(job.train) else (network, found.recipe)
    bill = training(own, recipe, device.compute_capability, layout=found.layout)
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)
