"""From the train section of a job to the choices of Megatron-LM: its arguments are keys of `train.extra`, under the names of the command line."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import cast

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.engines.megatron.extra import Keys
from everybyte.engines.megatron.graphs import graphs_of
from everybyte.engines.megatron.kernels import Versions, attention_kernel
from everybyte.engines.megatron.network import Recomputed
from everybyte.engines.megatron.style import CrossEntropy, Dispatcher, Style
from everybyte.job import Train
from everybyte.job.framework import SEVERAL
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Modules that selective recomputing answers (recompute_modules)."""
PARKED = ("attn_norm", "attn_proj", "core_attn", "expert_fc1", "mlp_norm", "moe_act", "qkv_linear")
"""Modules whose kept tensors can be offloaded (offload_modules)."""
DISPATCHERS = ("allgather", "alltoall", "flex")
FUSIONS = ("native", "te")


def is_swift(train: Train) -> bool:
    """Whether ms-swift runs Megatron-LM, with defaults of its own (swift/megatron/arguments/megatron_args.py)."""
    return train.framework == SEVERAL


def style_of(train: Train, keys: Keys, capability: str, found: Versions, choices: ResolvedSettings) -> Style:
    """The implementations that run. Raises BadInput or Unsupported with the key's path."""
    nemo, swift = train.framework == "nemo", is_swift(train)
    origin = default_of("Megatron-Bridge" if nemo else "Megatron-LM")
    te = choices.pick("train.extra.transformer-impl", keys.transformer_impl, "transformer_engine", origin) != "local"
    rate = choices.pick("train.dropout", train.dropout, 0.0 if nemo else 0.1, origin)
    fused, graphs = keys.cross_entropy_loss_fusion, graphs_of(keys)
    attention = attention_kernel(train, keys, capability, te=te, drops=rate > 0)
    legacy = not te and attention == "flash2"  # its SwiGLU is written in PyTorch (megatron/model/transformer.py ParallelMLP)
    dispatcher = _word(keys.moe_token_dispatcher_type, "moe-token-dispatcher-type", DISPATCHERS, "alltoall" if nemo or swift else "allgather")
    return Style(
        te=te,
        attention=attention,
        dropout=rate > 0,
        rope_fused=te and (not keys.no_rope_fusion and not swift if keys.apply_rope_fusion is None else keys.apply_rope_fusion),
        rotary=_share(keys),
        qk_norm=keys.qk_layernorm,
        glu_fused=not keys.no_bias_swiglu_fusion and not legacy,
        relu_fused=keys.use_fused_weighted_squared_relu,
        wgrad_fused=not keys.no_gradient_accumulation_fusion,
        deterministic=keys.deterministic_mode and found.core.has("adds_by_index"),
        permute_fused=keys.moe_permute_fusion,
        dispatcher=cast("Dispatcher", dispatcher),
        offloaded=offloaded_of(train, keys),
        capacity=_capacity(keys),
        pads_experts=keys.moe_pad_expert_input_to_capacity,
        forces_balance=keys.moe_router_force_load_balancing,
        late_weights=not found.core.has("weighs_early"),
        fp8=train.precision == "fp8",
        recompute=modules_of(train, choices),
        cross_entropy=cast("CrossEntropy", _word(keys.cross_entropy_fusion_impl, "cross-entropy-fusion-impl", FUSIONS, "native")) if fused else "eager",
        loads_mask=not keys.no_create_attention_mask_in_dataloader and not (nemo or swift),
        binary_head=not keys.bert_no_binary_head,
        mtp_repeated=keys.mtp_use_repeated_layer,
        captured=graphs.attention,
        replayed=graphs.at_start,
    )


def _word(value: str | None, key: str, allowed: tuple[str, ...], usual: str) -> str:
    value = usual if value is None else value
    if value not in allowed:
        raise Unsupported(f"train.extra.{key}", f"{value!r} is not supported yet; supported: {', '.join(allowed)}")
    return str(value)


def _share(keys: Keys) -> tuple[int, int]:
    """Share of each head that turns, as (numerator, denominator)."""
    share = Fraction(keys.rotary_percent).limit_denominator(1024)
    return share.numerator, share.denominator


def _capacity(keys: Keys) -> tuple[int, int]:
    """The capacity factor of experts as (numerator, denominator); a negative one is none (core/transformer/transformer_config.py)."""
    value = keys.moe_expert_capacity_factor
    if value is None or value < 0:
        if keys.moe_pad_expert_input_to_capacity:
            raise BadInput("train.extra.moe-pad-expert-input-to-capacity", "needs moe-expert-capacity-factor: what experts are padded to")
        return 0, 1
    if value == 0:
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


def offloaded_of(train: Train, keys: Keys) -> tuple[str, ...]:
    """Modules whose kept tensors wait in host memory. Raises Unsupported for another way of offloading activations."""
    where = train.offload.activations if train.offload is not None else None
    if where in (None, "none"):
        return ()
    words = keys.offload_modules
    modules = re.findall(r"\w+", words) if isinstance(words, str) else [str(word) for word in words or ()]
    wrong = next((name for name in modules if name not in PARKED), None)
    if where != "cpu" or not keys.fine_grained_activation_offloading or not modules:
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
