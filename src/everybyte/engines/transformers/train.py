"""Accounts for a step of the Hugging Face Trainer, with peft and trl as they are used with it."""

from __future__ import annotations

import re
from functools import partial

from msgspec.structs import replace

from everybyte.catalog.releases import release_in
from everybyte.job import Job, Train
from everybyte.job.framework import SEVERAL, trainer_of
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.conventions import Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.adapters import prepared_by_trl
from everybyte.rules.from_job.over_gpus import spread
from everybyte.rules.from_job.parallel_plan import rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.step.training import training

UNRAISED = frozenset({"gpt2", "gpt_bigcode", "gpt_neox", "bloom", "falcon", "opt", "mpt", "dbrx"})
"""model_types whose modeling files computed the loss on 16-bit logits until they took loss/loss_utils.py in 4.49 (read in 4.45.2, 4.48.1, 4.49.0)."""


def loss(train: Train, choices: ResolvedSettings, *, network: Network) -> str:
    """Which cross entropy runs: modeling files until 4.45, loss/loss_utils.py with a shifted copy until 4.49, without it from 4.50."""
    kernels = train.kernels or ()
    kind = train.loss.kind if train.loss else None
    if kind == "fused-linear" and "cut-cross-entropy" in kernels:
        return "cut"
    if kind == "fused-linear" or "foak-liger-flce" in kernels:
        return "fused-linear"
    if kind is None and ("liger" in kernels or trainer_of(train) == "unsloth"):
        return "fused-linear"
    release = release_in(train.version, "transformers")
    form = "rebound" if release.has("rebound_loss") else ("shifted" if release.has("shifted_loss") else "")
    if release.has("old_families_unraised") and network.family in UNRAISED:
        # from 4.46 on the plugin's rule names a loss that these files never ask for, so that torch's own cross entropy runs
        return "foak-unraised" if "foak-ce" in kernels and release.has("rebound_loss") else "hf-unraised"
    if "foak-ce" in kernels:
        return f"foak-{form or 'shifted'}"
    return f"hf-{form}" if form else "hf"


REPEATED_KV = frozenset({"mistral", "mixtral"})
"""model_types that repeat keys and values to all heads before flash attention in old releases
(modeling_mistral.py, modeling_mixtral.py: repeat_kv in MistralFlashAttention2.forward)."""


def kbit_keeps(train: Train) -> str:
    """What stays fp32 of a prepared packed base: trl and axolotl cast some of it back; LLaMA-Factory prepares without casts
    (llamafactory/model/model_utils/checkpointing.py prepare_model_for_training, upcast_layernorm is off)."""
    framework = trainer_of(train)
    if framework == "axolotl":
        return "none" if (train.attention or "flash2").startswith(("flash", "flex")) else "all"
    if framework in ("llama-factory", "unsloth"):
        return "none"
    if framework == "trl" or re.search(r"\btrl\b", train.version or ""):
        return prepared_by_trl(train)
    return "all"


SHIPS_ZERO = ("transformers", "axolotl", "llama-factory", "ms-swift")
"""Frameworks that ship DeepSpeed configurations; trl's name no size."""


def conventions(framework: str) -> Conventions:
    """accelerate wraps the models of all of them; axolotl's own fsdp2_prepare_model casts nothing, and everything outside of blocks is the root."""
    return Conventions("accelerate uncast" if framework == "axolotl" else "accelerate", framework if framework in SHIPS_ZERO else "")


def defaults(train: Train, network: Network) -> Defaults:
    """The Trainer's defaults, by version where they changed."""
    release = release_in(train.version, "transformers")
    name = "transformers " + ".".join(str(n) for n in release.number[:2])
    # from_pretrained loads the checkpoint's own type since v5 and fp32 before; TrainingArguments.bf16 is off
    base = Defaults(
        name,
        micro_batch=8,
        precision="bf16" if release.has("loads_own_type") else "fp32",
        loss=partial(loss, network=network),
        input_grads=True,
        kbit_keeps=kbit_keeps,
    )
    # modeling_utils.gradient_checkpointing_enable: use_reentrant True until v5
    base = replace(base, reentrant=release.has("reentrant"), impl="fused" if release.has("fused_optimizer") else "foreach")
    base = replace(base, loads="frozen in 16 bits" if release.has("loads_own_type") else "as stated")
    framework = trainer_of(train)
    if framework == "trl":
        # SFTConfig turns bf16 and recomputation on
        base = replace(base, framework="trl", seq_len=1024, precision="bf16-mixed", recompute="full" if release.has("trl_recomputes") else "none")
        base = replace(base, loads="as stated")  # trainer/utils.py create_model_from_path: fp32, unless model_init_kwargs say so
    elif framework == "axolotl":
        base = replace(base, framework="axolotl", precision="bf16-mixed", impl="fused")
        base = replace(base, loads="all in 16 bits")  # utils/config: `bf16: true` makes torch_dtype bf16, which loaders/model.py loads with
    elif framework == "llama-factory":
        base = replace(base, framework="LLaMA-Factory", precision="bf16-mixed", recompute="full", adapter=replace(base.adapter, targets=("*",)), reentrant=True)
        base = replace(base, loads="frozen in 16 bits")  # model/patcher.py compute_dtype; model/adapter.py makes what is trained fp32
    elif framework == "unsloth":
        base = unsloth(base)
    if train.framework == SEVERAL:
        base = replace(base, loads="all in 16 bits")  # swift/arguments/base_args/model_args.py: torch_dtype of the checkpoint
    repeats = network.family in REPEATED_KV and release.has("mistral_repeats_kv")
    # transformers 5 joined the experts of a layer into grouped products (integrations/moe.py); before, each was a module of its own
    kernels = Kernels(repeat_kv=repeats, experts="grouped" if release.has("grouped_experts") else "loop")
    return replace(base, kernels=kernels, conventions=conventions(train.framework or ""))


def unsloth(base: Defaults) -> Defaults:
    """What Unsloth changes, as its example notebooks run it (two sequences of 2,048 tokens, adapters on all linear layers, use_gradient_checkpointing
    "unsloth"): the base keeps the 16-bit type of the checkpoint, nothing is cast back up for k-bit training, and the inputs of recomputed blocks wait in
    host memory."""
    base = replace(base, framework="unsloth", micro_batch=2, seq_len=2048, precision="bf16-mixed", recompute="full", offloads=True, reentrant=True)
    return replace(base, adapter=replace(base.adapter, targets=("*",)), loads="frozen in 16 bits")


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a Trainer step. Data-parallel ranks are alike."""
    assert job.train is not None
    choices = ResolvedSettings()
    if job.train.framework == SEVERAL:
        choices.assume("where the job is silent, ms-swift is taken to do as transformers does; its own defaults are not worked out")
    if job.train.framework == "unsloth":
        choices.assume("unsloth: its LoRA and norm kernels are taken to keep what peft's and transformers' keep, its fused loss to cut logits as Liger does")
    usual = defaults(job.train, network)
    recipe = recipe_of(job.train, network, usual, choices)
    if job.train.extra:
        from everybyte.engines.transformers.preference import asked_of  # an algorithm is one of the settings
        from everybyte.rules.from_job.preference import preferred

        if (asked := asked_of(job.train)) is not None:
            return preferred(asked, job, network, device, recipe, usual, choices)
    found = spread(job.train, job.hardware, network, recipe, usual, choices)
    bill = training(network, found.recipe, device.compute_capability, layout=found.layout)
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)
