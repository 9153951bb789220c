"""DeepSpeed's ZeRO on jobs: settings, buckets, the step, offload and host memory, the riddles that people ask about."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.ledger.answer import Answer
from everybyte.ledger.entry import Entry

GB = 10**9
SMALL = {
    "family": "llama",
    "layers": 24,
    "hidden": 896,
    "ffn": 4864,
    "heads": 14,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 151936,
    "tied": True,
    "norm": "rmsnorm",
    "activation": "swiglu",
}
"""Half a billion parameters."""
THIRTEEN = {
    "family": "llama",
    "layers": 40,
    "hidden": 5120,
    "ffn": 13824,
    "heads": 40,
    "kv_heads": 40,
    "head_dim": 128,
    "vocab": 32000,
    "tied": False,
    "norm": "rmsnorm",
    "activation": "swiglu",
}


def job(shape: dict[str, Any], sharding: str, gpus: int = 8, gpu: str = "a100-80gb", **train: Any) -> dict[str, Any]:
    """A full fine-tuning with recomputed blocks."""
    section = {
        "framework": "transformers",
        "micro_batch": 1,
        "seq_len": 1024,
        "precision": "bf16-mixed",
        "recompute": "full",
        "attention": "flash2",
        "sharding": sharding,
        **train,
    }
    return {"model": {"shape": copy.deepcopy(shape)}, "hardware": {"gpu": gpu, "gpus": gpus, "gpus_per_node": 8}, "train": section}


def row(answer: Answer, name: str) -> Entry:
    """The row with this id."""
    return next(e for e in answer.worst.ledger if e.id == name)


def size(answer: Answer, name: str) -> int:
    """Bytes of a row; 0 if it is not there."""
    return max((e.bytes for e in answer.worst.ledger if e.id == name), default=0)


# -- riddles ------------------------------------------------------------------------------------------------------------------------


def test_zero_2_larger_than_zero_1() -> None:
    """Until DeepSpeed 0.13 stage 1 had no reduction buckets, whatever the configuration said: with a small model stage 2 then needs more, by two
    buckets of 5e8 numbers, one of which overlap_comm adds. Since pull request 4887 stage 1 has them as well, and the two are equal."""
    old = {stage: estimate(job(SMALL, stage, version="deepspeed 0.12")) for stage in ("zero1", "zero2")}
    more = old["zero2"].figures["peak.allocated"] - old["zero1"].figures["peak.allocated"]
    assert size(old["zero1"], "buckets/reduce") == 0
    assert more == size(old["zero2"], "buckets/reduce") >= 2 * 2 * 500_000_000
    new = [headline(job(SMALL, stage, version="deepspeed 0.18"))["peak.allocated"] for stage in ("zero1", "zero2")]
    assert new[0] == new[1] == old["zero2"].figures["peak.allocated"]


def test_zero_3_larger_than_zero_2() -> None:
    """With DeepSpeed's own sizes a small model is gathered nearly whole under stage 3 (a thousand million parameters may live), and its bucket lives all
    the time: stage 2 needs less, though stage 3 holds less between steps but for the bucket."""
    two, three = (estimate(job(SMALL, stage, framework="deepspeed", precision="bf16-master")) for stage in ("zero2", "zero3"))
    assert three.figures["peak.allocated"] > two.figures["peak.allocated"] + GB
    gathered = max(e.bytes for e in three.worst.ledger if e.id.startswith("gathered/"))
    assert gathered >= 2 * three.model.params
    bucket = size(three, "buckets/reduce")
    assert three.figures["static.allocated"] - bucket < two.figures["static.allocated"]


def test_more_gpus_that_do_not_help() -> None:
    """Under stage 2 the whole 16-bit weights, the buckets and the activations are on every GPU: from 2 to 8 GPUs half is saved, from 64 to 512 a fourteenth."""
    peaks = {n: headline(job(THIRTEEN, "zero2", n))["peak.allocated"] for n in (2, 8, 64, 512)}
    assert peaks[2] > 2.2 * peaks[8]
    assert peaks[64] > peaks[512] > 13 / 14 * peaks[64]
    assert peaks[512] > 2 * 13_015_864_320


def test_thirteen_billion_on_eight_a100_40() -> None:
    """13B under ZeRO-2 on 8 A100-40GB: weights 2P, gradients and states 14P/8, 48.8 GB together, do not fit. ZeRO-3 does, on the same GPUs, and so do
    states in host memory; twice as many GPUs do not."""
    told = estimate(job(THIRTEEN, "zero2", gpu="a100-40gb"))
    weights = sum(e.bytes for e in told.worst.ledger if e.category == "parameter" and "forward" in e.phases)
    states = sum(e.bytes for e in told.worst.ledger if e.category == "optimizer_state")
    shared_gradients = 2 * told.model.params / 8
    assert (weights + states + shared_gradients) / GB == pytest.approx(48.8, abs=0.1)
    assert told.fits is False
    three = estimate(job(THIRTEEN, "zero3", gpu="a100-40gb"))
    host = estimate(job(THIRTEEN, "zero2", gpu="a100-40gb", offload={"optimizer": "cpu"}))
    twice = estimate(job(THIRTEEN, "zero2", 16, gpu="a100-40gb"))
    assert (three.fits, host.fits, twice.fits) == (True, True, False)
    assert not three.host
    assert host.host["bytes"] > 18 * told.model.params


# -- stages 1 and 2 -----------------------------------------------------------------------------------------------------------------


def test_rows_of_stage_2() -> None:
    """Master and moments are exactly 12 bytes a number of the partition, the partition an eighth of the padded parameters."""
    answer = estimate(job(SMALL, "zero2"))
    partition = (answer.model.params + 15) // 16 * 2
    rounded = 2 * 1024 * 1024
    assert partition * 4 <= row(answer, "master/partition").bytes <= partition * 4 + rounded
    assert partition * 8 <= row(answer, "optimizer/partition").bytes <= partition * 8 + rounded
    assert row(answer, "master/partition").symbols["N"] == partition


def test_accumulation_costs_a_second_partition_of_gradients() -> None:
    """With several micro-batches the gradients of earlier ones stay in the partition while the next are made beside them."""
    once, often = (estimate(job(SMALL, "zero2", grad_accum=n, buckets={"reduce": 10**7})) for n in (1, 4))
    assert size(once, "gradients/accumulated") == 0
    assert size(often, "gradients/accumulated") == size(once, "gradients/partition")


def test_stage_1_keeps_whole_gradients_where_nothing_overlaps() -> None:
    """Without overlap_comm stage 1 reduces when backward is done: until then all gradients are there."""
    answer = estimate(job(SMALL, "zero1", extra={"overlap_comm": False}))
    assert row(answer, "gradients/whole").symbols["P"] == answer.model.params
    assert size(estimate(job(SMALL, "zero1")), "gradients/whole") == 0


@pytest.mark.parametrize(("extra", "buckets"), [({"overlap_comm": True}, 2), ({"overlap_comm": False}, 1), ({"contiguous_gradients": False}, 0)])
def test_number_of_buckets(extra: dict[str, bool], buckets: int) -> None:
    """overlap_comm doubles the bucket, contiguous_gradients off has none; they are as large as train.buckets.reduce says."""
    answer = estimate(job(SMALL, "zero2", extra=extra, buckets={"reduce": 2**25}))
    assert size(answer, "buckets/reduce") == buckets * 2 * 2**25


def test_bucket_comes_with_the_first_gradient() -> None:
    """Before DeepSpeed 0.18.3 the bucket was made before backward began, beside the logits; since then the first gradient makes it."""
    old, new = (estimate(job(SMALL, "zero2", version=f"deepspeed {v}")) for v in ("0.18.2", "0.18.3"))
    assert "loss" in row(old, "buckets/reduce").phases
    assert "loss" not in row(new, "buckets/reduce").phases


# -- stage 3 ------------------------------------------------------------------------------------------------------------------------


def test_frozen_base_is_cut_as_well() -> None:
    """LoRA under stage 3: the frozen base is cut over the ranks, states and gradients are those of the adapters alone."""
    lora = {"kind": "lora", "rank": 8, "targets": "all-linear"}
    answer = estimate(job(THIRTEEN, "zero3", adapter=lora))
    weights = sum(e.bytes for e in answer.worst.ledger if e.id.startswith("weights/"))
    assert weights == pytest.approx(2 * answer.model.params / 8, rel=0.01)
    assert row(answer, "master/partition").symbols["N"] == pytest.approx(answer.model.trainable_params / 8, rel=0.01)


def test_scales_of_packed_weights_stay_whole() -> None:
    """QLoRA under stage 3: packed numbers are cut, scales are no parameters and stay on every rank."""
    lora = {"kind": "lora", "rank": 8, "targets": "all-linear"}
    answer = estimate(job(THIRTEEN, "zero3", adapter=lora, quantization={"format": "nf4", "kbit_prep": False}))
    numbers = 40 * 3 * 5120 * 13824
    assert size(answer, "weights/layers.0-39/mlp") == pytest.approx(numbers / 2 / 8 + numbers / 64 * 4, rel=0.001)


def test_second_copy_of_hpz_and_groups_of_mics() -> None:
    """hpZ keeps 2P/8 more on a node of eight; MiCS shards over the ranks of a group instead of all."""
    plain = estimate(job(THIRTEEN, "zero3", 64))
    hpz = estimate(job(THIRTEEN, "zero3", 64, extra={"zero_hpz_partition_size": 8}))
    assert size(hpz, "weights/second copy") == pytest.approx(2 * plain.model.params / 8, rel=0.01)
    mics = estimate(job(THIRTEEN, "zero3", 64, extra={"mics_shard_size": 8}))
    assert mics.figures["static.allocated"] == estimate(job(THIRTEEN, "zero3", 8)).figures["static.allocated"]


def test_auto_sizes_follow_the_width() -> None:
    """transformers fills `auto` in: bucket h², prefetch 0.9 h², persistence 10 h."""
    answer = estimate(job(THIRTEEN, "zero3"))
    assert row(answer, "buckets/reduce").symbols["B"] == 5120**2
    stated = {s.key.rpartition(".")[2]: s.value for s in answer.settings}
    assert stated["reduce_bucket_size"] == stated["stage3_prefetch_bucket_size"] == "auto"


# -- offload ------------------------------------------------------------------------------------------------------------------------


def test_states_in_host_memory() -> None:
    """ZeRO-2 with offload: nothing of the optimizer on the GPU; on the host master, gradients and moments in fp32 and the weights in 16 bit, pinned
    tensors as large as the next power of two, for the eight ranks of a node."""
    answer = estimate(job(SMALL, "zero2", offload={"optimizer": "cpu"}))
    assert not [e for e in answer.worst.ledger if e.category == "optimizer_state"]
    partition = (answer.model.params + 15) // 16 * 2
    power = 1 << (4 * partition - 1).bit_length()
    assert answer.host["host/master"] == answer.host["host/gradients"] == 8 * power
    assert answer.host["host/optimizer"] == pytest.approx(8 * 8 * partition, rel=1e-6)
    assert answer.figures["host.bytes"] == answer.host["bytes"] == sum(v for k, v in answer.host.items() if k != "bytes")
    loose = estimate(job(SMALL, "zero2", offload={"optimizer": "cpu"}, extra={"pin_memory": False}))
    assert loose.host["host/master"] == 8 * 4 * partition


def test_host_memory_that_is_too_small() -> None:
    """A node whose memory is stated and too small does not fit, and a warning says how much is missing."""
    asked = job(SMALL, "zero3", offload={"optimizer": "cpu", "params": "cpu"})
    asked["hardware"]["host_memory_gib"] = 4
    answer = estimate(asked)
    assert answer.fits is False
    assert any("host_memory_gib is 4" in text for text in answer.warnings)
    asked["hardware"]["host_memory_gib"] = 4096
    assert estimate(asked).fits is True


def test_half_of_the_sub_groups_offloaded() -> None:
    """offload.fraction is DeepSpeed's ratio: the first sub-groups stay on the GPU, the others' states are on the host."""
    extra = {"sub_group_size": 10**8}
    all_here = estimate(job(THIRTEEN, "zero3", extra=extra))
    half = estimate(job(THIRTEEN, "zero3", extra=extra, offload={"optimizer": "cpu", "fraction": 0.5}))
    assert row(half, "master/partition").bytes == pytest.approx(row(all_here, "master/partition").bytes / 2, rel=0.1)
    assert half.host["host/master"] > 0


def test_nvme_keeps_swap_buffers_in_memory() -> None:
    """On NVMe the host holds four buffers of the largest sub-group for states, five of 1e8 numbers for parameters, and at most max_in_cpu numbers."""
    asked = job(THIRTEEN, "zero3", offload={"optimizer": "nvme", "params": "nvme"}, extra={"sub_group_size": 10**8, "max_in_cpu": 10**8})
    asked["hardware"]["gpus_per_node"] = 1
    host = estimate(asked).host
    assert host["host/parameter swap buffers"] == 5 * 10**8 * 2
    assert 4 * 4 * 10**8 <= host["host/optimizer swap buffers"] < 4 * 4 * 1.2 * 10**8
    assert host["host/weights"] == 1 << (2 * 10**8 - 1).bit_length()
    assert "host/master" not in host


def test_optimizer_of_torchao_on_the_host() -> None:
    """On one GPU without sharding the states move to the host with a pinned copy of weights and gradients; weights and gradients stay."""
    asked = job(SMALL, "none", 1, framework="pytorch", precision="bf16", offload={"optimizer": "cpu"})
    answer = estimate(asked)
    assert not [e for e in answer.worst.ledger if e.category == "optimizer_state"]
    assert answer.host["host/optimizer"] == pytest.approx(4 * answer.model.params, rel=1e-4)


# -- what is refused ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharding", "more", "path"),
    [
        ("zero2", {"offload": {"params": "cpu"}}, "train.offload.params"),
        ("zero1", {"offload": {"optimizer": "nvme"}}, "train.offload.optimizer"),
        ("zero2", {"offload": {"optimizer": "cpu", "fraction": 0.5}}, "train.offload.fraction"),
        ("zero3", {"extra": {"mics_shard_size": 3}}, "train.extra.mics_shard_size"),
        ("zero3", {"extra": {"sub_group_size": "many"}}, "train.extra.sub_group_size"),
        ("zero2", {"extra": {"overlap_comm": 1}}, "train.extra.overlap_comm"),
        ("zero3", {"extra": {"sub_group_size": "auto"}}, "train.extra.sub_group_size"),
    ],
)
def test_impossible_settings(sharding: str, more: dict[str, Any], path: str) -> None:
    """What DeepSpeed refuses, and settings of the wrong kind, are refused with the key's path."""
    with pytest.raises(BadInput) as caught:
        estimate(job(SMALL, sharding, **more))
    assert caught.value.path == path


