"""Megatron-LM: the flags of its scripts, the YAML of its functional tests, and Megatron-DeepSpeed. A model is a shape, whose family follows from its flags."""

from __future__ import annotations

import re

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.table import table
from everybyte.formats.training import deepspeed
from everybyte.formats.training.megatron_model import read_model
from everybyte.formats.training.run import Run, finished, of_command, of_document, spelling
from everybyte.formats.training.words import dtype_word
from everybyte.formats.values import boolean, number, whole

FILE = "training/megatron.csv"
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon", "adaptive_muon": "muon", "lion": "lion", "soap": "soap"}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """`MODEL_ARGS: {--flag: value}` with `ENV_VARS` beside it, or a YAML of the arguments themselves."""
    run = of_document(document, context, "megatron")
    inner = run.bag.sub("MODEL_ARGS")
    if not list(inner):
        return read_run(run)
    _environment(run.bag.sub("ENV_VARS"), run.draft)
    run.bag.ignore(list(run.bag))
    return read_run(run._replace(bag=inner))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`pretrain_gpt.py --num-layers 32 ...`."""
    return read_run(of_command(command, context, "megatron", spelling(table(FILE)), ("yaml_cfg",)))


def read_run(run: Run) -> list[JobDraft]:
    """A run of Megatron-LM's own program."""
    run.draft.infer("train.framework", "megatron", "its names of flags")
    read_model(run)
    read_parallel(run)
    table(FILE).read(run.bag, run.draft)
    batch(run)
    return finished(run)


def read_parallel(run: Run) -> None:
    """Everything but the model: precision, mesh, sharding, recomputing, dropout."""
    _precision(run)
    _pipeline(run)
    _sharding(run)
    _recompute(run)
    _dropout(run)
    _optimizer(run)
    _attention(run)
    if run.command is not None:
        _environment(Bag({key: given for key, given in run.command.env.items() if key.startswith(("NVTE_", "CUDA_DEVICE_MAX", "CUBLAS_WORK"))}), run.draft)


def _environment(variables: Bag, draft: JobDraft) -> None:
    for name in ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"):
        given = variables.take(name)
        if given is not None:
            draft.state(f"train.extra.{name}", given.value, given.place)


