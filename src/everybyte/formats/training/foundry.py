"""llm-foundry and Composer: YAML with `variables`, FSDP version 1, and a device micro-batch that may be `auto`."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.table import table
from everybyte.formats.training.adapters import state_targets
from everybyte.formats.training.fsdp import STRATEGIES
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.training.torchtune import resolved
from everybyte.formats.values import boolean, number, whole

FILE = "training/foundry.csv"
PRECISIONS = {"amp_bf16": "bf16-mixed", "amp_fp16": "fp16-mixed", "fp32": "fp32", "amp_fp8": "fp8"}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration, or a run of MosaicML's platform that holds one under `parameters`."""
    return _read(of_document(document, context, "llm-foundry"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`composer train.py x.yaml key=value`."""
    return _read(of_command(command, context, "llm-foundry", Spelling()))


def _read(run: Run) -> list[JobDraft]:
    inner = run.bag.sub("parameters")
    bag = resolved(inner if list(inner) else run.bag)
    variables = bag.sub("variables")
    run = run._replace(bag=bag.over(Bag({key: given for key in list(variables) if (given := variables.take(key)) is not None})))
    draft = run.draft
    draft.infer("train.framework", "pytorch", "llm-foundry trains with PyTorch's FSDP")
    draft.infer("train.extra.framework", "llm-foundry", "its names of settings")
    _precision(run)
    _sharding(run)
    _model(run)
    table(FILE).read(run.bag, draft)
    _batch(run)
    return finished(run)


def _precision(run: Run) -> None:
    given, inner = run.bag.take("precision"), run.bag.take("fsdp_config.mixed_precision")
    word = PRECISIONS.get(str(given.value).casefold()) if given is not None else None
    if given is not None and word is not None:
        pure = inner is not None and str(inner.value).upper() == "PURE" and word.endswith("-mixed")
        run.draft.state("train.precision", word, given.place)
        if pure and inner is not None:
            run.draft.state("train.dtypes.reduce", word.partition("-")[0], inner.place)


def _sharding(run: Run) -> None:
    draft, bag = run.draft, run.bag
    strategy, recompute, reentrant = (
        bag.take(f"fsdp_config.{key}") for key in ("sharding_strategy", "activation_checkpointing", "activation_checkpointing_reentrant")
    )
    if strategy is not None and (word := STRATEGIES.get(str(strategy.value).casefold())):
        draft.state("train.sharding", word, strategy.place)
    if recompute is not None:
        draft.state("train.recompute.policy", "full" if boolean(recompute.value) else "none", recompute.place)
        if reentrant is not None and boolean(recompute.value):
            draft.state("train.recompute.reentrant", boolean(reentrant.value), reentrant.place)
    for key, job in (("activation_cpu_offload", "train.offload.activations"), ("cpu_offload", "train.offload.params")):
        given = bag.take(f"fsdp_config.{key}")
        if given is not None and boolean(given.value):
            draft.state(job, "cpu", given.place)


def _model(run: Run) -> None:
    draft, bag = run.draft, run.bag
    ratio, kind, flash = bag.take("model.expansion_ratio"), bag.take("model.attn_config.attn_impl"), bag.take("model.use_flash_attention_2")
    if kind is not None and str(kind.value) in ("flash", "torch"):
        draft.state("train.attention", "flash2" if kind.value == "flash" else "eager", kind.place)
    elif flash is not None and boolean(flash.value):
        draft.state("train.attention", "flash2", flash.place)
    name, width = bag.take("model.name"), run.whole("model.d_model")
    if name is not None and str(name.value) == "mpt_causal_lm" and width:
        draft.infer("model.shape.family", "gpt", f"mpt_causal_lm at {name.place}")
        draft.infer("model.shape.ffn", int((number(ratio.value) if ratio is not None else None) or 4) * width, "expansion_ratio x d_model")
        draft.infer("model.shape.bias", False, "MPT has no biases")
    adapter, targets = bag.take("model.peft_config.peft_type", "model.peft_config.r"), bag.take("model.peft_config.target_modules")
    if adapter is not None:
        draft.state("train.adapter.kind", "lora", adapter.place)
        state_targets(run, targets)


def _batch(run: Run) -> None:
    """The global batch is cut into micro-batches on each rank."""
    given = run.bag.take("global_train_batch_size")
    total, micro, gpus = whole(given.value) if given is not None else None, run.draft.value("train.micro_batch"), run.draft.value("hardware.gpus")
    if given is None or not total:
        return
    run.draft.state("train.extra.global_train_batch_size", total, given.place)
    if isinstance(micro, int) and isinstance(gpus, int) and total % (micro * gpus) == 0:
        run.draft.infer("train.grad_accum", total // (micro * gpus), f"global batch {total} / ({micro} x {gpus} ranks)")
