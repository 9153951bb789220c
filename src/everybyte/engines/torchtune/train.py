"""Accounts for torchtune's recipes full_finetune and lora_finetune, on a single device and distributed.

Read at commits 1814feb1 and bd2a0fc7: torchtune/modules (attention.py, rms_norm.py, position_embeddings.py, feed_forward.py, transformer.py),
modules/loss/ce_chunked_output_loss.py, training/_compile.py, training/_activation_offloading.py, recipes/*_single_device.py, recipes/*_distributed.py.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32
from everybyte.catalog.releases import Release, newest, number_of
from everybyte.engines.torchtune.several import sharded, with_units
from everybyte.job import Adapter, Job, Train
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter as LowRank
from everybyte.layers.recording.setup import Kernels
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.over_gpus import spread
from everybyte.rules.from_job.parallel_plan import rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training

LINEARS = {"output_proj": "o_proj", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
"""torchtune's names of linear layers -> those of the Hugging Face modules."""

ROPE_SOURCE = "torchtune modules/position_embeddings.py: cos and sin of every position in fp32, one buffer that all layers share"


def release_of(version: str | None) -> Release:
    """The month of the code that a job's version names (`2024-05`); the newest where it names none."""
    month = re.search(r"\b20\d\d-\d\d", version or "")
    return newest("torchtune") if month is None else Release("torchtune", number_of(month[0]))


def loss(train: Train, choices: ResolvedSettings) -> str:
    """Chunked cross entropy is the configs' default since 2024-08; compile covers it too."""
    kind = train.loss.kind if train.loss else None
    if kind == "standard":
        return "upcast-output" if release_of(train.version).has("drops_logits") else "upcast-transposed"
    if kind == "fused-linear":
        return "fused-linear"
    return "chunked-compiled" if train.compile else "chunked"


def kernels(train: Train) -> Kernels:
    """Keys and values are copied to all heads before attention. Compiled layers keep what fused kernels keep: pointwise results are worked
    out anew unless a matrix product reads them (functorch/partitioners.py, ban_recompute_materialized_backward)."""
    chunks = (train.loss.chunks if train.loss else None) or 8
    if train.compile:
        return Kernels(repeat_kv=True, norm="fused", rope="fused", mlp="fused", chunks=chunks)
    return Kernels(repeat_kv=True, rope="pairs", chunks=chunks)


DEFAULTS = Defaults(
    "torchtune 0.6",
    compiles=True,
    precision="bf16",
    recompute="full",
    impl="fused",
    loss=loss,
    batch_bytes_per_token=16,
    in_flight=3,
    kbit_keeps=lambda _: "none",
    adapter=LowRank("lora", 8, ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), BF16),
)
"""Defaults of the recipes' configs. `in_flight`: OffloadActivations lets the last five saved tensors wait, of which a checkpointed layer has two."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a recipe. Data-parallel ranks are alike."""
    assert job.train is not None
    train, choices = _renamed(job.train), ResolvedSettings()
    recipe = recipe_of(train, network, replace(DEFAULTS, kernels=kernels(train)), choices)
    recipe = _packed(recipe)
    if train.compile:
        choices.assume("torch.compile covers each layer and the loss: what it fuses keeps no intermediate results")
    train = sharded(train, job.hardware, DEFAULTS.framework, choices)
    found = with_units(spread(train, job.hardware, network, recipe, DEFAULTS, choices), train, network, choices)
    bill = training(network, found.recipe, device.compute_capability, _rope(network), found.layout)
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)


def _renamed(train: Train) -> Train:
    """The job with torchtune's names of linear layers turned into the model's."""
    given = train.adapter
    if given is None or given.targets is None or isinstance(given.targets, str):
        return train
    import msgspec

    targets = tuple(LINEARS.get(name, name) for name in given.targets)
    adapter: Adapter = msgspec.structs.replace(given, targets=targets)
    return msgspec.structs.replace(train, adapter=adapter)


def _packed(recipe: Recipe) -> Recipe:
    """NF4 weights are torchao's NF4Tensor, not bitsandbytes'."""
    packed = recipe.setup.packed
    if packed is None or packed.format != "nf4":
        return recipe
    return replace(recipe, setup=replace(recipe.setup, packed=replace(packed, format="nf4-torchao")))


def _rope(network: Network) -> tuple[Line, ...]:
    """The buffer of rotary positions."""
    block = network.runs[0].layer
    width = getattr(getattr(block, "mixer", None), "head_dim", 0)
    if not width or not network.max_positions:
        return ()
    size = FP32.nbytes(network.max_positions * width)
    return (Line("buffers/rope", "parameter", size, plain("4·p·d", p=network.max_positions, d=width), ROPE_SOURCE, "formula"),)