def _precision(run: Run) -> None:
    """16-bit weights with a master copy; gradients are summed in fp32 with bf16 unless --grad-reduce-in-bf16."""
    draft, bag = run.draft, run.bag
    for kind in ("bf16", "fp16"):
        given = bag.take(kind)
        if given is not None and boolean(given.value):
            draft.state("train.precision", f"{kind}-master", given.place)
    eight = bag.peek("fp8_format") or bag.peek("fp8") or bag.take("fp8_hybrid") or bag.take("fp8_e4m3")
    if eight is not None and boolean(eight.value) is not False and str(eight.value).casefold() != "none":
        draft.state("train.precision", "fp8", eight.place)
    if "train.precision" not in draft:
        draft.default("train.precision", "fp32", of="Megatron-LM")
    low, high = bag.take("grad_reduce_in_bf16"), bag.take("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    if low is not None and boolean(low.value):
        draft.state("train.dtypes.grads", "bf16", low.place)
        draft.state("train.dtypes.reduce", "bf16", low.place)
    elif high is not None and boolean(high.value):
        draft.state("train.dtypes.grads", "fp32", high.place)
        draft.state("train.dtypes.reduce", "fp32", high.place)
    first, second = bag.peek("exp_avg_dtype"), bag.take("exp_avg_sq_dtype")
    if first is not None and second is not None and dtype_word(first.value) != dtype_word(second.value):
        draft.find("moments-differ", "note", second.place, "the two moments have different formats; both are counted as the first")


def _pipeline(run: Run) -> None:
    draft, bag = run.draft, run.bag
    stages = run.whole("pipeline_model_parallel_size") or 1
    per_chunk, count = (
        bag.take("num_layers_per_virtual_pipeline_stage"),
        bag.peek("num_virtual_stages_per_pipeline_rank") or bag.peek("virtual_pipeline_model_parallel_size"),
    )
    layers, each = run.whole("num_layers", "encoder_num_layers"), whole(per_chunk.value) if per_chunk is not None else None
    if layers and each and per_chunk is not None:
        chunks, rest = divmod(layers, stages * each)
        if rest:
            draft.find(
                "chunks-do-not-divide",
                "error",
                per_chunk.place,
                f"{layers} layers are no whole number of chunks of {each} on {stages} stages",
                "choose a divisor",
            )
        else:
            draft.infer("train.pipeline.virtual", chunks, f"{layers} layers / {stages} stages / {each} layers a chunk")
    if "train.pipeline.virtual" in draft or (count is not None and (whole(count.value) or 0) > 1):
        draft.infer("train.pipeline.schedule", "interleaved", "virtual stages interleave")
    parallel = bag.take("sequence_parallel")
    if parallel is not None and boolean(parallel.value) is not None:
        draft.state("train.mesh.sp", boolean(parallel.value), parallel.place)
        if boolean(parallel.value) and (run.whole("tensor_model_parallel_size", "model_parallel_size") or 1) == 1:
            draft.find("sp-without-tp", "note", parallel.place, "sequence parallelism has no effect without tensor parallelism")


def _sharding(run: Run) -> None:
    """Megatron-FSDP goes before the distributed optimizer, which it includes."""
    draft, bag = run.draft, run.bag
    found = (
        ("megatron-fsdp", bag.take("use_megatron_fsdp", "use_custom_fsdp")),
        ("fsdp2", bag.take("use_torch_fsdp2")),
        ("distributed-optimizer", bag.take("use_distributed_optimizer")),
    )
    zero, config = bag.take("zero_stage"), bag.take("deepspeed_config")
    bag.take("deepspeed")
    for word, given in found:
        if given is not None and boolean(given.value) and "train.sharding" not in draft:
            draft.state("train.sharding", word, given.place)
    if config is not None:
        deepspeed.attached(run, config)
    if zero is not None and (stage := whole(zero.value)) is not None:
        draft.state("train.sharding", f"zero{stage}" if stage else "ddp", zero.place)
    if run.switch("cpu_optimizer"):
        run.state("train.offload.optimizer", "cpu", "cpu_optimizer")


def _recompute(run: Run) -> None:
    draft, bag = run.draft, run.bag
    old, selective = bag.take("checkpoint_activations", "deepspeed_activation_checkpointing"), bag.take("recompute_activations")
    if selective is not None and boolean(selective.value):
        draft.state("train.recompute.policy", "selective", selective.place)
    if old is not None and boolean(old.value):
        draft.state("train.recompute.policy", "full", old.place)
    fine = bag.take("fine_grained_activation_offloading")
    if fine is not None and boolean(fine.value):
        draft.state("train.offload.activations", "cpu", fine.place)
    for key in ("recompute_num_layers", "activations_checkpoint_num_layers"):
        count = bag.peek(key)
        if count is not None and whole(count.value) == 0:
            bag.drop(key)  # no layer of the pipeline stage is computed again
    granularity, method = bag.peek("recompute_granularity"), bag.peek("recompute_method")
    if granularity is not None and granularity.value == "full" and method is None:
        draft.find(
            "recompute-without-method",
            "error",
            granularity.place,
            "full recomputation needs --recompute-method, which is not given",
            "add --recompute-method uniform",
        )
    if granularity is not None and granularity.value == "selective" and method is not None:
        draft.find("method-with-selective", "error", method.place, "--recompute-method does not go with selective recomputation", "leave it out")


def _dropout(run: Run) -> None:
    """0.1 for both where nobody says so."""
    draft = run.draft
    rates = {key: run.bag.take(key) for key in ("attention_dropout", "hidden_dropout")}
    values = {key: number(given.value) if given is not None else 0.1 for key, given in rates.items()}
    stated = next((given for given in rates.values() if given is not None), None)
    highest = max(value or 0.0 for value in values.values())
    if stated is None:
        draft.default("train.dropout", 0.1, of="Megatron-LM")
    else:
        draft.state("train.dropout", highest, stated.place)
    if len(set(values.values())) > 1 and stated is not None:
        draft.find(
            "dropout-differs",
            "note",
            stated.place,
            f"attention and hidden layers have different rates, {values['attention_dropout']} and {values['hidden_dropout']}",
        )


def _optimizer(run: Run) -> None:
    draft = run.draft
    given = run.bag.take("optimizer")
    if given is not None:
        word = str(given.value).casefold()
        draft.state("train.optimizer.name", OPTIMIZERS.get(word, word), given.place)
    offload = run.bag.take("optimizer_cpu_offload")
    if offload is not None and boolean(offload.value):
        draft.state("train.offload.optimizer", "cpu", offload.place)


def _attention(run: Run) -> None:
    flash = run.bag.take("use_flash_attn")
    if flash is not None and boolean(flash.value) and "attention_backend" not in run.bag:
        run.draft.state("train.attention", "flash2", flash.place)


def batch(run: Run) -> None:
    """Accumulation = global batch / (micro batch x data-parallel ranks), where all three are known."""
    draft, bag = run.draft, run.bag
    total, ramp, schedule = bag.take("global_batch_size"), bag.take("rampup_batch_size"), bag.take("step_batch_size_schedule")
    growing = ramp or schedule
    if schedule is not None and total is None and (last := re.findall(r":\s*(\d+)", str(schedule.value))):
        total = Given(int(last[-1]), schedule.place)
    if growing is not None:
        draft.find("batch-grows", "note", growing.place, "the batch grows while training; the last and largest accumulation is what counts here")
    size, micro = whole(total.value) if total is not None else None, draft.value("train.micro_batch")
    if total is None or size is None:
        return
    gpus = _gpus(run)
    ranks = _ranks(run, gpus)
    if ranks and isinstance(micro, int) and size % (micro * ranks) == 0:
        accum = size // (micro * ranks)
        if accum:
            draft.infer("train.grad_accum", accum, f"global batch {size} / ({micro} x {ranks} data-parallel ranks)")
    elif ranks and isinstance(micro, int):
        draft.find(
            "batch-does-not-divide",
            "error",
            total.place,
            f"a global batch of {size} is no whole number of micro batches: {micro} x {ranks} data-parallel ranks",
            "change one of the three",
        )
    draft.state("train.extra.global-batch-size", size, total.place)


def _gpus(run: Run) -> int | None:
    stated = run.draft.value("hardware.gpus")
    given = run.command.settings.get("hardware.gpus") if run.command is not None and stated is None else None
    found = given.value if given is not None else stated
    return found if isinstance(found, int) else None


def _ranks(run: Run, gpus: int | None) -> int | None:
    """Data-parallel ranks of a mesh; a mesh larger than the processes is a finding."""
    sizes = [run.draft.value(f"train.mesh.{axis}") or 1 for axis in ("tp", "pp", "cp")]
    product = 1
    for size in sizes:
        product *= size
    if gpus is None:
        return None
    if gpus % product:
        run.draft.find(
            "mesh-against-processes",
            "error",
            run.place("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            f"TP x PP x CP = {product} does not divide the {gpus} processes that are started",
            "start as many processes as the mesh has places",
        )
        return None
    return gpus // product
