"""DeepSpeed's JSON, alone (a partial job) or beside the configuration that names it: `auto` is what the other file says."""

from __future__ import annotations

from everybyte.formats.bag import Bag
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.table import optimizer_settings, table
from everybyte.formats.training.run import Run, finished, of_document
from everybyte.formats.values import boolean, whole

ZERO = "zero_optimization"
OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "cpuadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "lamb": "lamb",
    "fusedlamb": "lamb",
    "lion": "lion",
    "adagrad": "adagrad",
    "muon": "muon",
    "sgd": "sgd",
}
"""optimizer.type -> the job's word. DeepSpeed runs its own fused Adam for both spellings."""
COMPRESSED = ("onebitadam", "zerooneadam", "onebitlamb")
"""Optimizers that keep an error of the size of the gradients for their one-bit exchange."""


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration that nothing names: a job without a model."""
    run = of_document(document, context, "deepspeed")
    run.draft.state("train.framework", "deepspeed", document.place("zero_optimization"))
    apply(document, run.draft)
    return finished(run._replace(bag=Bag()))


def apply(document: Document, draft: JobDraft) -> None:
    """States what the configuration says. What it leaves to `auto` stays as the other file has it."""
    apply_bag(document.bag(), draft)


def apply_bag(bag: Bag, draft: JobDraft) -> None:
    """The same for settings that stand inside another file."""
    stage = _stage(bag, draft)
    _precision(bag, draft, stage)
    _batch(bag, draft)
    _offload(bag, draft, stage)
    _optimizer(bag, draft)
    _automatic(bag, draft)
    table("training/deepspeed.csv").read(bag, draft)
    _curriculum(bag, draft)
    draft.report(bag)


def _stage(bag: Bag, draft: JobDraft) -> int:
    given = bag.take(f"{ZERO}.stage")
    stage = (whole(given.value) if given else None) or 0
    if given is not None:
        draft.state("train.sharding", f"zero{stage}" if stage else "ddp", given.place)
    elif (section := next((bag.place(key) for key in bag if key.startswith(ZERO)), None)) is not None:
        draft.find("zero-without-stage", "warning", section, "zero_optimization names no stage, so that ZeRO is off", "set zero_optimization.stage")
        draft.infer("train.sharding", "ddp", "DeepSpeed without a ZeRO stage keeps whole states on every rank")
    else:
        draft.infer("train.sharding", "ddp", "DeepSpeed without zero_optimization keeps whole states on every rank")
    return stage


def _precision(bag: Bag, draft: JobDraft, stage: int) -> None:
    """16-bit weights with an fp32 master copy. `auto` follows the flag of the other file, which is autocast without DeepSpeed."""
    stated = draft.value("train.precision")
    bag.take("torch_autocast")
    for kind, keys in (("bf16", ("bf16.enabled", "bfloat16.enabled")), ("fp16", ("fp16.enabled",))):
        given = bag.take(*keys)
        if given is None:
            continue
        on = boolean(given.value) if given.value != "auto" else str(stated or "").startswith(kind)
        if on:
            origin = given.place if given.value != "auto" else f"{draft.place('train.precision')}, as {given.place} is auto"
            draft.state("train.precision", f"{kind}-master", origin)
            _conflict(draft, stated, kind, given)
            return
    if stated in ("bf16-mixed", "fp16-mixed") and draft.stated("train.precision"):
        kind = str(stated).split("-", 1)[0]
        draft.state("train.precision", f"{kind}-master", f"{draft.place('train.precision')}, under DeepSpeed")
        draft.drop("train.dtypes.weights")


def _conflict(draft: JobDraft, stated: object, kind: str, given: Given) -> None:
    draft.drop("train.dtypes.weights")
    other = str(stated or kind).split("-", 1)[0]
    if given.value != "auto" and other in ("bf16", "fp16") and other != kind and draft.basis.get("train.precision") == "stated":
        message = f"{kind} is on here, and {other} in the settings beside it; DeepSpeed's own holds in its engine, and the trainer refuses the difference"
        draft.find("precision-conflict", "error", given.place, message, f'set both alike, or "{kind}": {{"enabled": "auto"}}')


def _batch(bag: Bag, draft: JobDraft) -> None:
    micro, accum, total = (bag.take(key) for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"))
    sizes: dict[str, int] = {}
    for name, key, given in (("micro", "train.micro_batch", micro), ("accum", "train.grad_accum", accum)):
        value = whole(given.value) if given is not None else None
        if given is not None and value is not None:
            if draft.stated(key) and draft.value(key) != value:
                message = f"{key} is {value} here and {draft.value(key)} at {draft.place(key)}; DeepSpeed's trainer refuses that"
                draft.find("batch-conflict", "error", given.place, message, 'write "auto" here')
            else:
                draft.state(key, value, given.place)
        if draft.value(key):
            sizes[name] = draft.value(key)
    whole_batch = whole(total.value) if total is not None else None
    if total is not None and whole_batch is not None:
        _whole_batch(draft, whole_batch, sizes, total)


def _whole_batch(draft: JobDraft, total: int, sizes: dict[str, int], given: Given) -> None:
    """train_batch_size = micro batch x accumulation x data-parallel ranks: two of the four decide a third."""
    ranks = draft.value("hardware.gpus")
    if len(sizes) == 2 and ranks is None and total % (sizes["micro"] * sizes["accum"]) == 0:
        count = total // (sizes["micro"] * sizes["accum"])
        draft.infer("hardware.gpus", count, f"train_batch_size {total} / ({sizes['micro']} x {sizes['accum']})")
    elif "accum" in sizes and ranks and "micro" not in sizes and total % (sizes["accum"] * ranks) == 0:
        draft.infer("train.micro_batch", total // (sizes["accum"] * ranks), f"train_batch_size {total} / ({sizes['accum']} x {ranks} GPUs)")
    elif "micro" in sizes and ranks and "accum" not in sizes and total % (sizes["micro"] * ranks) == 0:
        draft.infer("train.grad_accum", total // (sizes["micro"] * ranks), f"train_batch_size {total} / ({sizes['micro']} x {ranks} GPUs)")
    else:
        draft.state("train.extra.train_batch_size", total, given.place)


def _offload(bag: Bag, draft: JobDraft, stage: int) -> None:
    for key, name, job in (("optimizer", "offload_optimizer", "train.offload.optimizer"), ("param", "offload_param", "train.offload.params")):
        device = bag.take(f"{ZERO}.{name}.device")
        old = bag.take(f"{ZERO}.cpu_offload" if key == "optimizer" else f"{ZERO}.cpu_offload_params")
        if device is None and old is not None and boolean(old.value):
            device = Given("cpu", old.place)
        if device is None or str(device.value).casefold() not in ("cpu", "nvme"):
            continue
        if key == "param" and stage != 3:
            message = f"offload_param acts at ZeRO stage 3 alone, and this is stage {stage}: parameters stay on the GPU"
            draft.find("offload-param-stage", "warning", device.place, message, "set stage 3, or take offload_param out")
            continue
        if key == "optimizer" and stage == 0:
            draft.find("offload-without-zero", "warning", device.place, "offload_optimizer acts from ZeRO stage 1 on, and ZeRO is off", "set a stage")
            continue
        draft.state(job, str(device.value).casefold(), device.place)
    ratio = bag.peek(f"{ZERO}.offload_optimizer.ratio")
    if ratio is not None and "train.offload.optimizer" not in draft:
        bag.take(f"{ZERO}.offload_optimizer.ratio")


def _optimizer(bag: Bag, draft: JobDraft) -> None:
    given = bag.take("optimizer.type")
    if given is None:
        return
    word = str(given.value).casefold().replace("_", "").replace("-", "")
    if word in COMPRESSED:
        draft.find(
            "one-bit-optimizer",
            "warning",
            given.place,
            f"{given.value} keeps an error of the size of the gradients besides Adam's moments, which is not counted",
            "add two bytes a parameter",
        )
        word = "adamw"
    settings = {"train.optimizer.name": OPTIMIZERS[word]} if word in OPTIMIZERS else optimizer_settings(str(given.value))
    for key, value in settings.items():
        draft.state(key, value, given.place)


AUTOMATIC = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""Sizes that transformers works out of the model's width where they are `auto`."""


