"""Sums without rows: the quick figures of any layout of a distributed job are the sums of the ledger's rows, and no rank is passed over that is the worst."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.estimator import accounted, headline
from everybyte.job import read_job

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
DENSE = {"family": "gpt", "layers": 8, "hidden": 256, "ffn": 512, "heads": 8, "kv_heads": 4, "vocab": 1000, "max_positions": 1024}
LLAMA = {"family": "llama", "layers": 8, "hidden": 256, "ffn": 512, "heads": 8, "kv_heads": 8, "vocab": 1024}
MIXTURE = {
    "family": "moe",
    "layers": 8,
    "hidden": 256,
    "ffn": 512,
    "heads": 8,
    "kv_heads": 8,
    "vocab": 1024,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "moe_layers": [2, 3, 4, 5, 6, 7],
    "shared_expert_ffn": 128,
}
LATENT = {
    "family": "mla",
    "layers": 8,
    "hidden": 256,
    "ffn": 1024,
    "heads": 8,
    "vocab": 1024,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 128,
    "mtp": 1,
    "moe_layers": [1, 2, 3, 4, 5, 6, 7],
    "mla": {"q_lora": 96, "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v": 32},
}
SHARDINGS = {
    "megatron": ("ddp", "distributed-optimizer", "megatron-fsdp"),
    "torchtitan": ("fsdp2", "fsdp2-no-reshard", "hsdp"),
    "transformers": ("none", "ddp", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", "hsdp", "zero1", "zero2", "zero3"),
    "deepspeed": ("zero1", "zero2", "zero3"),
    "pytorch": ("ddp", "fsdp1", "fsdp2"),
}
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"overlap-grad-reduce": True},
    {"moe-token-dispatcher-type": "alltoall"},
    {"defer-embedding-wgrad-compute": True},
    {"transformer-impl": "local"},
    {"moe-token-dispatcher-type": "alltoall", "moe-expert-capacity-factor": 1.5},
    {"grad-reduce-in-bf16": True},
)


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """A small model on up to 64 GPUs, divided in any way."""
    framework = draw(st.sampled_from(sorted(SHARDINGS)))
    train: dict[str, Any] = {
        "framework": framework,
        "micro_batch": draw(st.integers(1, 3)),
        "seq_len": draw(st.sampled_from([64, 128, 256])),
        "grad_accum": draw(st.sampled_from([1, 8, 16])),
        "sharding": draw(st.sampled_from(SHARDINGS[framework])),
        "recompute": draw(st.sampled_from(["none", "selective", "full", {"policy": "full", "every": 2}])),
    }
    shape = draw(st.sampled_from([DENSE, MIXTURE, LATENT] if framework == "megatron" else [LLAMA, MIXTURE]))
    if framework in ("megatron", "torchtitan"):
        pp, virtual = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
        mesh = {"tp": draw(st.sampled_from([1, 2])), "pp": pp, "cp": draw(st.sampled_from([1, 2]))}
        if shape in (MIXTURE, LATENT):
            mesh |= {"ep": draw(st.sampled_from([1, 2, 4])), "etp": 1}
        train["mesh"] = {**mesh, "sp": mesh["tp"] > 1}
        if pp > 1:
            schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"] if virtual == 1 else ["interleaved"]))
            train["pipeline"] = {"schedule": schedule, "virtual": virtual}
    if framework == "megatron":
        train["extra"] = draw(st.sampled_from(EXTRAS))
    if framework == "torchtitan":
        train["compile"] = draw(st.booleans())
    return {"model": {"shape": shape}, "hardware": {"gpu": "h100-80gb", "gpus": draw(st.sampled_from([8, 16, 64]))}, "train": train}


SPENT: dict[str, Any] = {
    "model": {"shape": LLAMA},
    "hardware": {"gpu": "h100-80gb", "gpus": 8},
    "train": {
        "framework": "torchtitan",
        "micro_batch": 1,
        "seq_len": 64,
        "sharding": "fsdp2",
        "mesh": {"tp": 2, "pp": 4},
        "pipeline": {"schedule": "interleaved", "virtual": 2},
    },
}
"""The highest instant is behind that at which a layer's gradients are used up."""


@given(layouts())
@example(SPENT)
@some
def test_totals_are_the_sums_of_the_rows(layout: dict[str, Any]) -> None:
    """Of each rank, phase by phase; and the quick figures are those of the highest of all ranks, whether or not another one covers them."""
    try:
        job = read_job(layout)
        ranks = accounted(job)[2].ranks
    except BadInput:
        reject()
    peaks = []
    for rank in ranks:
        rows = {phase.name: phase.allocated for phase in rank.bill.ledger().phases()}
        assert rows == {phase: size for phase, size in rank.bill.totals().items() if size}
        peaks.append(max(rows.values()))
    assert headline(job)["peak.allocated"] == max(peaks)


@given(layouts(), st.integers(1, 3))
@some
def test_what_was_asked_before_changes_nothing(layout: dict[str, Any], more: int) -> None:
    """Layouts share what they have in common: a neighbour that was answered in between leaves the figures as they are."""
    try:
        first = headline(layout)
        headline({**layout, "train": {**layout["train"], "micro_batch": layout["train"]["micro_batch"] + more}})
    except BadInput:
        reject()
    assert headline(layout) == first
