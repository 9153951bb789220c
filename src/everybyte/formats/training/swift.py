"""ms-swift: `swift sft`, `swift rlhf`, its YAML and JSON, and `megatron sft`, which takes Megatron-LM's flags with underscores."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.place import Given, Place
from everybyte.formats.table import optimizer_settings, table
from everybyte.formats.training import defaults
from everybyte.formats.training.adapters import read_bitsandbytes, read_lora
from everybyte.formats.training.hf import Usual, read_arguments
from everybyte.formats.training.megatron import batch, read_parallel
from everybyte.formats.training.run import Run, finished, of_command, of_document, spelling
from everybyte.formats.training.words import dtype_word
from everybyte.formats.values import boolean, whole

OWN, HF, MEGATRON = "training/swift.csv", "training/hf.csv", "training/megatron.csv"
TUNERS = ("tuner_type", "train_type", "sft_type")
"""Names of the same key in version 4, 3 and 2."""
KINDS = {
    "lora": "lora",
    "dora": "dora",
    "adalora": "adalora",
    "longlora": "lora",
    "ia3": "ia3",
    "vera": "vera",
    "boft": "boft",
    "fourierft": "fourierft",
    "bone": "bone",
}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A file of arguments."""
    return _read(of_document(document, context, "ms-swift"), "sft")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`swift sft ...`, `megatron sft ...`."""
    program = command.program.replace("\\", "/").rpartition("/")[2]
    is_megatron = program == "megatron" or "megatron" in program
    files = (OWN, MEGATRON, HF) if is_megatron else (OWN, HF)
    words: Spelling = spelling(table(*files))
    run = of_command(command, context, "ms-swift", words)
    method = next((word.text for word in run.words if word.text in ("sft", "pt", "rlhf")), program.removesuffix(".py"))
    return _read_megatron(run, method) if is_megatron else _read(run, method)


def _read(run: Run, method: str) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "ms-swift", "its names of settings")
    kind = _tuner(run, usual="lora")
    _optimizer(run)
    if kind:
        _adapter(run, kind)
    dtype = run.bag.take("torch_dtype", "dtype")
    _precision(run, dtype)
    read_arguments(run, Usual("ms-swift", recompute=True, recompute_since="3.0.0", reentrant=False))
    table(OWN, HF).read(run.bag, draft)
    _method(run, method)
    if "train.extra.rlhf_type" in draft:
        draft.infer("train.extra.trainer", "trl", "ms-swift tunes preferences with TRL's trainers")
    micro, since = defaults.value("ms-swift", "per_device_train_batch_size", run.context.version)
    draft.default("train.micro_batch", int(micro or 1), since)
    return finished(run)


def _read_megatron(run: Run, method: str) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "ms-swift", "the program is megatron of ms-swift")
    draft.infer("train.extra.trainer", "megatron", "the program is megatron of ms-swift")
    kind = _tuner(run, usual="full")
    if kind:
        _adapter(run, kind)
    run.bag.take("torch_dtype", "dtype")
    read_parallel(run)
    table(OWN, MEGATRON, HF).read(run.bag, draft)
    if not draft.stated("train.precision"):
        draft.drop("train.precision")
        draft.default("train.precision", "bf16-master", of="megatron of ms-swift")
    if draft.basis.get("train.dropout") == "default":
        draft.drop("train.dropout")
    draft.default("train.micro_batch", 1, of="megatron of ms-swift")
    draft.default("train.recompute.policy", "selective", of="megatron of ms-swift")
    draft.default("train.sharding", "distributed-optimizer", of="megatron of ms-swift")
    _method(run, method)
    batch(run)
    return finished(run)


def _tuner(run: Run, *, usual: str) -> str:
    """The kind of adapter; empty for full training."""
    given = run.bag.take(*TUNERS)
    word = str(given.value).casefold() if given is not None else usual
    if word in ("full", "false"):
        run.bag.ignore(key for key in list(run.bag) if key.startswith("lora_") or key == "target_modules")
        return ""
    kind = KINDS.get(word, word)
    if given is not None:
        run.draft.state("train.adapter.kind", kind, given.place)
    else:
        run.draft.default("train.adapter.kind", kind)
    return kind


def _adapter(run: Run, kind: str) -> None:
    draft = run.draft
    basis = draft.basis.get("train.adapter.kind")
    read_lora(run, kind=kind, place=Place(draft.place("train.adapter.kind")))
    if basis == "default":
        draft.drop("train.adapter.kind")
        draft.default("train.adapter.kind", kind)
    for key, job, usual in (("lora_rank", "train.adapter.rank", 8), ("lora_alpha", "train.adapter.alpha", 32)):
        value, since = defaults.value("ms-swift", key, run.context.version)
        draft.default(job, int(value or usual), since)
    draft.default("train.adapter.targets", "all-linear", "3.0.0")
    method = run.bag.take("quant_method", "quantization_method")
    word = str(method.value).casefold() if method is not None else ""
    if word in ("gptq", "awq", "hqq", "eetq", "fp8"):
        draft.state("train.quantization.format", word, method.place if method is not None else "quant_method")
        bits = run.bag.take("quant_bits")
        draft.state("train.quantization.bits", whole(bits.value) if bits is not None else None, bits.place if bits is not None else "")
    else:
        read_bitsandbytes(run, usual_type="nf4", usual_double=True, of="ms-swift", since="3.0.0")


def _precision(run: Run, dtype: Given | None) -> None:
    """The type of the model decides whether autocast is on: bf16 and fp16 follow torch_dtype, which is the checkpoint's where nobody says."""
    word = dtype_word(dtype.value) if dtype is not None else None
    if dtype is not None and word in ("bf16", "fp16"):
        if "bf16" not in run.bag and "fp16" not in run.bag:
            run.draft.infer("train.precision", f"{word}-mixed", f"torch_dtype {word} at {dtype.place} turns {word} on")
        run.draft.state("train.dtypes.weights", word, dtype.place)
    elif dtype is not None and word == "fp32":
        run.draft.state("train.precision", "fp32", dtype.place)
    elif "bf16" not in run.bag and "fp16" not in run.bag:
        run.draft.default("train.precision", "bf16-mixed", of="ms-swift, from the checkpoint's type")
        run.draft.default("train.dtypes.weights", "bf16", of="ms-swift, the checkpoint's type")