def _automatic(bag: Bag, draft: JobDraft) -> None:
    for name in AUTOMATIC:
        given = bag.peek(f"{ZERO}.{name}")
        if given is not None and given.value == "auto":
            draft.state(f"train.extra.{name}", "auto", given.place)


def _curriculum(bag: Bag, draft: JobDraft) -> None:
    given = bag.take("curriculum_learning.enabled")
    bag.ignore(key for key in list(bag) if key.startswith("curriculum_learning"))
    if given is not None and boolean(given.value):
        draft.find("curriculum", "note", given.place, "the sequence length grows while training: the last and longest value is what counts here")


def attached(run: Run, given: Given | None) -> bool:
    """Applies the configuration that a run names or that was given beside it; whether there was one."""
    document = None
    inline = run.bag.sub("deepspeed")
    if list(inline):
        apply_bag(inline, run.draft)
        return True
    if given is not None and isinstance(given.value, str) and given.value.casefold() not in ("true", "false"):
        builtin = BUILTIN.get(given.value)
        if builtin is not None:
            run.draft.state("train.sharding", builtin[0], given.place)
            for job in builtin[1:]:
                run.draft.state(job, "cpu", given.place)
            _to_master(run.draft)
            return True
        document = run.context.document(given.value, run.files) or run.context.companion("deepspeed")
        if document is None:
            _from_name(run.draft, given)
            return True
    else:
        document = run.context.companion("deepspeed")
    if document is not None:
        apply(document, run.draft)
    return document is not None


