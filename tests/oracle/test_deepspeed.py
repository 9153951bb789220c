"""ZeRO against DeepSpeed itself: partition sizes, sub-groups, persistent parameters, and the coordinator of stage 3 module by module.

DeepSpeed is not needed to run this: data/deepspeed_zero.json holds what its engine said on CPU (record_deepspeed.py asked it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everybyte.basics.dtypes import BF16
from everybyte.job import read_job
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.models.source import network_of
from everybyte.rules.sharding.zero.gather import Gathering, _Coordinator, _trace, live, persistent
from everybyte.rules.sharding.zero.partitions import flat_group, partitions
from everybyte.rules.step.recipe import RecomputePlan

DATA = json.loads((Path(__file__).parent / "data" / "deepspeed_zero.json").read_text())
SETUP = Setup(weights=BF16)
SHAPE = {"family": "llama", "layers": 6, "hidden": 64, "ffn": 176, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 1000, "tied": False}
NO_LIMIT = 10**18


@pytest.fixture(scope="module")
def network() -> Network:
    """The model that DeepSpeed was given."""
    return network_of(read_job({"model": {"shape": SHAPE}, "train": {}}).model, "model")


@pytest.mark.parametrize("case", DATA["flat"])
def test_flat_partitions(network: Network, case: str) -> None:
    """Stages 1 and 2 flatten and divide as DeepSpeed does; the parameters that a partition reaches into are those of its fullest rank."""
    theirs, ranks = DATA["flat"][case], int(case.partition("/")[2])
    ours = flat_group(network, SETUP, ranks)
    assert (ours.partition, ours.numel + ours.padding) == (theirs["partition"], theirs["flat"])
    assert ours.touched == max(theirs["own"].values())


@pytest.mark.parametrize("case", DATA["cut"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_cut_partitions(network: Network, case: str, ranks: int) -> None:
    """Stage 3 cuts every parameter, groups the parts for the step and keeps small parameters whole as DeepSpeed does."""
    theirs = DATA["cut"][case]
    sizes, settings = theirs["ranks"][str(ranks)], theirs["settings"]
    ours = partitions(network, SETUP, ranks, settings["sub_group_size"])
    assert list(ours.sub_groups) == sizes["sub_groups"]
    assert ours.numel == sizes["flat"] == sizes["gradients"]
    assert persistent(network, SETUP, settings["stage3_param_persistence_threshold"], NO_LIMIT)[0] == theirs["persistent"]


def gathering(settings: dict[str, Any]) -> Gathering:
    """DeepSpeed's names -> ours."""
    return Gathering(
        settings["stage3_prefetch_bucket_size"],
        settings["stage3_max_live_parameters"],
        settings["stage3_max_reuse_distance"],
        settings["stage3_param_persistence_threshold"],
        NO_LIMIT,
        joined=True,
    )


@pytest.mark.parametrize("case", DATA["cut"])
def test_coordinator_module_by_module(network: Network, case: str) -> None:
    """After each module that is entered, forward, recomputed and backward, as many numbers are gathered as DeepSpeed's coordinator counts."""
    theirs = DATA["cut"][case]
    recompute = RecomputePlan(theirs["recompute"])
    coordinator = _Coordinator(*_trace(network, SETUP, recompute, gathering(theirs["settings"])), gathering(theirs["settings"]))
    ours: list[int] = []
    prefetch = coordinator._prefetch

    def watched(step: int, members: tuple[int, ...]) -> None:
        prefetch(step, members)
        ours.append(coordinator.numel)

    coordinator._prefetch = watched  # type: ignore[method-assign]
    list(coordinator.run())
    assert ours == theirs["available"]


@pytest.mark.parametrize("case", DATA["cut"])
def test_live_bytes_hold_what_is_gathered(network: Network, case: str) -> None:
    """The bytes of a layer hold the numbers that are gathered then, and at most the buffers they came in beside them."""
    theirs = DATA["cut"][case]
    found = live(network, SETUP, RecomputePlan(theirs["recompute"]), gathering(theirs["settings"]))
    highest = max(max(row) for row in found.values())
    assert 2 * max(theirs["available"]) <= highest <= 4 * max(theirs["available"])
