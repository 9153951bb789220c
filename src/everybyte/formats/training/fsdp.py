"""FSDP as accelerate, transformers and axolotl write it: keys with and without the prefix `fsdp_`, words and numbers for strategies, versions 1 and 2."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.values import boolean, whole

STRATEGIES = {
    "1": "fsdp1",
    "full_shard": "fsdp1",
    "2": "fsdp1-grad-op",
    "shard_grad_op": "fsdp1-grad-op",
    "3": "ddp",
    "no_shard": "ddp",
    "4": "hsdp",
    "hybrid_shard": "hsdp",
    "5": "hsdp",
    "hybrid_shard_zero2": "hsdp",
    "_hybrid_shard_zero2": "hsdp",
}
"""ShardingStrategy of torch by name and number -> the job's word."""

KEPT = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states", "auto_wrap_policy", "min_num_params")
"""Settings that change memory or the load, kept by their own names."""

QUIET = (
    "state_dict_type",
    "transformer_layer_cls_to_wrap",
    "final_state_dict_type",
    "cpu_offload_pin_memory",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_settings",
    "xla_fsdp_grad_ckpt",
    "shard_size",
    "mixed_precision_policy",
)


def plain(settings: Bag) -> Bag:
    """The settings without the prefix of their names."""
    pairs = [(key.removeprefix("fsdp_") if key != "fsdp_version" else "version", given) for key in settings if (given := settings.take(key)) is not None]
    return Bag(pairs)


def read_fsdp(settings: Bag, draft: JobDraft, *, usual_version: int, framework: str, strategy: Given | None = None, version: Given | None = None) -> None:
    """States what `fsdp_config` means. `strategy` and `version` are those written beside it, which the inner ones replace."""
    inner = plain(settings)
    version = inner.take("version") or version
    number = (whole(version.value) if version else None) or usual_version
    strategy = inner.take("sharding_strategy") or strategy
    reshard = inner.take("reshard_after_forward")
    _sharding(draft, number, strategy, reshard, framework)
    offload = inner.take("offload_params", "cpu_offload", "offload")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.params", "cpu", offload.place)
    if (recompute := inner.take("activation_checkpointing")) is not None and boolean(recompute.value):
        draft.state("train.recompute.policy", "full", recompute.place)
    _kept(inner, draft)
    _odd(draft, number, version, offload, inner)
    draft.report(inner)


def _sharding(draft: JobDraft, version: int, strategy: Given | None, reshard: Given | None, framework: str) -> None:
    word = STRATEGIES.get(str(strategy.value).casefold().strip()) if strategy else None
    if version >= 2:
        keeps = reshard is not None and boolean(reshard.value) is False
        keeps = keeps or word == "fsdp1-grad-op" or (reshard is not None and STRATEGIES.get(str(reshard.value).casefold()) == "fsdp1-grad-op")
        origin = reshard or strategy
        sharding = "fsdp2-no-reshard" if keeps else "hsdp" if word == "hsdp" else "fsdp2"
    else:
        origin, sharding = strategy, word or "fsdp1"
        if strategy is None and reshard is not None and boolean(reshard.value) is False:
            origin, sharding = reshard, "fsdp1-grad-op"
    if origin is not None:
        draft.state("train.sharding", sharding, origin.place)
    else:
        draft.default("train.sharding", sharding, of=f"{framework}, FSDP version {version}")


def _kept(inner: Bag, draft: JobDraft) -> None:
    for key in KEPT:
        if (given := inner.take(key)) is not None:
            value = boolean(given.value) if isinstance(given.value, bool) or str(given.value).casefold() in ("true", "false") else given.value
            draft.state(f"train.extra.fsdp_{key}", value, given.place)
    efficient = inner.take("cpu_ram_efficient_loading")
    if efficient is not None:
        draft.state("train.extra.fsdp_cpu_ram_efficient_loading", boolean(efficient.value), efficient.place)
    inner.ignore(QUIET)


def _odd(draft: JobDraft, number: int, version: Given | None, offload: Given | None, inner: Bag) -> None:
    policy = inner.peek("auto_wrap_policy")
    if (policy is not None and str(policy.value).upper() == "NO_WRAP") or (
        policy is None
        and number == 1
        and inner.peek("transformer_layer_cls_to_wrap") is None
        and draft.framework == "accelerate"
        and "train.sharding" not in draft
    ):
        place = policy.place if policy else "fsdp_config"
        draft.find(
            "fsdp-no-wrap",
            "warning",
            place,
            "the whole model is one FSDP unit, so that every forward gathers all of it",
            "set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        )
    if offload is not None and boolean(offload.value) and version is None and number == 1:
        draft.find(
            "fsdp-offload-v1",
            "note",
            offload.place,
            "no FSDP version is written, so that version 1 offloads: parameters, gradients and the optimizer step are on the host",
            "set fsdp_version: 2 if that was meant",
        )
