"""LitGPT: YAML and `litgpt finetune_lora MODEL --train.micro_batch_size 1`."""

from __future__ import annotations

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.flags import Spelling
from everybyte.formats.table import optimizer_settings, table
from everybyte.formats.training.run import Run, finished, of_command, of_document
from everybyte.formats.values import boolean, whole

FILE = "training/litgpt.csv"
PRECISIONS = {
    "bf16-true": "bf16",
    "16-true": "fp16",
    "32-true": "fp32",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "fp16-mixed",
    "bf16": "bf16-mixed",
    "16": "fp16-mixed",
    "32": "fp32",
}
PACKED = {
    "bnb.nf4": ("nf4", False),
    "bnb.nf4-dq": ("nf4", True),
    "bnb.fp4": ("fp4", False),
    "bnb.fp4-dq": ("fp4", True),
    "bnb.int8": ("int8", None),
    "bnb.int8-training": ("int8", None),
}
TARGETS = (
    ("lora_query", "q_proj", True),
    ("lora_key", "k_proj", False),
    ("lora_value", "v_proj", True),
    ("lora_projection", "o_proj", False),
    ("lora_head", "lm_head", False),
)
"""Switch, module, and whether it is on where nobody says."""
MLP = ("gate_proj", "up_proj", "down_proj")
METHODS = {"finetune_lora": "lora", "finetune": "lora", "finetune_adapter": "adapter", "finetune_adapter_v2": "adapter-v2"}


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A configuration; LoRA's keys say that it is one of finetune_lora."""
    run = of_document(document, context, "litgpt")
    return _read(run, "finetune_lora" if any(key.startswith("lora_") for key in run.bag) else "finetune_full")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`litgpt finetune_lora MODEL ...`."""
    run = of_command(command, context, "litgpt", Spelling(known=table(FILE).known))
    words = [word for word in run.words if word.text != "litgpt"]
    method = words[0].text if words else "finetune"
    if method == "finetune" and len(words) > 1 and words[1].text in ("lora", "full", "adapter", "adapter_v2"):
        method = f"finetune_{words.pop(1).text}"
    if len(words) > 1:
        run.draft.state("model", _named(words[1].text), words[1].place)
    return _read(run, method)


def _read(run: Run, method: str) -> list[JobDraft]:
    draft = run.draft
    draft.infer("train.framework", "litgpt", "its names of settings")
    _model(run)
    _precision(run)
    table(FILE).read(run.bag, draft)
    _adapter(run, method)
    _optimizer(run)
    _devices(run)
    draft.default("train.micro_batch", 4 if method == "pretrain" else 1, of="LitGPT")
    _accumulation(run, method)
    return finished(run)


def _named(path: str) -> str:
    """`checkpoints/microsoft/phi-2` -> `microsoft/phi-2`."""
    parts = path.replace("\\", "/").rstrip("/").split("/")
    return "/".join(parts[parts.index("checkpoints") + 1 :]) if "checkpoints" in parts[:-1] else path


def _model(run: Run) -> None:
    given = run.bag.take("checkpoint_dir", "model_name", "model")
    if given is not None and isinstance(given.value, str):
        run.draft.state("model", _named(given.value), given.place)


def _precision(run: Run) -> None:
    draft = run.draft
    given, packed = run.bag.take("precision"), run.bag.take("quantize")
    if given is not None and (word := PRECISIONS.get(str(given.value).casefold())):
        draft.state("train.precision", word, given.place)
    if packed is not None and (found := PACKED.get(str(packed.value).casefold())):
        draft.state("train.quantization.format", found[0], packed.place)
        draft.state("train.quantization.double", found[1], packed.place)


def _adapter(run: Run, method: str) -> None:
    draft, bag = run.draft, run.bag
    kind = METHODS.get(method)
    switches = {key: bag.take(key) for key, _, _ in TARGETS}
    mlp = bag.take("lora_mlp")
    if kind is None:
        return
    draft.infer("train.adapter.kind", kind, f"the method is {method}")
    if kind != "lora":
        return
    draft.default("train.adapter.rank", 8, of="LitGPT")
    draft.default("train.adapter.alpha", 16, of="LitGPT")
    chosen = [module for key, module, usual in TARGETS if (boolean(given.value) if (given := switches[key]) is not None else usual)]
    if mlp is not None and boolean(mlp.value):
        chosen += MLP
    stated = next((given for given in (*switches.values(), mlp) if given is not None), None)
    if stated is not None:
        draft.state("train.adapter.targets", chosen, stated.place)
    else:
        draft.default("train.adapter.targets", chosen, of="LitGPT")


def _optimizer(run: Run) -> None:
    given = run.bag.take("optimizer.class_path", "optimizer")
    settings = optimizer_settings(str(given.value)) if given is not None and isinstance(given.value, str) else {}
    for key, value in settings.items():
        if given is not None:
            run.draft.state(key, value, given.place)


def _devices(run: Run) -> None:
    """Several devices mean FSDP."""
    devices, nodes = run.bag.take("devices"), run.bag.take("num_nodes")
    count = whole(devices.value) if devices is not None else None
    machines = (whole(nodes.value) if nodes is not None else None) or 1
    if devices is None or count is None:
        return
    run.draft.state("hardware.gpus", count * machines, devices.place)
    if machines > 1:
        run.draft.state("hardware.gpus_per_node", count, devices.place)
    if count * machines > 1:
        run.draft.default("train.sharding", "fsdp1", of="LitGPT with several devices")


def _accumulation(run: Run, method: str) -> None:
    given = run.bag.take("train.global_batch_size")
    draft = run.draft
    total = whole(given.value) if given is not None else None
    micro, ranks = draft.value("train.micro_batch"), draft.value("hardware.gpus") or 1
    if given is not None and total and micro and total // ranks >= micro:
        draft.infer("train.grad_accum", max(total // ranks // micro, 1), f"global batch {total} / ({micro} x {ranks} devices)")
