"""Uneven routing of a mixture of experts: what comes to a rank at most, what bounds it, and what an answer says of it."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput
from everybyte.engines.megatron.routing import Routing
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording.size import Batch, Dim
from everybyte.ledger.answer import Answer

SHAPE = {
    "family": "moe",
    "layers": 4,
    "hidden": 256,
    "ffn": 512,
    "heads": 8,
    "kv_heads": 4,
    "vocab": 32000,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 384,
    "moe_layers": [0, 1, 2, 3],
}
CAPACITY, PAD, FORCED = "moe-expert-capacity-factor", "moe-pad-expert-input-to-capacity", "moe-router-force-load-balancing"


def answer(mesh: dict[str, Any], **extra: object) -> Answer:
    """The answer of a small mixture."""
    train = {
        "framework": "megatron",
        "micro_batch": 2,
        "seq_len": 512,
        "grad_accum": 8,
        "mesh": mesh,
        "sharding": "distributed-optimizer",
        "extra": {"moe-token-dispatcher-type": "alltoall", **extra},
    }
    return estimate({"model": {"shape": SHAPE}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8}, "train": train})


def tokens(dim: Dim, batch: Batch) -> int:
    """The number of tokens behind a dimension."""
    found = dim.size
    for axis in dim.axes:
        found *= batch.value(axis)
    return found


def ranges(found: Answer) -> list[tuple[int, int, int]]:
    """(bytes, low, high) of the rows with a range that torch's allocator holds."""
    rows = [entry for rank in found.ranks for entry in rank.ledger if entry.category != "context"]
    return [(e.bytes, e.low, e.high) for e in rows if e.low is not None and e.high is not None]


@pytest.mark.parametrize(("experts", "top_k", "ep", "tp", "etp"), [(8, 2, 4, 1, 1), (8, 2, 8, 2, 1), (64, 6, 4, 1, 1), (128, 8, 8, 2, 2), (8, 4, 4, 1, 1)])
def test_every_token_may_choose_one_rank(experts: int, top_k: int, ep: int, tp: int, etp: int) -> None:
    """Counted token by token: each token of the ranks that exchange them goes to as many experts of this rank as it can."""
    routing = Routing(experts, top_k, Split(tp, tp > 1, 1, ep, etp), Style())
    batch = Batch(2, 64, 64)
    local = batch.b * batch.s // tp
    own = range(experts // ep)
    worst = sum(len([expert for expert in own if expert < top_k]) for _ in range(ep * etp) for _ in range(local))
    assert tokens(routing.arrived, batch) == local * top_k * etp
    assert tokens(routing.arrived, batch._replace(is_uneven=True)) == worst
    assert tokens(routing.sent, batch) == tokens(routing.sent, batch._replace(is_uneven=True)) == local * top_k


@pytest.mark.parametrize(("part", "whole"), [(1, 1), (5, 4), (2, 1), (7, 3)])
def test_a_capacity_factor_bounds_it(part: int, whole: int) -> None:
    """No expert takes more than ceil(n·top_k·c/E) from one rank: the bound of the worst case, and what padded experts always get."""
    batch, split = Batch(1, 100, 100), Split(ep=4)
    capacity = ceil(batch.s * 2 * part / whole / 8)
    dropping, padding = (Routing(8, 2, split, Style(capacity=(part, whole), pads_experts=pads)) for pads in (False, True))
    at_most = min(8 * capacity, batch.s * 4 * 2)
    assert tokens(dropping.arrived, batch) == batch.s * 2
    if dropping.may_be_uneven:
        assert tokens(dropping.arrived, batch._replace(is_uneven=True)) == at_most
    assert tokens(padding.arrived, batch) == tokens(padding.sent, batch) == tokens(padding.arrived, batch._replace(is_uneven=True)) == 8 * capacity


def test_an_answer_says_what_the_worst_case_is() -> None:
    """Rows of routed tokens have a range that begins at the balanced case, and one sentence says the peak of the worst case, which is that of
    experts who are padded to as many tokens."""
    found = answer({"ep": 4, "etp": 1})
    assert all(size == low < high for size, low, high in ranges(found))
    assert ranges(found)
    most = 4 * min(2, 8 // 4)  # experts of one rank that a token may choose, from each of four ranks
    padded = answer({"ep": 4, "etp": 1}, **{CAPACITY: most / 2, PAD: True}).figures["peak.allocated"]
    sentence = next(text for text in found.assumptions if "expert-parallel group" in text)
    assert f"{padded / 2**30:,.1f} GiB there, not {found.figures['peak.allocated'] / 2**30:,.1f} GiB" in sentence


@pytest.mark.parametrize("extra", [{FORCED: True}, {CAPACITY: 1.5, PAD: True}, {CAPACITY: 0.5}])
def test_what_is_known_has_no_range(extra: dict[str, Any]) -> None:
    """Forced balance, padded experts, and experts that take less than their share: the number of tokens is known."""
    found = answer({"ep": 4, "etp": 1}, **extra)
    assert not ranges(found)
    assert not any("balanced" in text or "expert-parallel" in text for text in found.assumptions)


def test_ranks_with_all_experts_are_not_uneven() -> None:
    """Without expert parallelism every token stays on its rank, whatever it chooses."""
    found = answer({"tp": 2, "sp": True})
    assert not ranges(found)
    assert not any("balanced" in text for text in found.assumptions)


def test_a_capacity_factor_narrows_the_worst_case() -> None:
    """A smaller factor leaves a smaller range; the balanced figures are the same."""
    found = [answer({"ep": 4, "etp": 1, "pp": 2}, **({CAPACITY: c} if c else {})) for c in (1.25, 2.0, 0)]
    assert len({a.figures["peak.allocated"] for a in found}) == 1
    highs = [max(high for _, _, high in ranges(a)) for a in found]
    assert highs == sorted(set(highs))


def test_quick_figures_are_balanced() -> None:
    """The headline is that of the balanced case, as the answer's figures are."""
    job = {
        "model": {"shape": SHAPE},
        "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8},
        "train": {"framework": "megatron", "micro_batch": 2, "seq_len": 512, "grad_accum": 8, "mesh": {"ep": 4, "etp": 1}},
    }
    assert headline(job)["peak.allocated"] == estimate(job).figures["peak.allocated"]


@pytest.mark.parametrize(("extra", "key"), [({CAPACITY: "much"}, CAPACITY), ({CAPACITY: 0}, CAPACITY), ({PAD: True}, PAD)])
def test_refused(extra: dict[str, Any], key: str) -> None:
    """What Megatron-LM cannot run is refused by its key."""
    with pytest.raises(BadInput) as caught:
        answer({"ep": 4, "etp": 1}, **extra)
    assert caught.value.path == f"train.extra.{key}"
