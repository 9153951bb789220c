"""xtuner v1, `xtuner/v1/train/cli/sft.py`, FSDP2 with every end of the network as a unit of its own."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan, rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.parallel.mesh import mesh_of
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.sharding.fsdp_units import Units
from everybyte.rules.step.training import training

NAME = "xtuner"


def loss(train: Train, choices: ResolvedSettings) -> str:
    """The command line asks for a chunked loss (train/arguments/arguments.py `chunked_loss=True`), which is Liger's where that is installed
    (train/trainer.py from_config)."""
    kind = choices.pick("train.loss.kind", train.loss.kind if train.loss else None, "fused-linear", default_of(NAME))
    if kind not in ("fused-linear", "standard"):
        raise Unsupported("train.loss.kind", f"{kind!r} is not supported for xtuner; supported: fused-linear and standard")
    return "fused-linear" if kind == "fused-linear" else "hf"


DEFAULTS = Defaults(
    NAME,
    precision="bf16-mixed",
    attention="flash2",
    loss=loss,
    recompute="full",
    reentrant=True,
    impl="for-loop",
    batch_bytes_per_token=24,
)
"""The command line's optimizer is `AdamW(foreach=False)` (train/arguments/arguments.py), its recomputing reentrant (model/dense/dense.py); that
leaves the last block out, which is counted as recomputed here."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a trainer. Its ranks are alike: fp32 shards, gathered and summed in bf16 (config/fsdp.py), the last block not freed after
    forward (model/dense/dense.py fully_shard)."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    mesh = mesh_of(train, job.hardware, network, choices, sharding="fsdp2")
    recipe = recipe_of(train, network, DEFAULTS, choices)
    recipe = replace(recipe, setup=replace(recipe.setup, weights=BF16, compute=None), stream=BF16)
    layout = Fsdp2(degree=mesh.shards, stored=FP32, reduce=BF16, units=Units(("embed", network.tail_label, "head")), keeps_last=True)
    bill = training(network, recipe, device.compute_capability, layout=layout)
    rank = rank_of(bill, ParallelPlan(recipe, layout, mesh.gpus, mesh), job, device, network.experts)
    return Account((rank,), choices, bill.trained_params)
