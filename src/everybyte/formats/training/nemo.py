"""NeMo: Megatron-Bridge's overrides and recipes, NeMo 1's Hydra files, and the performance scripts of both. AutoModel's YAML is in `automodel.py`."""

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
from everybyte.formats.training import automodel
from everybyte.formats.training.builders import models_of
from everybyte.formats.training.megatron import batch, read_parallel
from everybyte.formats.training.megatron_model import read_model
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.values import boolean, whole

FILES = ("training/nemo.csv", "training/megatron.csv", "training/hf.csv")
PARTS = (
    "model",
    "train",
    "ddp",
    "dist",
    "optimizer",
    "dataset",
    "trainer",
    "checkpoint",
    "scheduler",
    "tokenizer",
    "logger",
    "rng",
    "validation",
    "profiling",
    "mixed_precision",
    "comm_overlap",
    "peft",
    "data",
    "exp_manager",
    "ft",
    "straggler",
    "inprocess_restart",
    "nvrx_straggler",
    "rerun_state_machine",
)
"""Sections whose settings have Megatron's names."""
RENAMED = {
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "virtual_pipeline_parallel_size": "virtual_pipeline_model_parallel_size",
}
_MULTIPLY = re.compile(r"\$\{multiply:\s*(\d+)\s*,\s*\$\{\.?(?:model\.)?(\w+)\}\s*\}")


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A YAML of AutoModel, of overrides, or of NeMo 1."""
    if "step_scheduler" in document.value or "nemo_automodel" in str(document.get("model._target_")):
        return automodel.read_document(document, context)
    return _read(of_document(document, context, "nemo"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`run_recipe.py --recipe NAME model.tensor_model_parallel_size=2`, `scripts/performance/run.py --model_recipe_name ...`."""
    run = of_command(command, context, "nemo", Spelling(known=table(*FILES).known), ("config", "config_file", "config-file"))
    if any(key.startswith(("step_scheduler", "distributed.")) for key in run.bag):
        return automodel.read_run(run)
    return _read(run)


def flat(bag: Bag) -> Bag:
    """`model.tensor_model_parallel_size` -> `tensor_model_parallel_size`; Hydra's products are worked out."""
    found: dict[str, Given] = {}
    for key in list(bag):
        given = bag.take(key)
        if given is None:
            continue
        parts = key.split(".")
        name = parts[-1] if parts[0] in PARTS and len(parts) == 2 else key
        found.setdefault(RENAMED.get(name, name), given)
    for key, given in found.items():
        product = _MULTIPLY.fullmatch(given.value.strip()) if isinstance(given.value, str) else None
        if product and (factor := found.get(product[2])) is not None and (size := whole(factor.value)):
            found[key] = Given(int(product[1]) * size, given.place)
    return Bag(found)


def _read(run: Run) -> list[JobDraft]:
    draft = run.draft
    run = run._replace(bag=_in_megatrons_words(_without_references(flat(run.bag))))
    draft.infer("train.framework", "nemo", "its names of settings")
    run = _recipe(run)
    _hardware(run)
    precision = _precision(run)
    _adapter(run)
    read_model(run)
    read_parallel(run)
    _fallbacks(run, precision)
    table(*FILES).read(run.bag, draft)
    _shape_only_with_sizes(draft)
    batch(run)
    run.bag.ignore(key for key in list(run.bag) if key.partition(".")[0] in PARTS)
    return finished(run)


def _without_references(bag: Bag) -> Bag:
    """Values that Hydra would look up elsewhere (`${data_dir}`) say nothing here."""
    return Bag({key: given for key in list(bag) if (given := bag.peek(key)) is not None and not (isinstance(given.value, str) and "${" in given.value)})


def _in_megatrons_words(bag: Bag) -> Bag:
    """NeMo 1's own switches as the flags that they stand for."""
    found = {key: given for key in list(bag) if (given := bag.peek(key)) is not None}
    eight = found.pop("fp8", None)
    if eight is not None and not isinstance(eight.value, bool):
        found["fp8"] = eight
    elif eight is not None and eight.value:
        found["fp8_format"] = Given("e4m3" if found.get("fp8_e4m3", eight).value is True and "fp8_hybrid" not in found else "hybrid", eight.place)
    for key in ("fp8_e4m3", "fp8_hybrid"):
        found.pop(key, None)
    for theirs, flag in (("model.tokenizer.type", "tokenizer_type"), ("use_flash_attention", "use_flash_attn")):
        if (given := found.pop(theirs, None)) is not None:
            found[flag] = given
    shared, bias, activation = (found.pop(key, None) for key in ("share_embeddings_and_output_weights", "bias", "activation"))
    if shared is not None:
        found["untie_embeddings_and_output_weights"] = Given(boolean(shared.value) is False, shared.place)
    if bias is not None:
        found["add_bias_linear"] = bias
    if activation is not None and (word := ACTIVATIONS.get(str(activation.value))):
        found[word] = Given(True, activation.place)
    return Bag(found)


