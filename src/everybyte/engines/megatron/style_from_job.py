"""From the train section of a job to the choices of Megatron-LM: its arguments are keys of `train.extra`, under the names of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.engines.megatron.graphs import graphs_of
from everybyte.engines.megatron.kernels import Versions, attention_kernel
from everybyte.engines.megatron.network import Recomputed
from everybyte.engines.megatron.style import CrossEntropy, Dispatcher, Style
from everybyte.job import Train
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Modules that selective recomputing answers (recompute_modules)."""
PARKED = ("attn_norm", "attn_proj", "core_attn", "expert_fc1", "mlp_norm", "moe_act", "qkv_linear")
"""Modules whose kept tensors can be offloaded (offload_modules)."""
DISPATCHERS = ("allgather", "alltoall", "flex")
FUSIONS = ("native", "te")


def is_swift(extra: Mapping[str, Any]) -> bool:
    """Whether ms-swift runs Megatron-LM, with defaults of its own (swift/megatron/arguments/megatron_args.py)."""
    return extra.get("framework") == "ms-swift"


def style_of(train: Train, extra: Mapping[str, Any], capability: str, found: Versions, choices: ResolvedSettings) -> Style:
    """The implementations that run. Raises BadInput or Unsupported with the key's path."""
    nemo, swift = train.framework == "nemo", is_swift(extra)
    origin = default_of("Megatron-Bridge" if nemo else "Megatron-LM")
    te = choices.pick("train.extra.transformer-impl", extra.get("transformer-impl"), "transformer_engine", origin) != "local"
    rate = choices.pick("train.dropout", train.dropout, 0.0 if nemo else 0.1, origin)
    fused, graphs = bool(extra.get("cross-entropy-loss-fusion")), graphs_of(extra)
    return Style(
        te=te, attention=attention_kernel(train, extra, capability, te=te, drops=rate > 0), dropout=rate > 0,
        rope_fused=te and bool(extra.get("apply-rope-fusion", not extra.get("no-rope-fusion") and not swift)),
        rotary=_share(extra), qk_norm=bool(extra.get("qk-layernorm")),
        glu_fused=not extra.get("no-bias-swiglu-fusion"), relu_fused=bool(extra.get("use-fused-weighted-squared-relu")),
        wgrad_fused=not extra.get("no-gradient-accumulation-fusion"), deterministic=bool(extra.get("deterministic-mode")) and found.core.has("adds_by_index"),
        permute_fused=bool(extra.get("moe-permute-fusion")),
        dispatcher=cast("Dispatcher", _word(extra, "moe-token-dispatcher-type", DISPATCHERS, "alltoall" if nemo or swift else "allgather")),
        offloaded=offloaded_of(train, extra), capacity=_capacity(extra),
        pads_experts=bool(extra.get("moe-pad-expert-input-to-capacity")), forces_balance=bool(extra.get("moe-router-force-load-balancing")),
        late_weights=not found.core.has("weighs_early"), fp8=train.precision == "fp8", recompute=modules_of(train, choices),
        cross_entropy=cast("CrossEntropy", _word(extra, "cross-entropy-fusion-impl", FUSIONS, "native")) if fused else "eager",
        loads_mask=not extra.get("no-create-attention-mask-in-dataloader") and not (nemo or swift), binary_head=not extra.get("bert-no-binary-head"),
        mtp_repeated=bool(extra.get("mtp-use-repeated-layer")), captured=graphs.attention, replayed=graphs.at_start,
    )  # fmt: skip


def _word(extra: Mapping[str, Any], key: str, allowed: tuple[str, ...], usual: str) -> str:
    value = extra.get(key, usual)
    if value not in allowed:
        raise Unsupported(f"train.extra.{key}", f"{value!r} is not supported yet; supported: {', '.join(allowed)}")
    return str(value)


def _share(extra: Mapping[str, Any]) -> tuple[int, int]:
    """Share of each head that turns, as (numerator, denominator)."""
    value = extra.get("rotary-percent", 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise BadInput("train.extra.rotary-percent", f"must be a share above 0 and at most 1, not {value!r}")
    share = Fraction(value).limit_denominator(1024)
    return share.numerator, share.denominator


def _capacity(extra: Mapping[str, Any]) -> tuple[int, int]:
    """The capacity factor of experts as (numerator, denominator); a negative one is none (core/transformer/transformer_config.py)."""
    value = extra.get("moe-expert-capacity-factor")
    if value is None or (isinstance(value, int | float) and value < 0):
        if extra.get("moe-pad-expert-input-to-capacity"):
            raise BadInput("train.extra.moe-pad-expert-input-to-capacity", "needs moe-expert-capacity-factor: what experts are padded to")
        return 0, 1
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1024:
        raise BadInput("train.extra.moe-expert-capacity-factor", f"must be a factor above 0 and at most 1024, or negative for none, not {value!r}")
    factor = Fraction(value).limit_denominator(1024)
    return factor.numerator, factor.denominator


def modules_of(train: Train, choices: ResolvedSettings) -> tuple[str, ...]:
    """Modules that selective recomputing runs again."""
    given = train.recompute
    if given is None or given.policy != "selective":
        return ()
    modules = choices.pick("train.recompute.modules", given.modules, ("core_attn",), default_of("Megatron-LM"))
    wrong = next((name for name in modules if name not in MODULES), None)
    if wrong is not None:
        raise Unsupported("train.recompute.modules", f"{wrong!r} is not supported yet; supported: {', '.join(MODULES)}")
    return tuple(sorted(modules))


def offloaded_of(train: Train, extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules whose kept tensors wait in host memory. Raises Unsupported for another way of offloading activations."""
    where = train.offload.activations if train.offload is not None else None
    if where in (None, "none"):
        return ()
    words = extra.get("offload-modules")
    modules = re.findall(r"\w+", words) if isinstance(words, str) else [str(word) for word in words or ()]
    wrong = next((name for name in modules if name not in PARKED), None)
    if where != "cpu" or not extra.get("fine-grained-activation-offloading") or not modules:
        raise Unsupported("train.offload.activations", "needs train.extra.fine-grained-activation-offloading and offload-modules")
    if wrong is not None:
        raise Unsupported("train.extra.offload-modules", f"{wrong!r} is not supported; supported: {', '.join(PARKED)}")
    return tuple(sorted(modules))


def full_of(train: Train, choices: ResolvedSettings) -> Recomputed | None:
    """Whole layers that run again."""
    given = train.recompute
    if given is None or given.policy != "full":
        return None
    method = choices.pick("train.recompute.method", given.method, "uniform", default_of("Megatron-LM"))
    layers = choices.pick("train.recompute.layers", given.layers, 1, default_of("Megatron-LM"))
    return Recomputed(method, layers)
