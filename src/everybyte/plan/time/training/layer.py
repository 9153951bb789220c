"""One layer of a training step on one rank: products, attention, elementwise kernels, adapters, experts, and the traffic inside the layer. Seconds."""

from __future__ import annotations

import math

from everybyte.basics.record import Record
from everybyte.catalog.speed_cards import SpeedCard, attention_kernel
from everybyte.plan.time.kernels import attention_rate, grouped_product, product
from everybyte.plan.time.links import exchange, pair_rate, ring
from everybyte.plan.time.shape import LayerShape, Product
from everybyte.plan.time.training.setting import TrainSetting

BACKWARD = 0.97
"""Rate of backward products against forward ones."""
ADAPTER_GRADIENT = 0.02
"""Share of a frozen product's weight gradient that an adapter's two thin ones take."""
BACKWARD_ATTENTION = 2.5
"""FLOPs of attention's backward against forward (FlashAttention paper: five products, two forward)."""
STREAMS = 0.92
"""Rate of elementwise kernels against long streams."""
EAGER, FUSED = 1.7, 1.25
"""Bytes of unfused elementwise kernels against compiled ones; with Liger's or apex's kernels (same models, with and without compile)."""
MIXER_BYTES, MLP_BYTES = 14, 7
"""Bytes an element of the hidden state that norm, residual and casts move in a mixer and in an MLP, forward."""
WIDE_BYTES = 4
"""Bytes an element of queries, keys and values: rotary embedding."""
INNER_BYTES = {True: 6, False: 4}
"""Bytes an element between the products of a gated MLP, of a plain one."""
CAST_BYTES = 4
"""Bytes an input element of a product that is cast to 8 or 4 bits: read once, written twice (rows and columns)."""
DROPOUT_BYTES = 5
SCAN_BYTES = 40
"""Bytes an element of a recurrent mixer's width: convolution, gates, the scan's inputs and outputs."""
ADAPTER_IN, ADAPTER_OUT = 2.0, 8.0
"""Bytes an element that an adapter reads of an input and adds into an output."""
MEGATRON_ADAPTER = 0.3
"""Share of these bytes left where Transformer Engine's fused layer norm and linear gives the input to the adapter."""
UNFUSED_PASSES = (10, 14)
"""Passes over the matrix of scores, forward and backward, without a fused kernel (Korthikanti 2022, section 4.1, counts of operations)."""
UNFUSED_DROPOUT = 3
UNFUSED_RATE = 0.55
"""Rate of the products of scores against large ones: an inner length of one head."""
RING_LOSS, MOST_RING_LOSS = 0.05, 0.15
"""Rate of attention lost a doubling of ring context parallelism: smaller blocks and the merge of partial results."""
RING_STEP, RING_START = 25e-6, 8e-6
"""Host and merge time of a step of the ring; start of a message."""
USER_BUFFERS, PLAIN_BACKWARD = 0.65, 0.25
"""Share of tensor-parallel traffic hidden by user buffers or asynchronous tensor parallelism; hidden in backward without sequence parallelism."""
OLD_PERMUTATION, PERMUTATION, PERMUTATION_FUSED_IN = 12, 6, 25.11
"""Bytes an element of routed tokens that sorting and unsorting move; fused kernels since this release."""
ROUTER_BYTES = 12
EXPERT_FIXED = 0.05e-3
SINKS_FUSED_IN, SINKS_UNFUSED_RATE = 26.06, 0.3
"""Release with a fused kernel for attention sinks, and the rate before."""
PACKED_READ, PACKED_WRITE, PACKED_LOSS = 0.56, 2.0, 1.15
"""Bytes a weight that unpacking a 4-bit base reads and writes (bitsandbytes nf4 with double quantization)."""


