"""accelerate's YAML and the flags of `accelerate launch`, alone (a partial job) or around a training script."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given, Place
from everybyte.formats.table import table
from everybyte.formats.training import deepspeed
from everybyte.formats.training.fsdp import read_fsdp
from everybyte.formats.training.run import Run, finished, launcher_bag, of_document
from everybyte.formats.values import boolean, number, whole

FILE = "training/accelerate.csv"
"""Keys without effect on memory."""


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A file that nothing names: a job without a model."""
    run = of_document(document, context, "accelerate")
    run.draft.state("train.framework", "accelerate", document.place("distributed_type"))
    apply(run.bag, run)
    return finished(run)


def attached(run: Run) -> None:
    """Applies the launcher's flags and file, or the file that was given beside the run."""
    flags = launcher_bag(run, "accelerate")
    named = flags.take("config_file")
    document = run.context.document(str(named.value), run.files) if named is not None and isinstance(named.value, str) else None
    document = document or run.context.companion("accelerate")
    if named is not None and document is None:
        run.draft.find("file-not-given", "warning", named.place, f"{named.value} decides how the run is spread and was not given", "give it as well")
    bag = flags.over(document.bag()) if document is not None else flags
    if list(bag):
        apply(bag, run)


def apply(bag: Bag, run: Run) -> None:
    """States what accelerate's settings mean."""
    draft = run.draft
    _hardware(bag, draft)
    kind = bag.take("distributed_type")
    word = str(kind.value).upper() if kind is not None else ""
    _precision(bag, draft, under_deepspeed=word == "DEEPSPEED" or bool(boolean(bag.value("use_deepspeed") or False)))
    _deepspeed(bag, run, kind, word)
    _fsdp(bag, draft, kind, word)
    _parallelism(bag, draft)
    _megatron(bag, draft)
    if kind is not None and word in ("MULTI_GPU", "NO") and "train.sharding" not in draft:
        draft.state("train.sharding", "ddp" if word == "MULTI_GPU" else "none", kind.place)
    _odd(draft, kind, word)
    table(FILE).read(bag, draft)
    draft.report(bag)


