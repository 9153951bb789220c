"""gpt-neox: one file that holds a model's shape, the mesh, and DeepSpeed's configuration, with dashes or underscores."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.place import Given
from everybyte.formats.table import optimizer_settings, table
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.training.words import dtype_word
from everybyte.formats.values import boolean, number, whole

FILE = "training/neox.csv"
SHAPE = "model.shape"
TOKENIZERS = {"GPT2BPETokenizer": 50257, "HFTokenizer": 50277, "LlamaTokenizer": 32000, "SPMTokenizer": 32000}
"""The usual vocabulary of each kind; the file of the tokenizer is not read."""


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration; files of data paths that were given beside it are read along."""
    return _read(of_document(document, context, "gpt-neox"))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`deepy.py train.py configs/125M.yml configs/local_setup.yml`."""
    return _read(of_command(command, context, "gpt-neox", Spelling(), ()))


def _read(run: Run) -> list[JobDraft]:
    draft, bag = run.draft, run.bag
    draft.infer("train.framework", "deepspeed", "gpt-neox trains with DeepSpeed")
    draft.infer("train.extra.framework", "gpt-neox", "its names of settings")
    _shape(run)
    _deepspeed(bag, draft)
    _recompute(run)
    table(FILE).read(bag, draft)
    if draft.value("train.mesh.pp") in (0, 1):
        draft.drop("train.mesh.pp")
    return finished(run)


def _shape(run: Run) -> None:
    draft, bag = run.draft, run.bag
    norm, position, untied, mlp, activation = (bag.take(key) for key in ("norm", "pos_emb", "no_weight_tying", "mlp_type", "activation"))
    if "num_layers" not in bag or "hidden_size" not in bag:
        return
    word = str(norm.value).casefold() if norm is not None else "layernorm"
    gated = (mlp is not None and str(mlp.value) == "llama") or (activation is not None and str(activation.value) in ("swiglu", "silu"))
    rotary = position is not None and str(position.value) == "rotary"
    draft.infer(f"{SHAPE}.family", "llama" if gated and rotary and "rms" in word else "gpt", "its norm, positions and MLP")
    draft.infer(f"{SHAPE}.norm", "rmsnorm" if "rms" in word else "layernorm", f"norm {word}")
    draft.infer(f"{SHAPE}.activation", "swiglu" if gated else "gelu", "its MLP")
    draft.infer(
        f"{SHAPE}.position", "rope" if rotary else "none" if position is not None and str(position.value) in ("none", "alibi") else "learned", "pos_emb"
    )
    draft.infer(f"{SHAPE}.tied", not (untied is not None and bool(boolean(untied.value))), "no_weight_tying")
    if "intermediate_size" not in bag:
        draft.infer(f"{SHAPE}.ffn", 4 * (run.whole("hidden_size") or 0), "4 x hidden_size")
    kind = bag.take("tokenizer_type")
    count = TOKENIZERS.get(str(kind.value)) if kind is not None else None
    if count:
        step = (run.whole("make_vocab_size_divisible_by") or 128) * (run.whole("model_parallel_size") or 1)
        draft.infer(f"{SHAPE}.vocab", count, f"the usual vocabulary of {kind.value if kind is not None else ''}")
        draft.infer(f"{SHAPE}.padded_vocab", -(-count // step) * step, f"padded to a multiple of {step}")
    else:
        draft.miss(f"{SHAPE}.vocab", "the vocabulary is the tokenizer's, whose file is not read")


def _deepspeed(bag: Bag, draft: JobDraft) -> None:
    """The keys of DeepSpeed lie between the others. Its stage is 0 where none is written."""
    stage = bag.take("zero_optimization.stage")
    count = (whole(stage.value) if stage is not None else None) or 0
    if stage is not None:
        draft.state("train.sharding", f"zero{count}" if count else "ddp", stage.place)
    for kind in ("bf16", "fp16"):
        on = bag.take(f"{kind}.enabled", f"{kind}.{kind}")
        if on is not None and boolean(on.value):
            draft.state("train.precision", f"{kind}-master", on.place)
    word = bag.take("precision")
    if word is not None and (dtype := dtype_word(word.value)) in ("bf16", "fp16", "fp32"):
        draft.state("train.precision", dtype if dtype == "fp32" else f"{dtype}-master", word.place)
    for name, job in (("train_micro_batch_size_per_gpu", "train.micro_batch"), ("gradient_accumulation_steps", "train.grad_accum")):
        given = bag.take(name)
        if given is not None and (size := whole(given.value)):
            draft.state(job, size, given.place)
    total = bag.take("train_batch_size")
    if total is not None and (size := whole(total.value)):
        draft.state("train.extra.train_batch_size", size, total.place)
    kind_of = bag.take("optimizer.type")
    if kind_of is not None:
        named = str(kind_of.value).casefold()
        for key, value in ({"train.optimizer.name": "adamw"} if named in ("adam", "adamw", "cpu_adam") else optimizer_settings(str(kind_of.value))).items():
            draft.state(key, value, kind_of.place)
    _zero(bag, draft)


def _zero(bag: Bag, draft: JobDraft) -> None:
    zero = bag.sub("zero_optimization")
    inner = Bag({f"zero_optimization.{key}": given for key in list(zero) if (given := zero.take(key)) is not None})
    inner.take("zero_optimization.stage")
    table("training/deepspeed.csv").read(inner, draft)
    device = inner.take("zero_optimization.offload_optimizer.device")
    if device is not None and str(device.value) in ("cpu", "nvme"):
        draft.state("train.offload.optimizer", str(device.value), device.place)
    inner.take("zero_optimization.offload_param.device")
    inner.ignore(("zero_optimization.cpu_offload", "zero_optimization.load_from_fp32_weights"))
    draft.report(inner)
    bag.ignore(key for key in list(bag) if key.startswith(("bf16", "fp16")))


def _recompute(run: Run) -> None:
    draft, bag = run.draft, run.bag
    given, every = bag.take("checkpoint_activations"), bag.take("checkpoint_num_layers")
    if given is not None:
        draft.state("train.recompute.policy", "full" if boolean(given.value) else "none", given.place)
    count = whole(every.value) if every is not None else None
    if every is not None and count and count > 1 and draft.value("train.recompute.policy") == "full":
        draft.state("train.recompute.layers", count, every.place)
    rates = [Given(number(rate.value), rate.place) for key in ("hidden_dropout", "attention_dropout") if (rate := bag.take(key)) is not None]
    if rates:
        highest = max(rates, key=lambda rate: rate.value or 0)
        draft.state("train.dropout", highest.value or 0.0, highest.place)
    kinds = bag.take("attention_config")
    if kinds is not None and "flash" in str(kinds.value):
        draft.state("train.attention", "flash2", kinds.place)
    bag.take("use_bias_in_attn_linear")
