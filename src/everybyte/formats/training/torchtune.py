"""torchtune: YAML with OmegaConf's interpolation, `tune run RECIPE --config NAME key=value`, and the configurations that it ships."""

from __future__ import annotations

import csv
import re
from functools import cache
from os.path import dirname, join

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.place import Given
from everybyte.formats.table import table
from everybyte.formats.training.builders import model_of
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.values import boolean, names

FILE = "training/torchtune.csv"
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEPTH = 8
OF_TORCHRUN = frozenset(
    {"nnodes", "nproc_per_node", "config", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "master_addr", "master_port", "node_rank", "max_restarts"}
)
"""Flags that `tune run` hands to torchrun, and its own."""
MODULES = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")
LOSSES = {"LinearCrossEntropyLoss": "chunked", "CEWithChunkedOutputLoss": "chunked", "CrossEntropyLoss": "standard"}
METHODS = {"DPOLoss": "dpo", "RSOLoss": "dpo", "SimPOLoss": "cpo", "PPOLoss": "ppo", "GRPOLoss": "grpo", "GRPOCompletionLoss": "grpo", "GRPOSimpleLoss": "grpo"}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration, whose recipe is not named in it."""
    return _read(of_document(document, context, "torchtune"), recipe="")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`tune run full_finetune_distributed --config llama3_3/70B_full batch_size=2`."""
    run = of_command(command, context, "torchtune", Spelling(known=OF_TORCHRUN))
    words = [word.text for word in run.words if word.text not in ("run", "tune")]
    recipe = words[0] if words else ""
    named = run.bag.take("config")
    if named is not None and isinstance(named.value, str) and not named.value.endswith((".yaml", ".yml")):
        run = run._replace(bag=run.bag.over(_shipped(named, run)))
        recipe = f"{recipe} {named.value}"
    return _read(run, recipe=recipe)


def _shipped(named: Given, run: Run) -> Bag:
    """The settings of a configuration that torchtune ships."""
    row = _recipes().get(str(named.value))
    if row is None:
        run.draft.find(
            "recipe-unknown", "warning", named.place, f"{named.value} is no configuration that torchtune ships; its settings are not known", "give the file"
        )
        return Bag()
    return Bag({key: Given(value, named.place) for key, value in row.items() if value != ""})


@cache
def _recipes() -> dict[str, dict[str, str]]:
    with open(join(dirname(__file__), "torchtune_recipes.csv"), encoding="utf-8", newline="") as lines:
        return {row.pop("config"): row for row in csv.DictReader(lines)}


def resolved(bag: Bag) -> Bag:
    """The bag with `${base}/x` put in; what refers to nothing stays as it is."""
    values = {key: given for key in list(bag) if (given := bag.peek(key)) is not None}

    def put(text: str, depth: int) -> str:
        def one(match: re.Match[str]) -> str:
            inner = values.get(match[1])
            return put(str(inner.value), depth + 1) if inner is not None and depth < _DEPTH else match[0]

        return _REFERENCE.sub(one, text)

    found = {key: Given(put(given.value, 0), given.place) for key, given in values.items() if isinstance(given.value, str) and "${" in given.value}
    return Bag(found).over(bag)


def _read(run: Run, *, recipe: str) -> list[JobDraft]:
    run = run._replace(bag=resolved(run.bag))
    draft = run.draft
    draft.infer("train.framework", "torchtune", "its names of settings")
    component = _model(run)
    _optimizer(run)
    _recompute(run)
    _loss(run)
    _others(run)
    table(FILE).read(run.bag, draft)
    _adapter(run, component)
    _sharding(run, recipe)
    return finished(run)


def _model(run: Run) -> str:
    """`torchtune.models.llama3_1.qlora_llama3_1_8b` names the model, and whether adapters train it."""
    given = run.bag.take("model._component_")
    if given is None:
        return ""
    component = str(given.value).rpartition(".")[2]
    bare = re.sub(r"^(qlora|lora|qdora|dora)_", "", component)
    model = model_of("torchtune", bare)
    if model is not None:
        run.draft.infer("model", model, f"{component} at {given.place}")
    else:
        run.draft.miss("model", f"{component} at {given.place} is no builder that is known here")
    return component


