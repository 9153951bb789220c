"""transformers and TRL: their YAML and JSON, their scripts, and the many scripts around both, which share the names of the trainer's arguments."""

from __future__ import annotations

from collections.abc import Sequence

from everybyte.formats.command import Command
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Place
from everybyte.formats.table import table
from everybyte.formats.training import defaults, peft
from everybyte.formats.training.adapters import RANK, read_bitsandbytes, read_lora
from everybyte.formats.training.hf import Usual, read_arguments
from everybyte.formats.training.lengths import LENGTHS, read_length
from everybyte.formats.training.run import Run, finished, of_command, of_document, spelling
from everybyte.formats.values import boolean

FILES = ("training/trl.csv", "training/hf.csv")

METHODS = ("grpo", "rloo", "dpo", "kto", "orpo", "cpo", "simpo", "bco", "ppo", "online_dpo", "nash_md", "xpo", "gkd", "reward", "prm", "sft")
"""Methods by the names of TRL's scripts and commands."""

OF_TRL = (
    "use_peft",
    "max_seq_length",
    "num_generations",
    "max_completion_length",
    "dataset_text_field",
    "packing",
    "beta",
    "use_bnb_nested_quant",
    "loss_type",
    "padding_free",
    "max_prompt_length",
    "dataset_mixture",
    "dataset_mixer",
    "completion_only_loss",
    "precompute_ref_log_probs",
    "reward_funcs",
    "dataset_configs",
)
"""Keys of TRL's configurations that plain transformers does not have."""

ALSO_BIG = ("vision_tower", "mm_vision_tower")


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """A YAML or JSON of arguments."""
    run = of_document(document, context, "trl")
    return _read(run, _method((document.source.path,), run))


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`trl sft ...`, `python sft.py ...`, and other scripts with the trainer's arguments."""
    run = of_command(command, context, "trl", spelling(table(*FILES)), ("config", "config_file"))
    words = tuple(word.text for word in command.words[:2])
    return _read(run, _method(words, run))


def _method(paths: Sequence[str], run: Run) -> tuple[str, str]:
    """The method and why: `num_generations` is GRPO's, a script or file is called after it."""
    if "num_generations" in run.bag:
        return "grpo", f"num_generations at {run.place('num_generations')}"
    for path in paths:
        pieces = path.replace("\\", "/").casefold().replace("-", "_").split("/")[-3:]
        for method in METHODS:
            if any(method in piece.rpartition(".")[0].split("_") or piece.startswith(method) for piece in pieces):
                return method, f"the name {path}"
    if "precompute_ref_log_probs" in run.bag:
        return "dpo", "precompute_ref_log_probs is DPO's"
    return "sft", ""


def _read(run: Run, method: tuple[str, str]) -> list[JobDraft]:
    name, reason = method
    is_trl = any(key in run.bag for key in OF_TRL) or "trl" in run.path.replace("\\", "/").split("/") or name != "sft" or run.path.startswith("trl")
    framework = "trl" if is_trl else "transformers"
    run.draft.framework = framework
    run.draft.infer("train.framework", framework, "its names of settings")
    if name not in ("sft", "reward", "prm"):
        run.draft.infer("train.extra.rlhf_type", "dpo" if name == "online_dpo" else name, reason)
    peft_given = _adapter(run, is_trl=is_trl)
    read_bitsandbytes(run, usual_type="nf4" if is_trl else "fp4", usual_double=False, of=framework)
    read_arguments(run, _usual(run, framework))
    adds = name in ("grpo", "rloo") or "response_length" in run.bag
    read_length(run, adds=adds)
    table(*FILES).read(run.bag, run.draft)
    _defaults(run, framework, name, has_adapter=peft_given)
    _towers(run)
    return finished(run)


def _usual(run: Run, framework: str) -> Usual:
    version = run.context.version
    if framework == "transformers":
        return Usual("transformers")
    checkpointing, since = defaults.value("trl", "gradient_checkpointing", version)
    bf16, bf16_since = defaults.value("trl", "bf16", version)
    loads, loads_since = defaults.value("trl", "dtype", version)
    return Usual(
        "trl",
        recompute=checkpointing == "True",
        recompute_since=since,
        autocast="bf16" if bf16 == "auto" else "",
        autocast_since=bf16_since,
        loads=loads or "",
        loads_since=loads_since,
    )


def _adapter(run: Run, *, is_trl: bool) -> bool:
    """LoRA by a switch, or by a rank in scripts that have none."""
    switch = run.bag.take("use_peft", "use_lora", "use_peft_lora", "lora", "enable_lora", "lora_enable", "use_llm_lora", "peft", "q_lora", "use_qlora", "qlora")
    rank = next((run.bag.peek(key) for key in RANK if key in run.bag), None)
    full = run.switch("full_finetune", "use_full_finetune")
    if switch is not None and boolean(switch.value) is False:
        _unused(run)
        return False
    place: Place | None = switch.place if switch is not None else None
    if switch is not None and str(switch.value).isdigit() and int(str(switch.value)) > 1:
        run.draft.state("train.adapter.rank", int(str(switch.value)), switch.place)  # the switch is the rank
    if place is None and rank is not None and str(rank.value) not in ("0", "None") and not full:
        if is_trl and "use_peft" not in run.bag and "load_in_4bit" not in run.bag and run.path.startswith("trl"):
            run.draft.find("lora-without-peft", "warning", rank.place, "a LoRA rank is given without use_peft: TRL trains all weights", "set use_peft: true")
            _unused(run)
            return False
        place = rank.place
    if place is None:
        return peft.attached(run)
    read_lora(run, kind="lora", place=place)
    if is_trl:
        for key, job in (("lora_r", "train.adapter.rank"), ("lora_alpha", "train.adapter.alpha")):
            value, since = defaults.value("trl", key, run.context.version)
            run.draft.default(job, int(value or 0) or None, since, "trl")
    return True


def _unused(run: Run) -> None:
    run.bag.ignore(key for key in list(run.bag) if key.startswith(("lora_", "peft_")))


def _defaults(run: Run, framework: str, method: str, *, has_adapter: bool) -> None:
    version = run.context.version
    micro, since = defaults.value("transformers", "per_device_train_batch_size", version)
    run.draft.default("train.micro_batch", int(micro or 0) or None, since, "transformers")
    run.draft.default("train.grad_accum", 1, of="transformers")
    if framework != "trl":
        return
    old_name = "max_seq_length" in run.bag
    length, since = defaults.value("trl", "max_length", version or ("0.15.0" if old_name else None))
    if method not in ("grpo", "rloo", "ppo") and length and not any(key in run.bag for key in LENGTHS):
        run.draft.default("train.seq_len", int(length), since, "trl")
    if method == "grpo" and run.draft.value("train.extra.use_vllm"):
        share, since = defaults.value("trl", "vllm_gpu_memory_utilization", version)
        run.draft.default("train.extra.vllm_gpu_memory_utilization", float(share or 0) or None, since, "trl")


def _towers(run: Run) -> None:
    given = run.bag.take(*ALSO_BIG)
    if given is not None:
        run.draft.state("train.extra.vision_tower", given.value, given.place)
        run.draft.find(
            "vision-tower-apart",
            "warning",
            given.place,
            f"the vision_tower {given.value} and its projector are not part of the model named, and are not counted",
            "name the whole model, such as llava-hf/llava-1.5-13b-hf, as the model",
        )