def _optimizer(run: Run) -> None:
    draft = run.draft
    galore, rank, lisa = run.bag.take("use_galore"), run.bag.take("galore_rank"), run.bag.take("lisa_activated_layers")
    if galore is not None and boolean(galore.value):
        draft.state("train.optimizer.name", "galore", galore.place)
        draft.state("train.optimizer.rank", whole(rank.value) if rank is not None else 128, (rank or galore).place)
    if lisa is not None and (whole(lisa.value) or 0) > 0:
        draft.find("method-not-counted", "warning", lisa.place, "LISA trains layers in turn, which is not worked out: the usual step is counted")
    named = run.bag.take("optimizer")
    if named is not None:
        for key, value in optimizer_settings(str(named.value)).items():
            draft.state(key, value, named.place)


def _method(run: Run, method: str) -> None:
    draft = run.draft
    given = run.bag.take("rlhf_type")
    if given is not None:
        draft.state("train.extra.rlhf_type", str(given.value).casefold(), given.place)
    elif method == "rlhf":
        draft.default("train.extra.rlhf_type", "dpo")
    completion = run.bag.take("max_completion_length")
    if completion is not None and (size := whole(completion.value)):
        draft.state("train.extra.max_completion_length", size, completion.place)
        length = draft.value("train.seq_len")
        if draft.value("train.extra.rlhf_type") in ("grpo", "gkd") and isinstance(length, int):
            draft.state("train.seq_len", length + size, f"{draft.place('train.seq_len')}, and max_completion_length {size}")
    if "train.seq_len" not in draft:
        value, since = defaults.value("ms-swift", "max_length", run.context.version)
        if value:
            draft.default("train.seq_len", int(value), since)
        else:
            draft.miss("train.seq_len", "max_length is not given: ms-swift takes the model's longest, which the data decides")
