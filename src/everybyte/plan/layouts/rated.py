"""The time of a step at rated speeds: every product at the rate that the vendor states for the card, every message at that of its link.

Each term is an expression of the layout alone, so that ten thousand layouts take a fraction of a second. A real step is slower, as no kernel reaches the
rates; layouts of one job on one cluster are compared by it.
"""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu
from everybyte.plan.layouts.asked import Asked
from everybyte.plan.layouts.layout import Layout, Policy
from everybyte.plan.layouts.links import links_of

TERA = 10**12
FORWARD, BACKWARD = 1, 2
"""Products of the backward pass: one for the gradient of the input, one for that of the weight."""
ADAPTED = 1
"""Backward products of a frozen base: only the gradient of the input."""
TYPE = 2
"""Bytes of a number that is sent: 16 bits."""
STEP_BYTES = 30
"""Read and written by Adam for each parameter: fp32 master and two moments both ways, a 32-bit gradient, a 16-bit weight."""
EXCHANGES = 4
"""Collectives of one layer's forward with sequence parallel: all-gather and reduce-scatter around attention and around the MLP."""


class Rated(NamedTuple):
    """Seconds of a step by what they are for."""

    products: float
    recompute: float
    bubble: float
    pipeline: float
    tensor: float
    context: float
    expert: float
    data: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self)


WORDS: dict[str, str] = {
    "products": "matrix products",
    "recompute": "recomputation",
    "bubble": "pipeline bubble and uneven stages",
    "pipeline": "hidden states between pipeline stages",
    "tensor": "tensor-parallel traffic",
    "context": "context-parallel traffic",
    "expert": "expert-parallel traffic",
    "data": "gradients and weights between data-parallel ranks",
    "optimizer": "optimizer step",
}
"""What each term is called."""