BUILTIN: dict[str, tuple[str, ...]] = {
    "zero0": ("ddp",),
    "zero1": ("zero1",),
    "zero2": ("zero2",),
    "zero3": ("zero3",),
    "zero2_offload": ("zero2", "train.offload.optimizer"),
    "zero3_offload": ("zero3", "train.offload.optimizer", "train.offload.params"),
}
"""ms-swift's own names for configurations it ships -> sharding, and what is offloaded."""


def _to_master(draft: JobDraft) -> None:
    stated = str(draft.value("train.precision") or "")
    if stated.endswith("-mixed"):
        draft.state("train.precision", stated.replace("-mixed", "-master"), f"{draft.place('train.precision')}, under DeepSpeed")
        draft.drop("train.dtypes.weights")


def _from_name(draft: JobDraft, given: Given) -> None:
    """A configuration that was not given: its name says the stage as often as not."""
    name = str(given.value).replace("\\", "/").rpartition("/")[2].casefold().replace("-", "_")
    stage = next((number for number in "321" if any(mark + number in name for mark in ("zero", "z", "stage", "zero_", "stage_"))), None)
    if stage is None:
        draft.find("file-not-given", "warning", given.place, f"{given.value} decides the ZeRO stage and was not given", "give it as well")
        draft.miss("train.sharding", f"{given.value} says it")
        return
    draft.infer("train.sharding", f"zero{stage}", f"the file's name, {name}")
    if "offload" in name or "_off" in name:
        draft.infer("train.offload.optimizer", "cpu", f"the file's name, {name}")
        if stage == "3":
            draft.infer("train.offload.params", "cpu", f"the file's name, {name}")
    _to_master(draft)
    draft.find("file-not-given", "warning", given.place, f"{given.value} was not given; its stage is taken from its name", "give it as well")