class LayerTime(Record, frozen=True):
    """Forward and backward of one layer, part by part; `again` is what recomputation adds."""

    products: float
    attention: float
    elementwise: float
    tensor_parallel: float
    context_parallel: float
    experts: float
    unpacking: float
    again: float

    @property
    def seconds(self) -> float:
        """All parts."""
        work = self.products + self.attention + self.elementwise + self.unpacking + self.again
        return work + self.tensor_parallel + self.context_parallel + self.experts


class Both(Record, frozen=True):
    """Forward and backward."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.forward + self.backward


def layer_time(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> LayerTime:
    """The time of one block for one micro-batch."""
    mixer, mlp = _products(layer.mixer, s, card), _products(layer.mlp, s, card)
    routed = _experts(layer, s, card)
    scores = _attention(layer, s, card)
    mixed, gated = _elementwise_mixer(layer, s, card), _elementwise_mlp(layer, s, card)
    moved = _elementwise_experts(layer, s, card)
    tp = _tensor_parallel(layer, s, card)
    cp = _context_parallel(layer, s, card, scores.forward)
    ep = 2 * _dispatch(layer, s, card) * s.hidden_experts
    unpacking = _unpacking(layer, s, card)
    forward = mixer.forward + mlp.forward + routed.forward + scores.forward + mixed + gated + moved + tp.forward + cp + ep + unpacking
    return LayerTime(
        products=mixer.seconds + mlp.seconds + routed.seconds,
        attention=scores.seconds,
        elementwise=3 * (mixed + gated + moved),
        tensor_parallel=tp.seconds,
        context_parallel=3 * cp,
        experts=2 * ep,
        unpacking=2 * unpacking,
        again=_recomputed(layer, s, card, forward, scores, mixer, mlp, routed, (mixed, gated, moved), ep),
    )


def split(p: Product, tp: int) -> tuple[float, float]:
    """Out and inner of a product on a tensor-parallel rank."""
    return (p.out / tp if p.split == "out" else p.out), (p.inner / tp if p.split == "inner" else p.inner)


def _products(products: tuple[Product, ...], s: TrainSetting, card: SpeedCard) -> Both:
    """Forward; gradient of the input; gradient of the weight, which is added in fp32. Frozen weights have only their adapter's."""
    forward = backward = 0.0
    for p in products:
        out, inner = split(p, s.tp)
        rows = s.tokens / s.tp if p.split == "none" and s.sequence_parallel else s.tokens
        forward += product(card, rows, out, inner, s.form)
        weight = product(card, inner, out, rows, s.form, accumulates=True) * (ADAPTER_GRADIENT if s.lora else 1.0)
        backward += (product(card, rows, inner, out, s.form) + weight) / BACKWARD
    return Both(forward, backward)


def routed_tokens(layer: LayerShape, s: TrainSetting) -> float:
    """Copies of tokens that a rank sends to experts."""
    return s.tokens * layer.top_k / (s.tp if s.sequence_parallel and s.etp == 1 else 1)