class Clock:
    """The time of the layouts of one question; what they share is worked out once."""

    def __init__(self, asked: Asked) -> None:
        if asked.card is None:
            raise BadInput("hardware.gpu", "is described by its memory alone: a plan needs the speed of a card of the catalogue (`everybyte gpus`)")
        train = asked.job.train
        assert train is not None
        self.asked, self.facts, self.links, self.card = asked, asked.facts, links_of(asked.card), asked.card
        self.peak = peak_flops(asked.card, train.precision or "") * TERA
        self.backward = ADAPTED if train.adapter is not None else BACKWARD
        self.is_frozen = train.adapter is not None
        self.bandwidth = (asked.card.bandwidth_gb_s or 0) * 10**9 or 1e12

    def __call__(self, layout: Layout) -> Rated:
        """The terms of a layout."""
        chunks = layout.pp * layout.virtual
        tokens = layout.micro_batch * self.asked.seq_len / layout.cp
        layer, head = self._layer(tokens, layout), self._head(tokens, layout)
        passes = FORWARD + self.backward
        again = layer * recomputed(layout.recompute, -(-self.facts.layers // chunks), self)
        tensor, context, expert = self._tensor(tokens, layout), self._context(tokens, layout, layer), self._expert(tokens, layout)
        per_layer = layer * passes + again + tensor + context + expert
        all_layers = self.facts.layers * per_layer / layout.pp
        mean = all_layers + head * passes / layout.pp
        slowest = max(mean, self._slowest(per_layer, head * passes, layout))
        bubble = layout.grad_accum * (slowest - mean) + (layout.pp - 1) / layout.virtual * slowest
        share = self.facts.layers / layout.pp * layout.grad_accum
        return Rated(
            products=share * layer * passes + layout.grad_accum * head * passes / layout.pp,
            recompute=share * again,
            bubble=bubble,
            pipeline=self._pipeline(tokens, layout),
            tensor=share * tensor,
            context=share * context,
            expert=share * expert,
            data=self._data(layout, slowest),
            optimizer=self._optimizer(layout),
        )

    def _slowest(self, per_layer: float, head: float, layout: Layout) -> float:
        """The stage with most to do: layers are dealt out evenly, with the head on the last; uneven stages count it as a layer."""
        chunks = layout.pp * layout.virtual
        if layout.pp == 1:
            return self.facts.layers * per_layer + head
        if self.facts.layers % chunks == 0:
            return self.facts.layers / layout.pp * per_layer + head
        most = -(-(self.facts.layers + 2) // chunks) * layout.virtual
        return max(most * per_layer, (most - 1) * per_layer + head)

    def _layer(self, tokens: float, layout: Layout) -> float:
        """Forward products of a mean layer."""
        facts = self.facts
        weights = (facts.dense / layout.tp + facts.routed_active / (layout.etp if layout.ep > 1 else layout.tp) * self._dealt(layout)) / facts.layers
        scores = facts.scores * self.asked.seq_len / layout.tp
        return tokens * (2 * weights + scores) / self.peak

    @staticmethod
    def _dealt(layout: Layout) -> float:
        """Share of its tokens that a rank gives to experts: sequence parallel cuts them by tp where experts are whole."""
        return 1 / layout.tp if layout.ep > 1 and layout.etp == 1 else 1.0

    def _head(self, tokens: float, layout: Layout) -> float:
        return 2 * tokens * self.facts.hidden * self.facts.vocab / layout.tp / self.peak

    def _rate(self, span: int) -> float:
        """Of a group whose ranks lie so many GPUs apart."""
        return self.links.inside if span <= self.asked.node else self.links.between

    def _tensor(self, tokens: float, layout: Layout) -> float:
        if layout.tp == 1:
            return 0.0
        each = tokens * self.facts.hidden * TYPE * (layout.tp - 1) / layout.tp / self._rate(layout.tp)
        return 2 * EXCHANGES * each

    def _pipeline(self, tokens: float, layout: Layout) -> float:
        """Hidden states forward and their gradients back, once for each chunk that another rank goes on with."""
        if layout.pp == 1:
            return 0.0
        sent = tokens * self.facts.hidden / layout.tp * TYPE
        return 2 * layout.grad_accum * layout.virtual * sent / self._rate(layout.gpus)

    def _context(self, tokens: float, layout: Layout, layer: float) -> float:
        """A ring sends keys and values on while a block is computed; what the products of the layer do not hide is left."""
        if layout.cp == 1:
            return 0.0
        sent = tokens * self.facts.kv_width / layout.tp * TYPE * (layout.cp - 1) / self._rate(layout.tp * layout.cp)
        return max(0.0, 3 * sent - layer * (FORWARD + self.backward))

    def _expert(self, tokens: float, layout: Layout) -> float:
        """Dispatch and combine, forward and backward, of the copies of a token that go to other ranks; a token goes once to every machine."""
        if layout.ep == 1 or not self.facts.routed:
            return 0.0
        ranks = layout.ep * layout.etp
        local = max(1, min(ranks, self.asked.node))
        nodes = ranks / local
        once = min(1.0, nodes * (1 - (1 - 1 / nodes) ** self.facts.top_k) / self.facts.top_k) if nodes > 1 else 1.0
        sent = tokens * self._dealt(layout) * self.facts.top_k * self.facts.hidden * TYPE
        inside = sent * (ranks - 1) / ranks / self.links.inside
        outside = sent * (1 - 1 / nodes) * once / self.links.between
        return 4 * max(inside, outside) * self.facts.moe_layers / self.facts.layers

    def _held(self, layout: Layout) -> float:
        """Parameters of a rank before they are sharded."""
        facts = self.facts
        return (facts.dense + facts.table) / (layout.tp * layout.pp) + facts.routed / (layout.pp * layout.ep * (layout.etp if layout.ep > 1 else layout.tp))

    def _data(self, layout: Layout, busy: float) -> float:
        """What is left of the reduction of gradients and the gathering of weights beside the products that run meanwhile."""
        ranks = layout.dp * layout.cp
        if ranks == 1 or (self.is_frozen and layout.sharding in ("ddp", "zero1", "zero2")):
            return 0.0
        rate = self._rate(layout.tp * ranks)
        one = self._held(layout) * TYPE * (ranks - 1) / ranks / rate
        if is_gathered(layout.sharding):
            sent = one * (2 if self.is_frozen else 3)
            return layout.grad_accum * max(0.0, sent - busy)
        wide = one * (2 if layout.grads == "fp32" else 1)
        return max(0.0, one + wide - busy * min(layout.grad_accum, 1))

    def _optimizer(self, layout: Layout) -> float:
        if self.is_frozen:
            return 0.0
        shards = 1 if layout.sharding in ("ddp", "none") else layout.dp * layout.cp
        mine = self._held(layout) / shards
        if layout.offload == "none":
            return mine * STEP_BYTES / self.bandwidth
        moved = 2 * TYPE * mine * (1 if layout.offload == "optimizer" else 1 + layout.grad_accum)
        return moved / self.links.host


def recomputed(policy: Policy, chunk: int, clock: Clock) -> float:
    """Share of a layer's forward products that run again."""
    if policy.policy == "full":
        return min(policy.layers / chunk, 1.0) if policy.layers else 1.0
    if policy.policy == "none":
        return 0.0
    facts, seq_len = clock.facts, clock.asked.seq_len
    scores = facts.scores * seq_len
    whole = 2 * (facts.dense + facts.routed_active) / facts.layers + scores
    if "core_attn" in policy.modules:
        return scores / whole
    if "moe" in policy.modules:
        return 2 * facts.routed_active / facts.layers / whole
    if "mlp" in policy.modules:
        return 2 / 3 * (1 - scores / whole)
    return 0.0 if policy.modules else 0.5


def is_gathered(sharding: str) -> bool:
    """Whether weights are gathered for every micro-batch."""
    return sharding in ("zero3", "fsdp1", "fsdp2", "hsdp", "megatron-fsdp")


def peak_flops(card: Gpu, precision: str) -> float:
    """Rated dense TFLOP/s in the type of the products. Raises BadInput for a card whose rates nobody states."""
    rate = card.fp8_tflops if precision == "fp8" else card.fp16_tflops if precision.startswith("fp16") else card.bf16_tflops
    rate = rate or card.bf16_tflops or card.fp16_tflops or card.fp32_tflops
    if not rate:
        raise BadInput("hardware.gpu", f"the catalogue states no speed of {card.name}: a plan cannot rank layouts on it")
    return rate