def _adapter(run: Run, component: str) -> None:
    draft, bag = run.draft, run.bag
    modules, mlp, head = (bag.take(f"model.{key}") for key in ("lora_attn_modules", "apply_lora_to_mlp", "apply_lora_to_output"))
    dora, packed = bag.take("model.use_dora"), bag.take("model.quantize_base")
    kind = component.partition("_")[0] if component.startswith(("lora_", "qlora_", "dora_", "qdora_")) else ""
    if not kind:
        return
    place = bag.place("model._component_") or run.path
    is_dora = "dora" in kind or (dora is not None and bool(boolean(dora.value)))
    draft.state("train.adapter.kind", "dora" if is_dora else "lora", place)
    draft.default("train.adapter.rank", 8, of="torchtune")
    draft.default("train.adapter.alpha", 16, of="torchtune")
    targets = [MODULES.get(name, name) for name in (names(modules.value) if modules is not None else None) or []]
    if mlp is not None and boolean(mlp.value):
        targets += MLP
    if head is not None and boolean(head.value):
        targets.append("lm_head")
    if targets and modules is not None:
        draft.state("train.adapter.targets", targets, modules.place)
    if kind.startswith("q") or (packed is not None and boolean(packed.value)):
        draft.state("train.quantization.format", "nf4", packed.place if packed is not None else place)


def _optimizer(run: Run) -> None:
    draft = run.draft
    fused, foreach, inside = run.bag.take("optimizer.fused"), run.bag.take("optimizer.foreach"), run.bag.take("optimizer_in_bwd")
    if fused is not None and boolean(fused.value):
        draft.state("train.optimizer.impl", "fused", fused.place)
    elif foreach is not None and boolean(foreach.value) is False:
        draft.state("train.optimizer.impl", "for-loop", foreach.place)
    if inside is not None and boolean(inside.value):
        draft.state("train.optimizer.in_backward", True, inside.place)
        accum, clip = run.whole("gradient_accumulation_steps"), run.number("clip_grad_norm")
        if (accum or 1) > 1 or clip:
            draft.find(
                "in-backward-accumulates",
                "error",
                inside.place,
                "optimizer_in_bwd forbids gradient accumulation and clipping: torchtune refuses the pair",
                "set one of them off",
            )


def _recompute(run: Run) -> None:
    draft = run.draft
    whole, mode, offload = run.bag.take("enable_activation_checkpointing"), run.bag.take("ac_mode"), run.bag.take("enable_activation_offloading")
    on = whole is not None and bool(boolean(whole.value))
    if mode is not None and str(mode.value) in ("full", "selective"):
        draft.state("train.recompute.policy", str(mode.value), mode.place)
    elif whole is not None:
        draft.state("train.recompute.policy", "full" if on else "none", whole.place)
    else:
        draft.default("train.recompute.policy", "none", of="torchtune")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.activations", "cpu", offload.place)
        if not on:
            draft.find(
                "offload-without-recompute", "error", offload.place, "torchtune offloads activations with enable_activation_checkpointing alone", "set both"
            )


def _loss(run: Run) -> None:
    given = run.bag.take("loss._component_")
    word = str(given.value).rpartition(".")[2] if given is not None else ""
    if given is not None and word in LOSSES:
        run.draft.state("train.loss.kind", LOSSES[word], given.place)
    elif given is not None and word in METHODS:
        run.draft.infer("train.extra.rlhf_type", METHODS[word], f"{word} at {given.place}")


def _others(run: Run) -> None:
    """Teacher and reference models; the precision of weights is that of everything."""
    teacher = run.bag.take("teacher_model._component_")
    if teacher is not None and (model := model_of("torchtune", str(teacher.value).rpartition(".")[2])):
        run.draft.state("train.extra.teacher_model", model, teacher.place)
    run.bag.ignore(key for key in list(run.bag) if key.startswith(("teacher_model", "reference_model")))
    if run.switch("enable_fp8_training"):
        run.state("train.precision", "fp8", "enable_fp8_training")


def _sharding(run: Run, recipe: str) -> None:
    draft, bag = run.draft, run.bag
    reshard, offload, shards = bag.take("fsdp_reshard_after_forward"), bag.take("fsdp_cpu_offload"), bag.take("data_parallel_shard_dim")
    if shards is not None and str(shards.value).isdigit():
        draft.state("train.mesh.dp_shard", int(shards.value), shards.place)
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.params", "cpu", offload.place)
    if reshard is not None and boolean(reshard.value) is False:
        draft.state("train.sharding", "fsdp2-no-reshard", reshard.place)
    elif "distributed" in recipe:
        draft.default("train.sharding", "fsdp2", of="torchtune's distributed recipes")
    elif "single_device" in recipe:
        draft.default("train.sharding", "none", of="torchtune's recipes for one device")
