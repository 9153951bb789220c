"""Preference and reinforcement learning: which networks are there, how many sequences run, what an engine takes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.releases import Release
from everybyte.estimator import headline
from everybyte.ledger.answer import Answer
from everybyte.rules.preference.model_roles import ALGORITHMS, loss_of

MODEL, GPU = "Qwen/Qwen2.5-0.5B", "a100-80gb"
LORA = {"kind": "lora", "rank": 8, "targets": "all-linear"}


def job(extra: dict[str, Any], *, gpus: int = 1, **train: Any) -> dict[str, Any]:
    """A run of trl on a small model."""
    settings = {"framework": "trl", "version": "trl 0.24", "micro_batch": 2, "seq_len": 256, "precision": "bf16", "extra": extra, **train}
    return {"model": MODEL, "hardware": {"gpu": GPU, "gpus": gpus}, "train": settings}


def rows(answer: Answer, start: str) -> int:
    """Bytes of the rows that live between steps and whose ids start so."""
    return sum(e.bytes for e in answer.worst.ledger if e.id.startswith(start) and "between_steps" in e.phases)


def phase(answer: Answer, name: str) -> int:
    """Allocated bytes of a phase; 0 where it is not there."""
    return next((p.allocated for p in answer.worst.phases if p.name == name), 0)


def test_reference_has_weights_alone() -> None:
    """DPO keeps a second copy of the weights, without gradients and states."""
    alone, dpo = estimate(job({})), estimate(job({"rlhf_type": "dpo"}))
    assert rows(dpo, "reference/weights/") == rows(alone, "weights/")
    assert phase(dpo, "between_steps") - phase(alone, "between_steps") == rows(alone, "weights/") + 24 * 2 * 256  # and the batch is twice as large
    assert rows(dpo, "optimizer/") == rows(alone, "optimizer/")


@pytest.mark.parametrize(
    ("extra", "train"), [({"precompute_ref_log_probs": True}, {}), ({}, {"adapter": LORA}), ({"rlhf_type": "orpo"}, {}), ({"rlhf_type": "grpo"}, {})]
)
def test_no_weights_of_a_reference(extra: dict[str, Any], train: dict[str, Any]) -> None:
    """None where its log-probabilities are known, where adapters are switched off instead, where there is no reference, and where beta is 0."""
    assert rows(estimate(job({"rlhf_type": "dpo", **extra}, **train)), "reference/") == 0


def test_a_named_reference_stays_beside_adapters() -> None:
    """A reference that is named is loaded, adapters or not."""
    named = estimate(job({"rlhf_type": "dpo", "ref_model": MODEL}, adapter=LORA))
    assert rows(named, "reference/weights/") == rows(named, "weights/")


@pytest.mark.parametrize(("name", "twice"), [("dpo", True), ("orpo", True), ("cpo", True), ("simpo", True), ("rm", True), ("kto", False), ("grpo", False)])
def test_chosen_and_rejected_run_together(name: str, twice: bool) -> None:
    """Pairs double the sequences of a micro-batch: the ids of the batch are twice as many."""
    assert rows(estimate(job({"rlhf_type": name})), "input/batch") == (2 if twice else 1) * rows(estimate(job({})), "input/batch")


def test_reference_runs_beside_what_the_policy_keeps() -> None:
    """DPO scores the reference between forward and backward: its logits come on top of the policy's kept log-probabilities."""
    answer = estimate(job({"rlhf_type": "dpo"}, seq_len=1024))
    living = {e.id: e.bytes for e in answer.worst.ledger if "eval" in e.phases}
    logits = 2 * 4 * 1024 * 151_936
    assert answer.worst.peak_phase == "eval"
    assert any(name.startswith("activations/head") and size >= logits for name, size in living.items())
    assert any(name.startswith("reference/working/head") and size >= logits for name, size in living.items())


def test_rewards_have_no_logits() -> None:
    """A reward model has a score of one number in place of the vocabulary: no loss peak, and no weights of a head."""
    answer = estimate(job({"rlhf_type": "rm"}))
    assert phase(answer, "loss") < phase(answer, "backward")
    assert rows(answer, "weights/head") == 2048  # 896 numbers in 16 bit, to a multiple of 512


