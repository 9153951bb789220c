"""prime-rl's trainers: models of transformers or its own, FSDP2, full recomputing, several LoRA runs at once."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32
from everybyte.basics.origin import default_of, inferred
from everybyte.engines.prime_rl.extra import Keys
from everybyte.job import Job, Train
from everybyte.job.extra import section
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.token_choice import TokenChoice
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Adapter, Kernels
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan, rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.optimizers.plan import OptimizerPlan
from everybyte.rules.parallel.mesh import mesh_of
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.sharding.fsdp_units import Units
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import training

NAME = "prime-rl"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts")
"""LoRAConfig.target_modules."""
LORA = Adapter("multi-lora", 16, TARGETS, BF16)


def loss(train: Train, choices: ResolvedSettings) -> str:
    """Reinforcement learning takes log-probabilities out of a head in pieces; supervised training a cross entropy on all logits."""
    return "log-probabilities" if section(train.extra, Keys).type == "rl" else "held-upcast"


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a trainer. Its ranks are alike. Its launchers set expandable_segments:True (rl.py, k8s/prime-rl/values.yaml)."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    mesh = mesh_of(train, job.hardware, network, choices, sharding="fsdp2")
    defaults = Defaults(
        NAME,
        precision="bf16-mixed",
        attention="flash2",
        loss=loss,
        compiles=True,
        adapter=replace(LORA, kind="lora"),
        kernels=Kernels(),
        batch_bytes_per_token=48,
        recompute="none",
    )
    recipe = _recipe(recipe_of(train, network, defaults, choices), train, choices)
    own = rendition(network)
    layout = Fsdp2(
        degree=mesh.shards,
        stored=FP32,
        stored_frozen=FP32,
        reduce=FP32,
        units=Units(() if network.tied else ("embed", "head")),
        kept_units=() if network.tied else ("head",),
    )
    bill = training(own, recipe, device.compute_capability, layout=layout)
    rank = rank_of(bill, ParallelPlan(recipe, layout, mesh.gpus, mesh), job, device, network.experts)
    return Account((rank,), choices, bill.trained_params, expandable=True)


def _recipe(recipe: Recipe, train: Train, choices: ResolvedSettings) -> Recipe:
    """Weights are gathered in bf16. A run's optimizer is made when the run arrives; with fake batches (`micro_batches`) none does, so that nothing
    is stepped and gradients are never zeroed (trainer/optim.py MultiLoRAOptimizer)."""
    keys = section(train.extra, Keys)
    setup = replace(recipe.setup, weights=BF16, compute=None)
    if setup.adapter is not None:
        runs = choices.pick("train.extra.max_concurrent_runs", keys.max_concurrent_runs, 1, default_of(NAME))
        targets = TARGETS if setup.adapter.targets == ("*",) else setup.adapter.targets
        setup = replace(setup, adapter=replace(setup.adapter, kind="multi-lora", dtype=BF16, targets=targets, options=(("runs", runs),)))
        if runs > 1 and keys.micro_batches is not None:
            choices.note("train.optimizer.name", "none", inferred("fake batches: no run arrives, and no optimizer is made"))
            recipe = replace(recipe, optimizer=OptimizerPlan("sgd", "fused"), gradients_between=True)
    return replace(recipe, setup=setup, stream=BF16, graph_outlives=recipe.setup.kernels.loss == "held-upcast")


@lru_cache(maxsize=64)
def rendition(network: Network) -> Network:
    """Mixtures of experts are prime-rl's own modules, taken over from torchtitan; other models are those of transformers."""
    runs = tuple(replace(run, layer=_block(run.layer)) for run in network.runs)
    return network if runs == network.runs else replace(network, runs=runs)


def _block(layer: object) -> object:
    if not isinstance(layer, Block) or not isinstance(layer.mlp, MoE):
        return layer
    router, experts = layer.mlp.router, layer.mlp.experts
    mlp = TokenChoice(
        layer.mlp.hidden,
        experts.ffn,
        experts.count,
        experts.top_k,
        score="sigmoid" if router.score == "sigmoid" else "softmax",
        normalize=bool(router.normalize),
        shared=layer.mlp.shared,
        shared_name="shared_expert",
    )
    return replace(layer, mlp=mlp)
