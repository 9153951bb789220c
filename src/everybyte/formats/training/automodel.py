"""NeMo AutoModel: YAML whose `_target_` names Python callables, which are read as names and never imported."""

from __future__ import annotations

from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.table import table
from everybyte.formats.training.adapters import read_bitsandbytes, state_targets
from everybyte.formats.training.run import Run, finished, of_document
from everybyte.formats.training.words import add_kernel, dtype_word
from everybyte.formats.values import boolean, whole

FILE = "training/automodel.csv"


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration."""
    return read_run(of_document(document, context, "nemo"))


def read_run(run: Run) -> list[JobDraft]:
    """A run of AutoModel's recipes."""
    draft = run.draft
    draft.infer("train.framework", "nemo-automodel", "its names of settings")
    _sharding(run)
    _precision(run)
    _adapter(run)
    _rest(run)
    table(FILE).read(run.bag, draft)
    for key in [key for key, setting in draft.settings.items() if key.startswith("train.mesh.") and not isinstance(setting.value, int)]:
        draft.drop(key)  # `none` leaves an axis to what is over
    _batch(run)
    return finished(run)


def _sharding(run: Run) -> None:
    draft, bag = run.draft, run.bag
    given = bag.take("distributed.strategy", "distributed._target_")
    word = str(given.value).casefold() if given is not None else ""
    kind = "megatron-fsdp" if "megatron" in word else "ddp" if "ddp" in word else "fsdp2"
    if given is not None:
        draft.state("train.sharding", kind, given.place)
    else:
        draft.default("train.sharding", "fsdp2", of="AutoModel")
    recompute, parallel = bag.take("distributed.activation_checkpointing"), bag.take("distributed.sequence_parallel")
    if recompute is not None:
        on = boolean(recompute.value) is not False and str(recompute.value).casefold() != "none"
        draft.state("train.recompute.policy", "full" if on else "none", recompute.place)
    else:
        draft.default("train.recompute.policy", "none", of="AutoModel")
    if parallel is not None and boolean(parallel.value):
        draft.state("train.mesh.sp", True, parallel.place)
    shards = bag.take("distributed.dp_size")
    if shards is not None and (count := whole(shards.value)):
        draft.state("train.mesh.dp_shard", count, shards.place)
    offload = bag.take("distributed.offload_policy", "distributed.offload_policy._target_")
    if offload is not None and boolean(offload.value) is not False:
        draft.state("train.offload.params", "cpu", offload.place)


def _precision(run: Run) -> None:
    """FSDP2 computes and keeps weights in the type that the model is loaded in, which is bf16 where nobody says."""
    given = run.bag.take("model.torch_dtype", "model.dtype", "model.config.torch_dtype")
    eight = run.bag.take("fp8.enabled")
    word = dtype_word(given.value) if given is not None else None
    if eight is not None and boolean(eight.value):
        run.draft.state("train.precision", "fp8", eight.place)
    elif given is not None and word == "fp32":
        run.draft.state("train.precision", "bf16-mixed", given.place)
    elif given is not None and word is not None:
        run.draft.state("train.precision", word, given.place)
    else:
        run.draft.default("train.precision", "bf16", of="AutoModel")


def _adapter(run: Run) -> None:
    draft, bag = run.draft, run.bag
    given, every, targets, dora = (bag.take(f"peft.{key}") for key in ("_target_", "match_all_linear", "target_modules", "use_dora"))
    for name in ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"):
        inner = bag.take(f"quantization.{name}", f"model.{name}", f"model.quantization_config.{name}")
        if inner is not None:
            run = run._replace(bag=type(bag)({name: inner}).over(run.bag))
    if "load_in_4bit" in run.bag or "load_in_8bit" in run.bag:
        read_bitsandbytes(run, usual_type="nf4", usual_double=True, of="AutoModel")
    if given is None and "peft.dim" not in bag:
        return
    place = given.place if given is not None else run.place("peft.dim")
    draft.state("train.adapter.kind", "dora" if dora is not None and boolean(dora.value) else "lora", place)
    draft.default("train.adapter.rank", 8, of="AutoModel")
    if every is not None and boolean(every.value):
        draft.state("train.adapter.targets", "all-linear", every.place)
    elif targets is not None and isinstance(targets.value, list):
        stripped = [str(name).replace("*", "").strip(".") for name in targets.value]
        state_targets(run, targets._replace(value=[name for name in stripped if name] or None))


def _rest(run: Run) -> None:
    draft, bag = run.draft, run.bag
    bag.take("recipe")
    foreach, fused = bag.take("optimizer.foreach"), bag.take("optimizer.fused")
    if fused is not None and boolean(fused.value):
        draft.state("train.optimizer.impl", "fused", fused.place)
    elif foreach is not None:
        draft.state("train.optimizer.impl", "foreach" if boolean(foreach.value) else "for-loop", foreach.place)
    loss = bag.take("loss_fn._target_")
    if loss is not None and "FusedLinear" in str(loss.value):
        draft.state("train.loss.kind", "fused-linear", loss.place)
        add_kernel(draft, "cut-cross-entropy", loss.place)
    elif loss is not None and "Chunked" in str(loss.value):
        draft.state("train.loss.kind", "chunked", loss.place)
    packed = bag.take("packed_sequence.packed_sequence_size")
    if packed is not None and (size := whole(packed.value)) and size > 0:
        draft.state("train.seq_len", size, packed.place)
    liger = bag.take("model.use_liger_kernel")
    if liger is not None and boolean(liger.value):
        add_kernel(draft, "liger", liger.place)


def _batch(run: Run) -> None:
    """What goes through a pipeline is the local batch; its pieces are the micro-batches."""
    draft, bag = run.draft, run.bag
    total, piece = bag.take("step_scheduler.global_batch_size"), bag.take("autopipeline.pp_microbatch_size", "distributed.pipeline.pp_microbatch_size")
    bag.take("autopipeline.pp_batch_size", "distributed.pipeline.pp_batch_size")
    local = draft.value("train.micro_batch")
    if piece is not None and (size := whole(piece.value)) and isinstance(local, int) and local % size == 0 and (draft.value("train.mesh.pp") or 1) > 1:
        draft.infer("train.pipeline.microbatches", local // size, f"local batch {local} / {size}")
        draft.state("train.micro_batch", size, piece.place)
    if total is not None and (count := whole(total.value)):
        draft.state("train.extra.global_batch_size", count, total.place)
        gpus = draft.value("hardware.gpus")
        if isinstance(gpus, int) and isinstance(local, int):
            ranks = gpus
            for axis in ("tp", "pp", "cp"):
                ranks //= draft.value(f"train.mesh.{axis}") or 1
            if ranks and count % (local * ranks) == 0:
                draft.infer("train.grad_accum", count // (local * ranks), f"global batch {count} / ({local} x {ranks} data-parallel ranks)")
