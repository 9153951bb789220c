"""Sizes of a network that layouts divide and that products are made of."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.models.count import declared
from everybyte.models.widths import Widths, head_sizes, widths_of


class Facts(Record, frozen=True):
    """Parameters are counted over the whole network, tied ones once."""

    layers: int
    hidden: int
    vocab: int
    dense: int
    """Parameters of the layers that every token uses."""
    routed: int
    """Parameters of the routed experts of all layers."""
    routed_active: int
    """Those of them that one token uses."""
    moe_layers: int
    table: int
    """Parameters of the embedding, and of the head where it is not tied."""
    scores: int
    """heads × (key + value) of one layer: a score and its use take so many multiplications and additions for each pair of tokens, halved by the mask."""
    kv_width: int
    """kv heads × (key + value): what context parallelism sends for each token."""
    top_k: float
    """Experts that a token uses."""
    widths: Widths


@lru_cache(maxsize=64)
def facts_of(network: Network) -> Facts:
    """The sizes of a network."""
    dense = routed = active = table = 0
    with_experts: set[str] = set()
    for row in declared(network):
        if row.parameter.buffer:
            continue
        count, (used, of) = row.copies * row.parameter.numel, row.parameter.share
        if row.part in ("embed", "head"):
            table += count
        elif used < of:
            routed += count
            active += count * used // of
            with_experts.add(row.part)
        else:
            dense += count
    widths, sizes = widths_of(network), head_sizes(network)
    scores = max((one.heads * (one.key + one.value) for one in sizes), default=0)
    kv_heads = max((kv / heads for heads, kv in widths.heads if heads), default=1)
    return Facts(
        layers=network.layers,
        hidden=network.hidden,
        vocab=network.vocab,
        dense=dense,
        routed=routed,
        routed_active=active,
        moe_layers=sum(run.count for run in network.runs if run.label in with_experts),
        table=table,
        scores=scores,
        kv_width=round(scores * kv_heads),
        top_k=widths.experts * active / routed if routed else 0,
        widths=widths,
    )
