"""Accounts for nanoGPT's train.py on one GPU."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of
from everybyte.engines.nanogpt.model import rendition
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.recipe import Defaults, recipe_of, refuse_distributed
from everybyte.rules.step.training import training

DEFAULTS = Defaults(
    "nanoGPT",
    micro_batch=12,
    seq_len=1024,
    grad_accum=40,
    precision="bf16-mixed",
    impl="fused",
    loss=lambda train, choices: "nanogpt",
    batch_bytes_per_token=32,
)
"""Defaults of train.py. The next batch is fetched before backward: ids and targets of two batches, int64."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of train.py on one GPU. Raises BadInput or Unsupported with the key's path."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    _refuse(train)
    refuse_distributed(train, job.hardware, "nanoGPT")
    if train.compile is None:
        choices.assume("compile = False: train.py's default is True, and what compiled blocks keep is less than this")
    recipe = recipe_of(train, network, DEFAULTS, choices)
    if recipe.setup.compute is None and train.precision not in ("fp32", None):
        raise Unsupported("train.precision", f"{train.precision!r}: train.py keeps fp32 weights; say fp32, bf16-mixed or fp16-mixed")
    rate = choices.pick("train.dropout", train.dropout, 0.0, default_of("nanoGPT"))
    recipe = replace(recipe, setup=replace(recipe.setup, dropout=rate), graph_outlives=True)
    form = rendition(network)
    bill = training(form, recipe, device.compute_capability)
    return Account((Rank(bill),), choices, bill.trained_params)


def _refuse(train: Train) -> None:
    for key in ("adapter", "quantization", "freeze", "loss", "kernels", "extra"):
        if getattr(train, key):
            raise Unsupported(f"train.{key}", "is not in nanoGPT: it trains all weights with one cross entropy")
    if train.compile:
        raise Unsupported(
            "train.compile", "what torch.compile keeps of nanoGPT's blocks depends on its fusions and is not supported; set train.compile to false"
        )
    if train.recompute is not None and train.recompute.policy not in (None, "none"):
        raise Unsupported("train.recompute", "nanoGPT has no recomputation")
