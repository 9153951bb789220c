"""What holds for every network and number of ranks under ZeRO."""

from __future__ import annotations

from typing import Any

from arithmetic_of_rows import calculate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everybyte import estimate, headline
from everybyte.basics.dtypes import BF16
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR
from everybyte.models.count import tensors
from everybyte.models.source import network_of
from everybyte.rules.sharding.zero.partitions import flat_group, partitions, trained_numels

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHAPES = st.fixed_dictionaries(
    {
        "family": st.just("llama"),
        "layers": st.integers(1, 5),
        "hidden": st.sampled_from([64, 96, 256]),
        "ffn": st.sampled_from([128, 352, 1000]),
        "heads": st.just(4),
        "kv_heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.just(16),
        "vocab": st.integers(7, 4000),
        "tied": st.booleans(),
    }
)
RANKS = st.integers(1, 70)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A small ZeRO run of any stage, with any sizes."""
    stage = draw(st.sampled_from(["zero1", "zero2", "zero3"]))
    sizes = st.sampled_from([0, 1000, 20_000, 10**6, 10**9])
    extra: dict[str, Any] = {"overlap_comm": draw(st.booleans())}
    if stage == "zero3":
        names = (
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "sub_group_size",
        )
        extra |= {name: draw(sizes) for name in names}
    train: dict[str, Any] = {
        "framework": draw(st.sampled_from(["transformers", "deepspeed", "trl", "axolotl", "llama-factory", "accelerate"])),
        "sharding": stage,
        "micro_batch": 1,
        "seq_len": draw(st.sampled_from([8, 256])),
        "grad_accum": draw(st.integers(1, 2)),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "precision": draw(st.sampled_from(["bf16-mixed", "fp32", "fp16-mixed"])),
        "buckets": {"reduce": draw(st.sampled_from([1000, 10**5, 10**8]))},
        "extra": extra,
    }
    if draw(st.booleans()):
        train["adapter"] = {"kind": "lora", "rank": 4, "targets": "all-linear"}
    if draw(st.booleans()):
        train["offload"] = {"optimizer": "cpu", **({"params": draw(st.sampled_from(["none", "cpu", "nvme"]))} if stage == "zero3" else {})}
    return {"model": {"shape": draw(SHAPES)}, "hardware": {"gpu": "a100-80gb", "gpus": draw(st.integers(1, 9))}, "train": train}


@given(SHAPES, RANKS, st.booleans())
@some
def test_partitions_of_a_flat_tensor(shape: dict[str, Any], ranks: int, round_robin: bool) -> None:
    """The partitions cover all parameters with less padding than 2 numbers a rank; the fullest rank's parameters cover its partition; the parameters
    of all ranks together are all, so that the fullest has at least the average."""
    network, setup = network_of(read_job({"model": {"shape": shape}, "train": {}}).model, "model"), Setup(weights=BF16)
    group, total = flat_group(network, setup, ranks, round_robin), sum(trained_numels(network, setup))
    assert group.numel == total
    assert total <= group.partition * ranks == total + group.padding < total + 2 * ranks
    assert group.touched * ranks >= total
    assert group.touched >= min(group.partition, total)
    assert group.largest == max(trained_numels(network, setup))


@given(SHAPES, RANKS, st.integers(0, 10**6))
@some
def test_parts_of_each_parameter(shape: dict[str, Any], ranks: int, sub_group: int) -> None:
    """Sub-groups add up to a rank's parts, every part is at least an even share, and less than one number a parameter is padding."""
    network, setup = network_of(read_job({"model": {"shape": shape}, "train": {}}).model, "model"), Setup(weights=BF16)
    numels = trained_numels(network, setup)
    found = partitions(network, setup, ranks, sub_group)
    assert sum(found.sub_groups) == found.numel
    assert sum(numels) <= found.numel * ranks < sum(numels) + ranks * len(numels)
    assert all(size >= min(sub_group, found.numel) for size in found.sub_groups[:-1])
    assert max(found.sub_groups) == found.sub_group


@given(jobs())
@some
def test_rows_add_up_and_explain_themselves(job: dict[str, Any]) -> None:
    """Rows add up to their phases, formulas give their bytes, totals without rows are the same, reserved is at least allocated, hosts add up."""
    answer = estimate(job)
    rank = answer.worst
    for phase in rank.phases:
        assert sum(e.bytes for e in rank.ledger if phase.name in e.phases and e.category not in OUTSIDE_ALLOCATOR) == phase.allocated
    for entry in rank.ledger:
        assert calculate(entry.formula, entry.symbols) == entry.bytes, entry
        assert entry.bytes > 0
    quick = headline(job)
    assert all(answer.figures[name] == value for name, value in quick.items())
    assert answer.figures["peak.allocated"] <= answer.figures["peak.reserved"]
    assert answer.host.get("bytes", 0) == sum(v for k, v in answer.host.items() if k != "bytes")


@given(jobs())
@some
def test_states_shrink_with_ranks(job: dict[str, Any]) -> None:
    """Twice as many ranks never hold more between steps, but for the rounding of what stands for each tensor: itself, its partition, their gradients,
    the master copy and two moments. One rank is left out: its partition of a weight that always stays whole is that weight itself."""
    job = {**job, "hardware": {**job["hardware"], "gpus": 1 + job["hardware"]["gpus"]}}
    more = {**job, "hardware": {**job["hardware"], "gpus": 2 * job["hardware"]["gpus"]}}
    bill = accounted(read_job(job))[2].ranks[0].bill
    rounding = 7 * 512 * len(tensors(bill.network, bill.recipe.setup))  # type: ignore[attr-defined]
    assert headline(more)["static.allocated"] <= headline(job)["static.allocated"] + rounding
