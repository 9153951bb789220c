"""How fast decoding can be at best: every token needs the active weights and the cache of its sequence to be read once."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import find_gpu
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.rules.serving.pages import Prices
from everybyte.rules.step.persistent_state import Share, groups, parameter_tensors

SOURCE = "Pope et al., Efficiently Scaling Transformer Inference (2022), section 2.1: decoding is bound by the bandwidth of memory"


@lru_cache(maxsize=256)
def read_bytes(network: Network, setup: Setup, share: Share, sequences: int) -> int:
    """Bytes of weights that one step for so many sequences reads on a rank: all of the dense parts, and of routed experts those that are chosen by at
    least one sequence, E·(1 - (1 - k/E)^b) of E when routing is even. An embedding is looked up row by row and left out."""
    total = 0.0
    for group in groups(network, setup, share):
        if group.part == "embed" and not network.tied:
            continue
        for p in group.members:
            size = sum(parameter_tensors(p, setup)) * p.count * group.copies
            used, whole = p.share
            total += size * (1 - (1 - used / whole) ** sequences) if whole > 1 else size
    return round(total)


def ceiling_figures(network: Network, setup: Setup, share: Share, gpu: str, cost: Prices, context: int, sequences: int | None) -> dict[str, int]:
    """Tokens a second that the bandwidth of the catalogue's device allows, for one sequence and for `sequences` at once, each with a full context; empty
    where the device or its bandwidth is not known."""
    bandwidth = _bandwidth(gpu)
    if not bandwidth:
        return {}
    figures = {"decode.tokens_per_s": _rate(network, setup, share, bandwidth, cost, context, 1)}
    if sequences is not None and sequences > 1:
        figures["decode.batch_tokens_per_s"] = _rate(network, setup, share, bandwidth, cost, context, sequences)
    return figures


def _rate(network: Network, setup: Setup, share: Share, bandwidth: float, cost: Prices, context: int, sequences: int) -> int:
    window = min(context, cost.window) if cost.window else context
    cache = float(cost.full) * context + float(cost.windowed) * window + cost.state
    return int(sequences * bandwidth / (read_bytes(network, setup, share, sequences) + sequences * cache))


def _bandwidth(gpu: str) -> float:
    """Bytes a second."""
    try:
        return (find_gpu(gpu).bandwidth_gb_s or 0) * 1e9 if gpu else 0
    except BadInput:
        return 0