def test_ppo_has_four_networks() -> None:
    """PPO trains policy and value model, and keeps a reference and a reward model."""
    answer = estimate(job({"rlhf_type": "ppo", "response_length": 64}))
    policy = rows(answer, "weights/layers")
    found = [rows(answer, start) for start in ("weights/critic.layers", "reference/weights/layers", "reward/weights/layers")]
    assert found == [policy] * 3
    assert rows(answer, "optimizer/critic.layers") == rows(answer, "optimizer/layers")


def test_rollout_of_ppo() -> None:
    """The sampler's scores of all micro-batches: twice 4 bytes for each of 2·8 answers of 120 tokens and each word."""
    answer = estimate(job({"rlhf_type": "ppo", "response_length": 120}, grad_accum=8, adapter=LORA, seq_len=128))
    scores = [e.bytes for e in answer.worst.ledger if e.id == "rollout/scores"]
    assert scores == [2 * 4 * (2 * 8) * 120 * 151_936]


def test_completions_alone_are_scored() -> None:
    """max_completion_length: the head runs on an answer and the token before it."""
    whole, part = (headline(job({"rlhf_type": "grpo", **extra}, recompute="full", adapter=LORA)) for extra in ({}, {"max_completion_length": 64}))
    assert whole["peak.allocated"] - part["peak.allocated"] > (256 - 66) * 2 * 2 * 151_936


def test_fused_head_has_no_logits() -> None:
    """trl from 1.14 makes no logits: DPO then peaks lower than with a copy of them, that lower than before them."""
    extra = {"rlhf_type": "dpo"}
    fused, rolled, copied = (headline(job(extra, version=f"trl {v}", seq_len=2048))["peak.allocated"] for v in ("1.16", "0.24", "1.4"))
    assert fused < rolled < copied


@pytest.mark.parametrize(
    ("name", "trl", "own", "loss"),
    [
        ("dpo", (0, 24), False, "logps-rolled"),
        ("dpo", (0, 29), False, "logps-copied"),
        ("dpo", (1, 13), False, "logps-copied"),
        ("dpo", (1, 14), False, "logps-fused"),
        ("dpo", (0, 29), True, "logps-rolled"),
        ("kto", (1, 4), False, "logps-sliced"),
        ("grpo", (1, 4), False, "logps-scaled"),
        ("grpo", (1, 16), False, "logps-fused"),
        ("orpo", (1, 16), False, "logps-and-entropy"),
    ],
)
def test_loss_by_version(name: str, trl: tuple[int, ...], own: bool, loss: str) -> None:
    """Which form of the loss a version has."""
    assert loss_of(name, Release("trl", trl), own=own) == loss


def test_colocated_engine() -> None:
    """vLLM in the trainer's process takes its share of the device in torch's allocator; asleep, or on a server, nothing."""
    plain = {"rlhf_type": "grpo"}
    alone, beside = (estimate(job(extra)) for extra in (plain, {**plain, "use_vllm": True, "vllm_gpu_memory_utilization": 0.25}))
    share = int(find_gpu(GPU).capacity * 0.25)
    row = next(e for e in beside.worst.ledger if e.id == "engine/vllm")
    assert (row.bytes, row.category, row.basis) == (share, "kv_cache", "assumed")
    assert row.low is not None
    assert row.low < row.bytes == row.high
    assert beside.figures["peak.allocated"] == alone.figures["peak.allocated"] + share
    assert beside.figures["peak.reserved"] >= alone.figures["peak.reserved"] + share
    for more in ({"vllm_enable_sleep_mode": True}, {"vllm_mode": "server"}):
        assert estimate(job({**plain, "use_vllm": True, **more})).figures == alone.figures


def test_default_share_of_the_engine() -> None:
    """trl gives vLLM 0.3 of the device where the job is silent, and the answer says so."""
    answer = estimate(job({"rlhf_type": "grpo", "use_vllm": True}))
    found = {s.key: (s.value, s.origin) for s in answer.settings}
    assert found["train.extra.vllm_gpu_memory_utilization"] == (0.3, "default of trl")