ACTIVATIONS = {"swiglu": "swiglu", "fast-swiglu": "swiglu", "geglu": "quick_geglu", "fast-geglu": "quick_geglu", "squared-relu": "squared_relu"}
"""NeMo's word -> Megatron-LM's flag; gelu needs none."""


def _recipe(run: Run) -> Run:
    """The model of a recipe's name, and what its function sets."""
    given = run.bag.take("recipe", "model_recipe_name")
    name = str(given.value).casefold() if given is not None else ""
    if given is None:
        run.bag.take("model_name", "restore_from_path")
        return run
    row = _recipes().get(name.removesuffix("_config"))
    builders = models_of("nemo")
    builder = max((known for known in builders if name.startswith(known)), key=len, default=None)
    model = row["model"] if row else builders[builder] if builder else None
    if model is not None:
        run.draft.infer("model", model, f"the recipe {name} at {given.place}")
    else:
        run.draft.miss("model", f"the recipe {name} is not known here")
    settings = {key.partition(".")[2]: Given(value, given.place) for key, value in (row or {}).items() if value and key != "model"}
    return run._replace(bag=run.bag.over(Bag(settings)))


@cache
def _recipes() -> dict[str, dict[str, str]]:
    with open(join(dirname(__file__), "nemo_recipes.csv"), encoding="utf-8", newline="") as lines:
        return {row.pop("recipe"): row for row in csv.DictReader(lines)}


def _hardware(run: Run) -> None:
    draft, bag = run.draft, run.bag
    total, each, kind = bag.take("num_gpus"), bag.take("gpus_per_node"), bag.take("gpu")
    devices, nodes = bag.take("devices"), bag.take("num_nodes")
    if total is not None and (count := whole(total.value)):
        draft.state("hardware.gpus", count, total.place)
    if each is not None and (count := whole(each.value)):
        draft.state("hardware.gpus_per_node", count, each.place)
    if kind is not None:
        draft.state("hardware.gpu", str(kind.value).upper(), kind.place)
    machines = (whole(nodes.value) if nodes is not None else None) or 1
    if devices is not None and (count := whole(devices.value)) and count > 0:
        draft.state("hardware.gpus", count * machines, devices.place)
        if machines > 1:
            draft.state("hardware.gpus_per_node", count, devices.place)


def _adapter(run: Run) -> None:
    """NeMo 1's `model.peft`."""
    inner = run.bag.sub("model.peft")
    scheme = inner.take("peft_scheme")
    if scheme is None or str(scheme.value) not in ("lora", "ia3"):
        inner.ignore(list(inner))
        return
    run.draft.state("train.adapter.kind", str(scheme.value), scheme.place)
    for key, job in (("adapter_dim", "train.adapter.rank"), ("alpha", "train.adapter.alpha")):
        given = inner.take(f"lora_tuning.{key}")
        if given is not None and scheme.value == "lora":
            run.draft.state(job, whole(given.value), given.place)
    inner.ignore(list(inner))


def _precision(run: Run) -> Given | None:
    """`bf16` of Lightning is autocast; megatron_amp_O2 keeps 16-bit weights and a master copy, as Megatron-Bridge's bf16_mixed does."""
    draft, bag = run.draft, run.bag
    given, master = bag.take("compute_dtype", "precision", "mixed_precision"), bag.take("megatron_amp_O2")
    word = str(given.value).casefold() if given is not None else ""
    if given is None:
        return None
    if "fp8" in word or "mx" in word:
        draft.state("train.precision", "fp8", given.place)
    elif word in ("16", "fp16", "16-mixed", "bf16", "bf16-mixed", "bf16_mixed"):
        kind = "bf16" if word.startswith("bf16") else "fp16"
        is_autocast = master is not None and boolean(master.value) is False
        draft.state("train.precision", f"{kind}-{'mixed' if is_autocast else 'master'}", given.place)
    elif word in ("32", "fp32", "32-true"):
        draft.state("train.precision", "fp32", given.place)
    return given


def _fallbacks(run: Run, precision: Given | None) -> None:
    """Megatron-Bridge's defaults are not Megatron-LM's: bf16 with a master copy, no dropout, the distributed optimizer."""
    draft = run.draft
    if draft.basis.get("train.precision") == "default":
        draft.drop("train.precision")
    if draft.basis.get("train.dropout") == "default":
        draft.drop("train.dropout")
    draft.default("train.precision", "bf16-master", of="Megatron-Bridge (bf16_mixed)")
    optimizer = run.bag.peek("optim.name") or run.bag.peek("model.optim.name")
    if optimizer is not None and "distributed" in str(optimizer.value):
        draft.state("train.sharding", "distributed-optimizer", optimizer.place)
    draft.default("train.sharding", "distributed-optimizer", of="Megatron-Bridge")


def _shape_only_with_sizes(draft: JobDraft) -> None:
    """Single settings of a shape over an unnamed recipe make no model."""
    if "model.shape.layers" in draft or "model.shape.hidden" in draft:
        return
    for key in [key for key in draft.settings if key.startswith("model.shape")]:
        draft.drop(key)
