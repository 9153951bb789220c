"""How long collectives take inside a machine and between machines. Seconds."""

from __future__ import annotations

from everybyte.catalog.speed_cards import SpeedCard

NETWORK_SHARE = 0.85
"""Share of a network card's line rate that collectives reach (NCCL tests on InfiniBand and RoCE, torchtitan and llm-foundry reports)."""
HOP, FAR = 1.3e-6, 64
"""What a hop of a ring costs, averaged over NVLink and the network, and the ranks beyond which trees halve it (NCCL's all-gather by number of ranks)."""
ALL_TO_ALL = 0.85
"""Rate of an all-to-all inside a machine against a ring's."""


def ring(card: SpeedCard, full: float, ranks: int, in_domain: int) -> float:
    """All-gather to, or reduce-scatter of, `full` bytes over `ranks`, of which `in_domain` share an NVLink domain."""
    if ranks <= 1:
        return 0.0
    near = max(1, min(in_domain, ranks))
    rate = card.link if ranks <= near else min(card.link, near * card.network * NETWORK_SHARE)
    hops = min(ranks - 1, FAR) + max(0, ranks - 1 - FAR) * 0.5
    return (ranks - 1) / ranks * full / rate + hops * HOP + card.latency


def exchange(card: SpeedCard, sent: float, ranks: int, domain: int, top_k: int, *, once_a_node: bool) -> float:
    """All-to-all in which each rank sends `sent` bytes; between machines a token is sent once a machine where the dispatcher can."""
    if ranks <= 1:
        return 0.0
    inside = sent * (ranks - 1) / ranks / (card.link * ALL_TO_ALL)
    if ranks <= domain:
        return inside + 1.5 * card.latency
    nodes = ranks / domain
    kept = min(1.0, nodes * (1 - (1 - 1 / nodes) ** top_k) / top_k) if once_a_node else 1.0
    across = sent * (1 - domain / ranks) * kept / (card.network * NETWORK_SHARE)
    return max(across, inside) + 3 * card.latency


def pair_rate(card: SpeedCard, *, near: bool) -> float:
    """Bytes a second between two ranks of a pipeline or a ring."""
    return card.link if near else card.network * NETWORK_SHARE