def _experts(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> Both:
    """Routed experts of a rank, of even load."""
    if not layer.expert_count:
        return Both()
    each = max(1.0, routed_tokens(layer, s) * s.ep / layer.expert_count)
    groups = layer.expert_count / s.ep
    forward = backward = 0.0
    for p in layer.experts:
        out, inner = split(p, s.etp)
        forward += grouped_product(card, groups, each, out, inner, s.form)
        weight = grouped_product(card, groups, inner, out, each, s.form, accumulates=True) * (ADAPTER_GRADIENT if s.lora else 1.0)
        backward += grouped_product(card, groups, each, inner, out, s.form) + weight
    fixed = EXPERT_FIXED * (1.0 if s.is_megatron else 1.5)
    return Both(forward + fixed, backward)


def _attention(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> Both:
    """Scores and values; a window shortens what a token sees."""
    if not layer.heads:
        return Both()
    seen = layer.window if layer.window and layer.window < s.length else s.length / 2
    flops = 2.0 * s.micro_batch / s.tp * (layer.query + layer.value) * s.length * seen / s.cp
    if s.attention == "unfused":
        return _unfused(layer, s, card, flops)
    kernel = attention_kernel(card, s.attention)
    share = kernel.share * (SINKS_UNFUSED_RATE if layer.sinks and s.release < SINKS_FUSED_IN else 1.0)
    forward = flops / attention_rate(card, share, kernel.half_length, layer.head_dim, s.length)
    if s.cp > 1 and not s.cp_all_to_all:
        forward *= 1 + min(MOST_RING_LOSS, RING_LOSS * math.log2(s.cp))
    return Both(forward, BACKWARD_ATTENTION * forward / kernel.backward)


def _unfused(layer: LayerShape, s: TrainSetting, card: SpeedCard, flops: float) -> Both:
    """Scores are written out; both halves of the causal mask are computed."""
    scores = s.micro_batch * layer.heads / s.tp * s.length**2
    drop = UNFUSED_DROPOUT if s.dropout or ("fp16" in s.precision and s.framework == "megatron") else 0
    arithmetic = 2 * flops / (card.products["bf16"] * card.reached["bf16"] * UNFUSED_RATE)
    stream = card.stream * STREAMS
    return Both(arithmetic + (UNFUSED_PASSES[0] + drop) * scores / stream, 2 * arithmetic + (UNFUSED_PASSES[1] + drop) * scores / stream)


def eager_factor(s: TrainSetting) -> float:
    """Bytes of elementwise kernels against fused ones."""
    if s.is_megatron or s.compiled:
        return 1.0
    return FUSED if s.fused_kernels else EAGER


def _adapter_factor(s: TrainSetting) -> float:
    return MEGATRON_ADAPTER if s.is_megatron else 1.0


def outer_tokens(s: TrainSetting) -> float:
    """Tokens between the tensor-parallel regions."""
    return s.tokens / (s.tp if s.sequence_parallel else 1)


def _elementwise_mixer(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    wide = (layer.query + layer.kv / 2) if layer.heads else layer.state * SCAN_BYTES / WIDE_BYTES
    moved = eager_factor(s) * (outer_tokens(s) * MIXER_BYTES * layer.hidden + s.tokens * WIDE_BYTES * wide / s.tp)
    if s.form != "bf16":
        moved += s.tokens * CAST_BYTES * (layer.hidden + (layer.value or layer.state) / s.tp)
    if s.dropout:
        moved += outer_tokens(s) * DROPOUT_BYTES * layer.hidden
    if s.lora:
        inputs, outputs = 3 * layer.hidden + layer.query, layer.query + layer.kv + layer.hidden
        moved += s.tokens * ((ADAPTER_IN + s.lora_bytes) * inputs + ADAPTER_OUT * outputs) / s.tp * _adapter_factor(s)
    return moved / (card.stream * STREAMS)


def _elementwise_mlp(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    inner = layer.mlp_inner
    is_gated = layer.mlp_out > inner
    if layer.expert_count:
        return 0.0
    moved = eager_factor(s) * (outer_tokens(s) * MLP_BYTES * layer.hidden + s.tokens * INNER_BYTES[is_gated] * inner / s.tp)
    if s.form != "bf16":
        moved += s.tokens * CAST_BYTES * (layer.hidden + inner / s.tp)
    if s.dropout:
        moved += outer_tokens(s) * DROPOUT_BYTES * layer.hidden
    if s.lora_mlp:
        inputs, outputs = layer.hidden * (2 if is_gated else 1) + inner, layer.mlp_out + layer.hidden
        moved += s.tokens * ((ADAPTER_IN + s.lora_bytes) * inputs + ADAPTER_OUT * outputs) / s.tp * _adapter_factor(s)
    return moved / (card.stream * STREAMS)


def _elementwise_experts(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    if not layer.expert_count:
        return 0.0
    routed = routed_tokens(layer, s)
    sorting = PERMUTATION if s.is_megatron and s.release >= PERMUTATION_FUSED_IN else OLD_PERMUTATION
    own = outer_tokens(s) * (MLP_BYTES * layer.hidden + ROUTER_BYTES * layer.expert_count)
    moved = eager_factor(s) * (own + routed * (sorting * layer.hidden + INNER_BYTES[True] * layer.expert_inner))
    if s.form != "bf16":
        moved += routed * CAST_BYTES * (layer.hidden + layer.expert_inner)
    return moved / (card.stream * STREAMS)


def _tensor_parallel(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> Both:
    """Four collectives of the hidden state a direction: two gathers and two scatters, or two all-reduces of the same bytes."""
    if s.tp == 1:
        return Both()
    one = 4 * ring(card, s.tokens * layer.hidden * 2, s.tp, min(s.tp, s.domain))
    hidden = USER_BUFFERS if s.hidden_tp else 0.0
    return Both(one * (1 - hidden), one * (1 - max(hidden, 0.0 if s.sequence_parallel else PLAIN_BACKWARD)))


def _context_parallel(layer: LayerShape, s: TrainSetting, card: SpeedCard, attention: float) -> float:
    """A ring of keys and values beside attention, of which only what outlasts it counts; or all-to-alls of queries, keys and values."""
    if s.cp == 1:
        return 0.0
    if s.cp_all_to_all:
        sent = s.tokens * (2 * layer.query + layer.kv) / s.tp * 2
        return exchange(card, sent, s.cp, max(s.cp, s.domain), 1, once_a_node=False) + 2.5 * card.latency
    keys = 2 * s.tokens * layer.kv / s.tp
    turn = keys / pair_rate(card, near=s.cp * s.tp <= s.domain) + RING_START
    return max(0.0, (s.cp - 1) * turn - attention) + (s.cp - 1) * RING_STEP


def _dispatch(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    """Tokens to their experts, one way."""
    if not layer.expert_count:
        return 0.0
    return exchange(card, routed_tokens(layer, s) * layer.hidden * 2, s.ep, s.domain, layer.top_k, once_a_node=s.dispatch_once)


def _unpacking(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    if not s.quantized:
        return 0.0
    weights = (layer.mixer_parameters + layer.mlp_parameters) / s.tp
    return weights * (PACKED_READ + PACKED_WRITE) * PACKED_LOSS / (card.stream * STREAMS)


def _recomputed(
    layer: LayerShape,
    s: TrainSetting,
    card: SpeedCard,
    forward: float,
    scores: Both,
    mixer: Both,
    mlp: Both,
    routed: Both,
    elementwise: tuple[float, float, float],
    ep: float,
) -> float:
    """What is computed a second time."""
    if s.recompute == "none":
        return 0.0
    if s.recompute == "full" or s.recompute_every:
        return forward * s.recompute_share / max(1, s.recompute_every)
    mixed, gated, moved = elementwise
    if s.recompute_modules:
        stream = card.stream * STREAMS
        named = {
            "core_attn": scores.forward,
            "layernorm": outer_tokens(s) * 8 * layer.hidden * eager_factor(s) / stream,
            "mla_up_proj": _up_projections(layer, s, card),
            "mlp": 0.0 if layer.expert_count else mlp.forward + gated,
            "moe_act": routed_tokens(layer, s) * INNER_BYTES[True] * layer.expert_inner / stream,
            "moe": routed.forward + moved + ep if layer.expert_count else 0.0,
        }
        return sum(named.get(module, 0.0) for module in s.recompute_modules)
    if s.framework == "torchtitan":  # its default of selective checkpointing recomputes every second product and keeps attention
        return 0.5 * (mixer.forward + mlp.forward) + 0.9 * (mixed + gated)
    return scores.forward if s.attention == "unfused" else 0.0


def _up_projections(layer: LayerShape, s: TrainSetting, card: SpeedCard) -> float:
    """Latent attention's products out of the latents."""
    if not layer.latent:
        return 0.0
    return sum(product(card, s.tokens, p.out / s.tp, p.inner, s.form) for p in layer.mixer if p.split == "out" and p.inner != layer.hidden)
