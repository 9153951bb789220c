"""What a version of accelerate or transformers makes of FSDP, what offload leaves on the device, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import headline
from everybyte.basics.errors import BadInput
from everybyte.engines.registry import account
from everybyte.job import read_job
from everybyte.models.source import network_of
from everybyte.rules.accounting.account import Device
from everybyte.rules.sharding.fsdp1 import Fsdp1
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.step.layout import Layout

LLAMA = {"family": "llama", "layers": 4, "hidden": 512, "ffn": 1024, "heads": 8, "kv_heads": 4, "head_dim": 64, "vocab": 1024, "norm": "rmsnorm"}
TRAINER = {"framework": "transformers", "micro_batch": 2, "seq_len": 256, "precision": "bf16-mixed", "dtypes": {"weights": "bf16"}}


def job(gpus: int = 4, **train: Any) -> dict[str, Any]:
    """A job of the small model."""
    return {"model": {"shape": LLAMA}, "hardware": {"gpu": "h100", "gpus": gpus}, "train": {**TRAINER, **train}}


def layout(**train: Any) -> Layout:
    """How its ranks hold the model."""
    read = read_job(job(**train))
    found: Layout = account(read, network_of(read.model, "model"), Device("", 0, "9.0")).ranks[0].bill.layout  # type: ignore[attr-defined]
    return found


def rows(**train: Any) -> Fsdp2:
    """FSDP2's layout."""
    found = layout(sharding="fsdp2", **train)
    assert isinstance(found, Fsdp2)
    return found


def flat(**train: Any) -> Fsdp1:
    """FSDP1's layout."""
    found = layout(sharding="fsdp1", **train)
    assert isinstance(found, Fsdp1)
    return found


def test_casts_of_fsdp2_by_version() -> None:
    """accelerate turned all weights into fp32, then by mistake none, then those that are trained; axolotl and plain loops none."""
    frozen = {"adapter": {"kind": "lora", "rank": 8}}
    old, mistaken, new = (rows(version=f"accelerate {v}", **frozen) for v in ("1.10", "1.13", "1.15"))
    assert [str(x.stored) for x in (old, mistaken, new)] == [str(old.stored), "None", str(old.stored)]
    assert old.stored_frozen is not None
    assert new.stored_frozen is None
    assert rows(framework="axolotl").stored is None
    assert rows(framework="pytorch").stored is None


def test_units_of_fsdp2_by_version() -> None:
    """Embedding, final norm and head are units of their own from accelerate 1.14 on, and for nobody else."""
    assert rows(version="accelerate 1.13").units.apart == ()
    assert "head" in rows(version="accelerate 1.14").kept_units
    assert rows(framework="axolotl", version="accelerate 1.14").units.apart == ()
    assert rows(framework="pytorch").units.apart == ()


def test_gradients_of_earlier_micro_batches() -> None:
    """They are whole under FSDP1's no_sync, and under FSDP2 since accelerate calls set_requires_gradient_sync; a plain loop shares each."""
    assert flat(grad_accum=4).unsharded
    assert not flat(grad_accum=1).unsharded
    assert not flat(grad_accum=4, extra={"sync_each_batch": True}).unsharded
    assert not rows(grad_accum=4, version="accelerate 1.10").unsharded
    assert rows(grad_accum=4, version="accelerate 1.11").unsharded
    assert not rows(framework="pytorch", grad_accum=4).unsharded


def test_prefetching_of_fsdp1() -> None:
    """accelerate asks for none unless told; torch's default is BACKWARD_PRE; units that run again reentrantly have no hooks to fetch others."""
    assert not flat().prefetches
    assert flat(extra={"fsdp_backward_prefetch": "BACKWARD_PRE"}).prefetches
    assert flat(framework="pytorch").prefetches
    asked = {"extra": {"backward_prefetch": "BACKWARD_PRE"}, "recompute": {"policy": "full", "reentrant": True}}
    assert not flat(version="transformers 4.45.2", **asked).prefetches
    assert flat(version="transformers 4.53.0", **asked).prefetches
    assert flat(extra={"forward_prefetch": True}).prefetches_forward


@pytest.mark.parametrize("sharding", ["fsdp1", "fsdp2"])
def test_offload_leaves_the_gathered_units(sharding: str) -> None:
    """Shards, gradients and states go: between two steps two workspaces of cuBLAS and the batch are left, on any number of ranks."""
    kept = headline(job(sharding=sharding))["static.allocated"]
    away, of_eight = (headline(job(gpus, sharding=sharding, offload={"params": "cpu"}))["static.allocated"] for gpus in (4, 8))
    assert away == of_eight <= 2 * 2**25 + 2**14 < kept


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"sharding": "fsdp2", "offload": {"optimizer": "cpu"}}, "train.offload.optimizer"),
        ({"sharding": "fsdp1", "offload": {"params": "nvme"}}, "train.offload.params"),
        ({"sharding": "fsdp1", "offload": {"params": "cpu", "fraction": 0.5}}, "train.offload.params"),
        ({"sharding": "ddp", "offload": {"optimizer": "cpu"}}, "train.offload"),
        ({"sharding": "fsdp1", "extra": {"forward_prefetch": "yes"}}, "train.extra.forward_prefetch"),
        ({"framework": "torchtune", "dtypes": None, "precision": "bf16", "sharding": "ddp"}, "train.sharding"),
        ({"framework": "torchtune", "dtypes": None, "precision": "bf16", "extra": {"custom_sharded_layers": ["layers"]}}, "train.extra.custom_sharded_layers"),
        ({"framework": "litgpt", "dtypes": None, "sharding": "zero2"}, "train.sharding"),
        ({"framework": "litgpt", "dtypes": None, "mesh": {"tp": 2}}, "train.mesh.tp"),
        ({"framework": "litgpt", "dtypes": None, "offload": {"params": "cpu"}}, "train.offload"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], path: str) -> None:
    """One message with the place of the setting."""
    with pytest.raises(BadInput) as error:
        headline(job(**settings))
    assert error.value.path == path
