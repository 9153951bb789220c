"""NCCL's buffers: sizes by hand, what settings and versions change, which communicators a rank has, and where the bytes appear."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.units import GiB, MiB
from everybyte.catalog.releases import Release
from everybyte.rules.accounting.conventions import Groups
from everybyte.rules.communication.communicators import Communicator, communicators
from everybyte.rules.communication.nccl import Wires, nccl_lines
from everybyte.rules.parallel.mesh import Mesh

HOPPER = Wires(9)
PAIR = Communicator("tp", 2, 2)
EIGHT = Communicator("dp", 8, 8)


def sizes(c: Communicator, wires: Wires) -> dict[str, int]:
    """Bytes of a communicator by the last part of each row's id."""
    return {line.id.rpartition("/")[2]: line.bytes for line in nccl_lines((c,), wires)}


def test_a_ring_by_hand() -> None:
    """A channel receives into LL (0.5 MiB), LL128 (4.7 MiB) and Simple (4 MiB) with a page, 10 MiB in granules of 2, and sends from one granule."""
    assert sizes(PAIR, HOPPER)["rings"] == 24 * (10 + 2) * MiB


def test_measured_pair() -> None:
    """vLLM on two H100 reports 0.42 GiB more outside torch than on one (0.55 against 0.13): one communicator for two ranks, within 15 %."""
    assert sum(sizes(PAIR, HOPPER).values()) == pytest.approx(0.42 * GiB, rel=0.15)


def test_multicast_by_hand() -> None:
    """NVLink SHARP on eight H100: 16 channels, two directions, 8 steps of 128 KiB, a head for every rank: 256 MiB."""
    assert sizes(EIGHT, HOPPER)["nvls"] == 256 * MiB


@pytest.mark.parametrize(
    ("key", "value", "gone"),
    [("NCCL_NVLS_ENABLE", "0", "nvls"), ("NCCL_ALGO", "Ring", "nvls"), ("NCCL_ALGO", "^NVLS", "nvls"), ("NCCL_CUMEM_ENABLE", "0", "channels")],
)
def test_settings_take_away(key: str, value: str, gone: str) -> None:
    """What a setting switches off has no row."""
    assert gone in sizes(EIGHT, HOPPER)
    assert gone not in sizes(EIGHT, Wires(9, settings=((key, value),)))


def test_settings_shrink() -> None:
    """NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE: four channels of 2 MiB buffers are 4·(8 + 2) MiB."""
    wires = Wires(9, settings=(("NCCL_BUFFSIZE", "2097152"), ("NCCL_MAX_NCHANNELS", "4")))
    assert sizes(EIGHT, wires)["rings"] == 4 * (8 + 2) * MiB


def test_trees_are_connected_at_once_before_2_22() -> None:
    """Until runtime connect every algorithm is connected when the communicator is made; on one node it then needs a tree's buffers more."""
    assert "trees" not in sizes(EIGHT, Wires(8))
    assert sizes(EIGHT, Wires(8, release=Release("nccl", (2, 20))))["trees"] == 24 * 12 * MiB


def test_a_pair_shares_ring_and_tree() -> None:
    """Of two ranks the neighbours in ring and tree are the same: a tree adds nothing."""
    assert "trees" not in sizes(PAIR, Wires(8, release=Release("nccl", (2, 20))))


def test_all_to_all_has_its_own_connections() -> None:
    """Experts on eight GPUs: 7 peers with 32 channels of 12 MiB each."""
    experts = Communicator("ep", 8, 8, collective=False, peers=7)
    assert sizes(experts, HOPPER)["peers"] == 7 * 32 * 12 * MiB


def test_between_nodes_peers_share_buffers() -> None:
    """Pipeline neighbours on other nodes: a pool of 16 slots of 128 KiB a channel for each direction, however many peers there are."""
    stages = Communicator("pp", 4, 1, collective=False, peers=2)
    assert sizes(stages, HOPPER)["network"] == 2 * 16 * 16 * 128 * 1024


@pytest.mark.parametrize(
    ("mesh", "groups", "more", "names"),
    [
        (Mesh(), "torch", {}, []),
        (Mesh(8, dp_shard=8), "torch", {}, ["world"]),
        (Mesh(8, dp_shard=8), "torch and a clone", {}, ["world", "dp"]),
        (Mesh(16, dp_replicate=2, dp_shard=8), "torch", {}, ["world", "dp_shard", "dp_replicate"]),
        (Mesh(4, ulysses=4), "torch", {}, ["world", "ulysses"]),
        (Mesh(32, tp=4, sp=True, pp=2, dp_shard=4), "core", {"tied": True}, ["world", "tp", "dp", "pp", "embedding"]),
        (Mesh(16, tp=2, ep=4, dp_shard=8), "core", {"experts": True}, ["world", "tp", "dp", "ep", "expert_dp"]),
    ],
)
def test_which_communicators(mesh: Mesh, groups: Groups, more: dict[str, bool], names: list[str]) -> None:
    """Each framework's groups, without those of one rank and those in which nothing runs."""
    assert [c.name for c in communicators(mesh, groups, **more)] == names


def test_where_groups_lie() -> None:
    """Tensor-parallel ranks are neighbours; data-parallel ones lie a model apart, so that on nodes of eight two of them share a node."""
    found = {c.name: (c.ranks, c.node_ranks) for c in communicators(Mesh(32, tp=4, pp=2, dp_replicate=4), "core")}
    assert found == {"world": (32, 8), "tp": (4, 4), "dp": (4, 2), "pp": (2, 1)}


def test_ranges_hold_the_value() -> None:
    """Every row lies in its own range."""
    lines = nccl_lines(communicators(Mesh(64, tp=8, ep=8, pp=2, dp_shard=4), "core", experts=True, tied=True), HOPPER)
    assert all((line.low is None or line.low <= line.bytes) and (line.high is None or line.bytes <= line.high) for line in lines)
    assert any(line.low is not None for line in lines)


def job(gpus: int, **more: Any) -> dict[str, Any]:
    """A small job on several H100."""
    train = {"framework": "transformers", "micro_batch": 1, "seq_len": 128, "precision": "bf16", "sharding": "ddp" if gpus > 1 else "none"}
    return {"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "H100-SXM5-80GB", "gpus": gpus}, "train": train, **more}


def test_seen_by_the_device_alone() -> None:
    """The rows raise peak.device over peak.reserved by their sum and leave torch's figures alone; they are alive in every phase."""
    rank = estimate(job(2)).ranks[0]
    rows = [e for e in rank.ledger if e.id.startswith("nccl/")]
    context = next(e.bytes for e in rank.ledger if e.id == "context/cuda")
    assert sum(e.bytes for e in rows) == 480 * MiB
    assert rank.figures["peak.device"] == rank.figures["peak.reserved"] + context + 480 * MiB
    assert {e.phases for e in rows} == {tuple(p.name for p in rank.phases)}
    assert not [e for e in estimate(job(1)).ranks[0].ledger if e.id.startswith("nccl/")]


def test_settings_of_the_job() -> None:
    """env.nccl of a job reaches the rows."""
    rank = estimate(job(2, env={"nccl": {"NCCL_MAX_NCHANNELS": 2}})).ranks[0]
    assert sum(e.bytes for e in rank.ledger if e.id.startswith("nccl/")) == 2 * 12 * MiB + 3 * 2 * 2 * MiB