@pytest.mark.parametrize(("sharding", "cut"), [("zero3", True), ("fsdp2", True), ("fsdp1", True), ("zero2", False), ("ddp", False)])
def test_reference_is_cut_as_the_policy(sharding: str, cut: bool) -> None:
    """ZeRO-3 and FSDP cut a reference over the ranks, ZeRO-2 and DDP keep it whole; every replay holds it."""
    one, four = estimate(job({"rlhf_type": "dpo"})), estimate(job({"rlhf_type": "dpo"}, gpus=4, sharding=sharding))
    whole, mine = rows(one, "reference/weights/"), rows(four, "reference/")
    assert (mine < whole / 3) == cut
    assert mine == whole or cut
    assert four.figures["peak.reserved"] >= four.figures["peak.allocated"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_headline_is_the_ledger(name: str) -> None:
    """The figures without rows are the sums of the rows, for every algorithm."""
    asked = job({"rlhf_type": name, "beta": 0.1}, grad_accum=2)
    answer = estimate(asked)
    assert headline(asked)["peak.allocated"] == answer.figures["peak.allocated"]
    for total in answer.worst.phases:
        assert answer.worst.book().total(total.name) == total.allocated


def test_reward_model_that_nobody_knows() -> None:
    """A reward model that is not in the catalogue counts as large as the policy, which the answer says."""
    answer = estimate(job({"rlhf_type": "ppo", "reward_model": "Nobody/Knows-This"}))
    assert any("Nobody/Knows-This is not in the catalogue" in text for text in answer.assumptions)


@pytest.mark.parametrize(
    ("extra", "train", "message"),
    [
        ({"rlhf_type": "gkd"}, {}, r"rlhf_type: 'gkd' is not supported yet; supported: dpo, kto"),
        ({"rlhf_type": "dpo"}, {"framework": "megatron"}, r"rlhf_type: dpo under megatron is not supported yet"),
        ({"rlhf_type": "dpo"}, {"framework": "pytorch"}, r"rlhf_type: dpo under pytorch is not supported yet"),
        ({"stage": "gkd"}, {"framework": "llama-factory"}, r"stage: 'gkd' is not supported yet"),
        ({"rlhf_type": "grpo", "use_vllm": True, "vllm_mode": "beside"}, {}, r"vllm_mode: expected one of colocate, server, got 'beside'"),
        ({"rlhf_type": "grpo", "use_vllm": True, "vllm_gpu_memory_utilization": 1.5}, {}, r"vllm_gpu_memory_utilization: expected a number above 0"),
        ({"rlhf_type": "grpo", "use_vllm": "yes"}, {}, r"use_vllm: expected true or false, got 'yes'"),
        ({"rlhf_type": "grpo", "beta": "none"}, {}, r"beta: expected a number"),
    ],
)
def test_refusals(extra: dict[str, Any], train: dict[str, Any], message: str) -> None:
    """What is not modelled or makes no sense is refused with its key and a way out."""
    with pytest.raises((BadInput, Unsupported), match=message):
        headline(job(extra, **train))


def test_engine_needs_a_device() -> None:
    """A share of a device that the job does not name cannot be worked out."""
    asked = job({"rlhf_type": "grpo", "use_vllm": True})
    del asked["hardware"]
    with pytest.raises(BadInput, match=r"hardware.gpu: is missing: a colocated vLLM"):
        headline(asked)


@pytest.mark.parametrize(("stage", "more"), [("dpo", {}), ("dpo", {"pref_loss": "orpo"}), ("dpo", {"loss_type": "simpo"}), ("kto", {}), ("rm", {})])
def test_llama_factory_scores_in_fp32_over_all_logits(stage: str, more: dict[str, Any]) -> None:
    """Its own trainers hold logits of all tokens in fp32; a reward model has the language model's head beside its value."""
    train = {
        "framework": "llama-factory",
        "micro_batch": 1,
        "seq_len": 1024,
        "precision": "bf16-master",
        "recompute": "full",
        "extra": {"stage": stage, **more},
    }
    found = estimate({"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "a100-80gb", "gpus": 1}, "train": train})
    sequences = 1 if stage == "kto" else 2
    wide = 4 * sequences * 1024 * 151_936
    assert any(row.bytes >= wide and "V" in row.formula and "loss" in row.phases for row in found.worst.ledger)
    assert found.figures["peak.allocated"] > found.figures["static.allocated"] + (wide if stage == "rm" else 2 * wide)