def test_unanswered_features_are_named() -> None:
    """Quantised communication changes what is held: it is not answered with the wrong number."""
    with pytest.raises(Unsupported, match="zero_quantized_weights"):
        estimate(job(SMALL, "zero3", extra={"zero_quantized_weights": True}))


def test_stage_0_of_the_engine() -> None:
    """DeepSpeed without ZeRO is not answered."""
    with pytest.raises(Unsupported, match="zero1, zero2, zero3"):
        estimate(job(SMALL, "ddp", framework="deepspeed"))


def test_muon_keeps_one_moment_of_matrices() -> None:
    """DeepSpeed's Muon has a flat partition for the matrices of the blocks with one moment, and one for the rest with AdamW's two."""

    def states(optimizer: str, stage: str) -> int:
        train = {"framework": "deepspeed", "micro_batch": 1, "seq_len": 512, "precision": "bf16-master", "optimizer": optimizer, "sharding": stage}
        rows = estimate({"model": "Qwen/Qwen2.5-3B", "hardware": {"gpu": "a100-80gb", "gpus": 8}, "train": train}).worst.ledger
        return sum(row.bytes for row in rows if row.id.startswith("optimizer/"))

    matrices = 36 * (2048 * 2048 * 2 + 2 * 256 * 2048 + 3 * 2048 * 11008)
    for stage in ("zero2", "zero3"):
        assert states("adamw", stage) - states("muon", stage) == pytest.approx(4 * matrices / 8, rel=1e-3)
