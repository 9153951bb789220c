"""LLaMA-Factory: YAML, JSON and command lines; its arguments are the trainer's and its own."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given, Place
from everybyte.formats.table import table
from everybyte.formats.training import defaults
from everybyte.formats.training.adapters import read_lora, state_targets
from everybyte.formats.training.hf import Usual, read_arguments
from everybyte.formats.training.run import Run, finished, of_command, of_document, spelling
from everybyte.formats.values import boolean, whole

FILES = ("training/llama_factory.csv", "training/hf.csv")
METHODS = {"dpo": "dpo", "kto": "kto", "ppo": "ppo", "rm": "reward", "orpo": "orpo"}
PACKED = {"bnb": "nf4", "bitsandbytes": "nf4", "bitsandbytes_4": "nf4", "gptq": "gptq", "awq": "awq", "hqq": "hqq", "eetq": "eetq"}
PROJECTED = (("use_galore", "galore", "galore_rank", "galore_layerwise"), ("use_apollo", "apollo", "apollo_rank", "apollo_layerwise"))


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration."""
    return _read(of_document(document, context, "llama-factory"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`llamafactory-cli train x.yaml lora_rank=32`, `python src/train_bash.py --stage sft ...`."""
    return _read(of_command(command, context, "llama-factory", spelling(table(*FILES))))


def _read(run: Run) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "llama-factory", "its names of settings")
    pure = run.bag.take("pure_bf16")
    run = run._replace(bag=_of_version_1(run.bag))
    _kind(run)
    _packed(run)
    _recompute(run)
    read_arguments(run, Usual("LLaMA-Factory", recompute=True, reentrant=True, loads_as_computed="train.adapter.kind" in draft or _frozen(run)))
    if pure is not None and boolean(pure.value):
        draft.state("train.precision", "bf16", pure.place)
        draft.drop("train.dtypes.weights")
    _optimizer(run)
    _method(run)
    table(*FILES).read(run.bag, draft)
    _defaults(run)
    _launch(run)
    return finished(run)


VERSION_1 = {
    "peft_config.name": "finetuning_type",
    "peft_config.r": "lora_rank",
    "peft_config.lora_alpha": "lora_alpha",
    "peft_config.target_modules": "lora_target",
    "peft_config.lora_dropout": "lora_dropout",
    "peft_config.freeze_trainable_layers": "freeze_trainable_layers",
    "peft_config.freeze_trainable_modules": "freeze_trainable_modules",
    "quant_config.quantization_bit": "quantization_bit",
    "quant_config.name": "quantization_method",
    "dist_config.config_file": "deepspeed",
}
"""Keys of version 1 of the file -> those of version 0."""


def _of_version_1(bag: Bag) -> Bag:
    """A file with `dist_config` and `peft_config` in the words of the older form; without an adapter it trains all weights."""
    if not any(key.startswith(("dist_config", "peft_config", "model_class", "batching_strategy")) for key in bag):
        return bag
    found = {VERSION_1.get(key, key): given for key in list(bag) if (given := bag.peek(key)) is not None}
    kind = found.pop("dist_config.name", None)
    if kind is not None and "fsdp" in str(kind.value):
        found["fsdp_config.fsdp_version"] = Given(2, kind.place)
    if "finetuning_type" not in found and kind is not None:
        found["finetuning_type"] = Given("full", kind.place)
    return Bag({key: given for key, given in found.items() if not key.startswith("dist_config.")})


def _frozen(run: Run) -> bool:
    given = run.bag.peek("finetuning_type")
    return given is not None and given.value == "freeze"


def _kind(run: Run) -> None:
    """finetuning_type: lora (the default), oft, freeze, full."""
    draft = run.draft
    given = run.bag.take("finetuning_type")
    word = str(given.value).casefold() if given is not None else "lora"
    place = given.place if given is not None else None
    if word == "freeze":
        _freeze(run, place)
    elif word == "oft":
        draft.state("train.adapter.kind", "oft", place or run.path)
        state_targets(run, run.bag.take("oft_target"))
    elif word == "lora":
        _lora(run, given)
    else:
        run.bag.ignore(key for key in list(run.bag) if key.startswith("lora_") or key in ("additional_target", "use_dora"))


def _lora(run: Run, given: Given | None) -> None:
    draft = run.draft
    read_lora(run, kind="lora", place=given.place if given is not None else run.place("lora_rank", "lora_target"))
    if given is None:
        draft.drop("train.adapter.kind")
        draft.default("train.adapter.kind", "lora", of="LLaMA-Factory")
    rank, since = defaults.value("llama-factory", "lora_rank", run.context.version)
    draft.default("train.adapter.rank", int(rank or 8), since, "LLaMA-Factory")
    draft.default("train.adapter.targets", "all-linear", "0.6.0", "LLaMA-Factory")
    if "train.adapter.alpha" not in draft:
        draft.default("train.adapter.alpha", 2 * draft.value("train.adapter.rank"), "0.3.0", "LLaMA-Factory (twice the rank)")


def _freeze(run: Run, place: Place | None) -> None:
    """The last layers train whole; the others are frozen. The job's form lists frozen modules, for which the number of layers is needed."""
    layers = run.bag.take("freeze_trainable_layers", "num_layer_trainable")
    run.bag.take("freeze_trainable_modules", "name_module_trainable")
    run.bag.take("freeze_extra_modules")
    count = (whole(layers.value) if layers is not None else 2) or 2
    run.draft.state("train.extra.freeze_trainable_layers", count, layers.place if layers is not None else place or run.path)
    run.draft.find(
        "freeze-by-layer",
        "warning",
        layers.place if layers is not None else str(place or run.path),
        f"finetuning_type freeze trains {count} layers alone; all are counted as trained here",
        "list the frozen modules as train.freeze, such as model.layers.0",
    )


def _packed(run: Run) -> None:
    draft = run.draft
    bits, method = run.bag.take("quantization_bit"), run.bag.take("quantization_method")
    kind, double = run.bag.take("quantization_type"), run.bag.take("double_quantization")
    width = whole(bits.value) if bits is not None else None
    if bits is None or width is None:
        return
    word = PACKED.get(str(method.value).casefold(), str(method.value).casefold()) if method is not None else "nf4"
    if word == "nf4" and width == 8:
        word = "int8"
    if word == "nf4" and kind is not None:
        word = str(kind.value)
    draft.state("train.quantization.format", word, (kind or bits).place)
    if word in ("nf4", "fp4"):
        if double is not None:
            draft.state("train.quantization.double", boolean(double.value), double.place)
        else:
            draft.default("train.quantization.double", True, of="LLaMA-Factory")
        draft.default("train.quantization.storage", "bf16", of="LLaMA-Factory (the type that is computed in)")
    else:
        draft.state("train.quantization.bits", width, bits.place)


def _recompute(run: Run) -> None:
    """A negated switch: recomputation is on unless it is disabled, and reentrant."""
    draft = run.draft
    off, reentrant, unsloth = (run.bag.take(key) for key in ("disable_gradient_checkpointing", "use_reentrant_gc", "use_unsloth_gc"))
    if off is not None and boolean(off.value):
        draft.state("train.recompute.policy", "none", off.place)
        return
    if reentrant is not None and boolean(reentrant.value) is not None:
        draft.state("train.recompute.reentrant", boolean(reentrant.value), reentrant.place)
    if unsloth is not None and boolean(unsloth.value):
        draft.state("train.recompute.offload", True, unsloth.place)


def _optimizer(run: Run) -> None:
    draft = run.draft
    for switch, name, rank, layerwise in PROJECTED:
        given, size, each = run.bag.take(switch), run.bag.take(rank), run.bag.take(layerwise)
        if given is not None and boolean(given.value):
            draft.state("train.optimizer.name", name, given.place)
            if size is not None:
                draft.state("train.optimizer.rank", whole(size.value), size.place)
            else:
                draft.default("train.optimizer.rank", 16, of="LLaMA-Factory")
            if each is not None and boolean(each.value):
                draft.state("train.optimizer.in_backward", True, each.place)
    for switch, name in (("use_adam_mini", "adam-mini"), ("use_muon", "muon")):
        given = run.bag.take(switch)
        if given is not None and boolean(given.value):
            draft.state("train.optimizer.name", name, given.place)
    badam, pro = run.bag.take("use_badam"), run.bag.take("use_llama_pro")
    if badam is not None and boolean(badam.value):
        draft.find("method-not-counted", "warning", badam.place, "BAdam trains one block at a time, which is not worked out: the usual step is counted")
    if pro is not None and boolean(pro.value):
        draft.state("train.extra.use_llama_pro", True, pro.place)


def _method(run: Run) -> None:
    given = run.bag.take("stage")
    word = str(given.value).casefold() if given is not None else "sft"
    if given is not None and word in METHODS and word != "rm":
        run.draft.state("train.extra.rlhf_type", METHODS[word], given.place)
    elif given is not None and word == "rm":
        run.draft.state("train.extra.task", "reward_model", given.place)


def _defaults(run: Run) -> None:
    draft = run.draft
    summed = [run.whole(key) for key in ("max_source_length", "max_target_length")]
    if all(summed):
        draft.infer("train.seq_len", sum(size or 0 for size in summed), "max_source_length + max_target_length")
    length, since = defaults.value("llama-factory", "cutoff_len", run.context.version)
    draft.default("train.seq_len", int(length or 2048), since, "LLaMA-Factory")
    draft.default("train.micro_batch", 8, of="transformers")
    draft.default("train.grad_accum", 1, of="transformers")


def _launch(run: Run) -> None:
    """Its own launcher sets the allocator where it starts several processes."""
    if run.command is None or not run.command.program.endswith(("llamafactory-cli", "lmf")):
        return
    gpus = run.command.settings.get("hardware.gpus")
    if gpus is not None and isinstance(gpus.value, int) and gpus.value > 1:
        run.draft.default("env.alloc_conf", "expandable_segments:True", of="LLaMA-Factory's launcher")