def _hardware(bag: Bag, draft: JobDraft) -> None:
    processes, machines = bag.take("num_processes"), bag.take("num_machines", "nnodes")
    count = whole(processes.value) if processes is not None else None
    nodes = whole(machines.value) if machines is not None else None
    if processes is None or not count:
        return
    draft.state("hardware.gpus", count, processes.place)  # of all machines
    if machines is not None and nodes and nodes > 1:
        if count % nodes == 0:
            draft.state("hardware.gpus_per_node", count // nodes, machines.place)
        else:
            draft.find(
                "processes-per-machine",
                "error",
                processes.place,
                f"{count} processes do not spread evenly over {nodes} machines",
                "num_processes counts all machines",
            )


def _precision(bag: Bag, draft: JobDraft, *, under_deepspeed: bool) -> None:
    given = bag.take("mixed_precision")
    bag.take("downcast_bf16")
    word = str(given.value).casefold() if given is not None else "no"
    if given is None or word in ("no", "false"):
        return
    stated = str(draft.value("train.precision") or "")
    if word == "fp8":
        draft.state("train.precision", "fp8", given.place)
    elif word in ("bf16", "fp16") and not draft.stated("train.precision"):
        draft.state("train.precision", f"{word}-{'master' if under_deepspeed else 'mixed'}", given.place)
    elif word in ("bf16", "fp16") and stated.startswith(("bf16", "fp16")) and not stated.startswith(word):
        message = f"mixed_precision is {word} here, and the script's own flag says {stated} at {draft.place('train.precision')}, which holds"
        draft.find("precision-conflict", "warning", given.place, message, "set both alike")


def _deepspeed(bag: Bag, run: Run, kind: Given | None, word: str) -> None:
    inner = bag.sub("deepspeed_config").over(Bag({key: given for key in DEEPSPEED if (given := bag.take(key)) is not None}))
    use = bag.take("use_deepspeed")
    if word != "DEEPSPEED" and not (use is not None and boolean(use.value)):
        inner.ignore(list(inner))
        return
    place = (use or kind or Given("", Place("accelerate"))).place
    file = inner.take("deepspeed_config_file")
    if file is None or not deepspeed.attached(run, file):
        _plugin(inner, run.draft, place)
    _init_flag(inner, run.draft)
    nested = [key for key in inner if key.startswith(("zero_optimization", "bf16.", "fp16."))]
    if nested:
        run.draft.find(
            "nested-deepspeed",
            "error",
            inner.place(nested[0]) or place,
            f"accelerate ignores {nested[0]}: its own names are zero_stage, offload_optimizer_device and so on, so that nothing of it is in effect",
            "put DeepSpeed's keys into a JSON file and name it as deepspeed_config_file",
        )
        inner.ignore(nested)
    table(FILE).read(inner, run.draft)
    run.draft.report(inner)


DEEPSPEED = (
    "deepspeed_config_file",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero3_init_flag",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
)


def _plugin(inner: Bag, draft: JobDraft, place: Place) -> None:
    """accelerate's own DeepSpeed settings. The plugin's stage is 2 where none is written."""
    stage = inner.take("zero_stage")
    number_ = whole(stage.value) if stage is not None else None
    if stage is not None and number_ is not None:
        draft.state("train.sharding", f"zero{number_}" if number_ else "ddp", stage.place)
    else:
        draft.default("train.sharding", "zero2", of="accelerate's DeepSpeed plugin")
    for key, job in (("offload_optimizer_device", "train.offload.optimizer"), ("offload_param_device", "train.offload.params")):
        given = inner.take(key)
        if given is None or str(given.value).casefold() not in ("cpu", "nvme"):
            continue
        if key == "offload_param_device" and draft.value("train.sharding") != "zero3":
            draft.find(
                "offload-param-stage",
                "warning",
                given.place,
                "offload_param_device acts at ZeRO stage 3 alone: parameters stay on the GPU",
                "set zero_stage: 3",
            )
            continue
        draft.state(job, str(given.value).casefold(), given.place)
    accum, clip = inner.take("gradient_accumulation_steps"), inner.take("gradient_clipping")
    if accum is not None and not draft.stated("train.grad_accum"):
        draft.state("train.grad_accum", whole(accum.value), accum.place)
    elif accum is not None and whole(accum.value) not in (None, draft.value("train.grad_accum")):
        message = f"gradient_accumulation_steps is {accum.value} here and {draft.value('train.grad_accum')} at {draft.place('train.grad_accum')}, which holds"
        draft.find("accumulation-conflict", "warning", accum.place, message, 'write "auto" here')
    if clip is not None and not draft.stated("train.grad_clip"):
        draft.state("train.grad_clip", number(clip.value), clip.place)
    inner.take("offload_optimizer_nvme_path", "offload_param_nvme_path")
    stated = str(draft.value("train.precision") or "")
    if stated.endswith("-mixed"):
        draft.state("train.precision", stated.replace("-mixed", "-master"), f"{draft.place('train.precision')}, under DeepSpeed")
        draft.drop("train.dtypes.weights")


def _init_flag(inner: Bag, draft: JobDraft) -> None:
    given = inner.take("zero3_init_flag")
    if given is None:
        return
    draft.state("train.extra.zero3_init_flag", boolean(given.value), given.place)
    if boolean(given.value) is False and draft.value("train.sharding") == "zero3":
        draft.find(
            "zero3-init",
            "warning",
            given.place,
            "zero3_init_flag is false: every process loads the whole model before ZeRO-3 shards it",
            "set zero3_init_flag: true",
        )


def _fsdp(bag: Bag, draft: JobDraft, kind: Given | None, word: str) -> None:
    flags = {key: given for key in list(bag) if key.startswith("fsdp_") and "." not in key and (given := bag.take(key)) is not None}
    inner = bag.sub("fsdp_config").over(Bag(flags))
    use = bag.take("use_fsdp")
    if word != "FSDP" and not (use is not None and boolean(use.value)):
        inner.ignore(list(inner))
        return
    read_fsdp(inner, draft, usual_version=1, framework="accelerate")


AXES = {"tp_size": "tp", "cp_size": "cp", "sp_size": "ulysses", "dp_shard_size": "dp_shard", "dp_replicate_size": "dp_replicate"}


def _parallelism(bag: Bag, draft: JobDraft) -> None:
    flags = {key: given for key in list(bag) if key.startswith("parallelism_config_") and (given := bag.take(key)) is not None}
    inner = bag.sub("parallelism_config").over(Bag(flags))
    bag.take("use_parallelism_config")
    for key, axis in AXES.items():
        given = inner.take(f"parallelism_config_{key}", key)
        if given is not None and (size := whole(given.value)) and size > 1:
            draft.state(f"train.mesh.{axis}", size, given.place)
    inner.ignore(key for key in list(inner) if "backend" in key or "strategy" in key or "seq_length" in key or "attn_implementation" in key)
    draft.report(inner)


MEGATRON = {
    "tp_degree": "train.mesh.tp",
    "pp_degree": "train.mesh.pp",
    "sequence_parallelism": "train.mesh.sp",
    "expert_model_parallel_size": "train.mesh.ep",
    "context_parallel_size": "train.mesh.cp",
    "gradient_clipping": "train.grad_clip",
    "num_micro_batches": "train.grad_accum",
}


def _megatron(bag: Bag, draft: JobDraft) -> None:
    inner = bag.sub("megatron_lm_config")
    bag.take("use_megatron_lm")
    for key, job in MEGATRON.items():
        given = inner.take(f"megatron_lm_{key}", key)
        if given is not None:
            value = boolean(given.value) if job.endswith(".sp") else number(given.value)
            draft.state(job, value, given.place)
    optimizer, recompute = inner.take("megatron_lm_use_distributed_optimizer"), inner.take("megatron_lm_recompute_activations")
    if optimizer is not None and boolean(optimizer.value):
        draft.state("train.sharding", "distributed-optimizer", optimizer.place)
    if recompute is not None and boolean(recompute.value):
        draft.state("train.recompute.policy", "selective", recompute.place)
    draft.report(inner)


def _odd(draft: JobDraft, kind: Given | None, word: str) -> None:
    gpus = draft.value("hardware.gpus")
    if kind is not None and word == "NO" and isinstance(gpus, int) and gpus > 1:
        draft.find(
            "one-process",
            "warning",
            kind.place,
            f"distributed_type NO runs one process, whatever num_processes says ({gpus})",
            "set distributed_type: MULTI_GPU",
        )
