"""torchtitan's versions, its settings, and jobs that it cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.engines.torchtitan.pipeline import counts
from everybyte.engines.torchtitan.release import release_of
from everybyte.rules.parallel.schedules import Plan

MODEL = "meta-llama/Meta-Llama-3.1-8B"


def job(gpus: int = 8, **train: Any) -> dict[str, Any]:
    """A run of Llama 3.1 8B."""
    return {"model": MODEL, "hardware": {"gpu": "h100", "gpus": gpus}, "train": {"framework": "torchtitan", "micro_batch": 1, "seq_len": 8192, **train}}


@pytest.mark.parametrize(
    ("version", "day"),
    [
        ("2024-12 (torch 1963fc8, titan 9dec370)", (2024, 12, 31)),
        ("2025-03-20", (2025, 3, 20)),
        ("2025 (torch 2.7.0a0, titan 0.0.2)", (2025, 3, 17)),
        ("2026 (torch 2.14.0a0)", (2026, 8, 21)),
        ("0.1.0", (2025, 6, 5)),
        (None, (2026, 8, 21)),
    ],
)
def test_versions_are_days(version: str | None, day: tuple[int, int, int]) -> None:
    """A date, its last day where it is short, no later than the PyTorch build beside it; or the day of a tag."""
    assert release_of(version).number == day


def test_what_versions_changed() -> None:
    """The loss is compiled from 2025-04 on, keys are repeated until 2026-01, embedding and head have units of their own from 2025-07-28 on."""
    assert [release_of(day).has("compiles_loss") for day in ("2025-04-01", "2025-04-02")] == [False, True]
    assert [release_of(day).has("repeats_kv") for day in ("2026-01-26", "2026-01-27")] == [True, False]
    assert [release_of(day).has("separate_ends") for day in ("2025-07-27", "2025-07-28")] == [False, True]
    assert [release_of(day).has("rope_by_layer") for day in ("2026-06-04", "2026-06-05")] == [False, True]
    assert [release_of(day).has("fuses_qkv") for day in ("2026-06-23", "2026-06-24")] == [False, True]


def test_layers_of_stages() -> None:
    """126 layers on 8 stages: the middle ones get what is left over (2024), or embedding and head count as layers (from 2025-07-30 on)."""
    plan = Plan("1f1b", 8, 1, 8, 8)
    assert counts(126, plan, release_of("2024-12")) == (15, 16, 16, 16, 16, 16, 16, 15)
    assert counts(126, plan, release_of("2025-08")) == (15, 16, 16, 16, 16, 16, 16, 15)
    assert counts(32, plan, release_of("2024-12")) == (4,) * 8
    assert sum(counts(33, plan, release_of("2025-08"))) == 33


def test_stages_are_ranks_of_their_own() -> None:
    """A pipeline has one kind of rank for each stage; the first keeps most micro-batches."""
    answer = estimate(job(gpus=64, mesh={"pp": 4, "dp_shard": 16}, pipeline={"schedule": "1f1b", "microbatches": 8}, recompute="full"))
    assert [rank.label for rank in answer.ranks] == ["pp0", "pp1", "pp2", "pp3"]
    assert [rank.gpus for rank in answer.ranks] == [16] * 4
    kept = [sum(e.bytes for e in rank.ledger if e.id.startswith("in flight/")) for rank in answer.ranks]
    assert kept[0] > kept[1] > kept[2] > kept[3] == 0


def test_every_layer_has_a_table_of_positions() -> None:
    """Since 2026-06 each of 32 layers has 131,072 positions of d/2 complex numbers: 64 MiB."""
    before, since = (estimate(job(version=day, recompute="full")).figures["static.allocated"] for day in ("2026-06-04", "2026-06-05"))
    assert since - before == 32 * 131_072 * 64 * 8


def pipeline(gpus: int, **plan: Any) -> list[Any]:
    """The ranks of a pipeline of four stages under FSDP2 that recompute all."""
    return list(estimate(job(gpus=gpus, mesh={"pp": 4, "dp_shard": gpus // 4}, pipeline=plan, recompute="full", grad_accum=plan["microbatches"])).ranks)


def test_stages_have_tensors_for_what_neighbours_send() -> None:
    """Of 8 micro-batches each stage has a tensor for the input and one for the gradient of the output; inputs in flight are in them. Outputs stay
    until their gradient is back."""
    hidden = 8192 * 4096 * 2
    ranks = pipeline(64, schedule="1f1b", microbatches=8)
    received = [sum(e.bytes for e in rank.ledger if e.id.startswith("pipeline/received")) // hidden for rank in ranks]
    assert received == [8, 16 - 3, 16 - 2, 8 - 1]
    sent = [sum(e.bytes for e in rank.ledger if e.id.startswith("in flight/sent")) // hidden for rank in ranks]
    assert sent == [3, 2, 1, 0]


def test_a_stage_shares_its_gradients_before_the_next_one_begins() -> None:
    """With two stages on a rank and micro-batches in one group, the earlier stage's gradients are shares while the later one's are whole; with more
    groups stages take turns, and both are whole."""
    whole = []
    for microbatches in (4, 8):
        rank = pipeline(64, schedule="interleaved", virtual=2, microbatches=microbatches)[1]
        found = {e.id.split("/")[1]: e.bytes for e in rank.ledger if e.id.endswith("/attention") and e.id.startswith("gradients/") and "backward" in e.phases}
        layer = 4 * (2 * 4096 * 4096 + 2 * 1024 * 4096)
        whole.append([round(found[name] / layer, 4) for name in sorted(found)])
    assert whole == [[4, 5 / 16], [4, 5]]


def test_launchers_decide_on_expandable_segments() -> None:
    """run_train.sh, on one node, sets expandable_segments:True; several nodes and AMD's GPUs go without; a job may say otherwise."""
    usual = estimate(job(loss="standard", recompute="full")).figures["peak.reserved"]
    stated = {flag: estimate({**job(loss="standard", recompute="full"), "env": {"alloc_conf": f"expandable_segments:{flag}"}}) for flag in ("True", "False")}
    assert usual == stated["True"].figures["peak.reserved"] != stated["False"].figures["peak.reserved"]


@pytest.mark.parametrize(
    ("train", "path"),
    [
        ({"mesh": {"tp": 3}}, "train.mesh"),
        ({"mesh": {"tp": 16}}, "train.mesh"),
        ({"extra": {"colour": 1}}, "train.extra.colour"),
        ({"extra": {"activation_checkpoint.selective_ac_option": "most"}}, "train.extra.activation_checkpoint.selective_ac_option"),
        ({"extra": {"activation_checkpoint.memory_budget": 0.5}}, "train.extra.activation_checkpoint.memory_budget"),
        ({"extra": {"quantization": "nvfp4 somewhere"}}, "train.extra.quantization"),
        ({"adapter": {"kind": "lora"}}, "train.adapter"),
        ({"precision": "fp16"}, "train.precision"),
        ({"sharding": "zero3"}, "train.sharding"),
        ({"attention": "eager"}, "train.attention"),
        ({"offload": {"optimizer": "cpu"}}, "train.offload"),
    ],
)
def test_impossible_jobs_are_refused(train: dict[str, Any], path: str) -> None:
    """Each with the key that is wrong."""
    with pytest.raises((BadInput, Unsupported)) as caught:
        estimate(job(**train))
    assert caught.value.path.startswith(path)


def test_other_models_are_refused() -> None:
    """A model that torchtitan has no modules for says so."""
    with pytest.raises(Unsupported):
        estimate({**job(), "model": "gpt2"})
