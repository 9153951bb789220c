"""Adapters and packed base weights, as the many scripts around transformers and peft spell them."""

from __future__ import annotations

from typing import Any

from everybyte.formats.place import Given, Place
from everybyte.formats.training.run import Run
from everybyte.formats.training.words import dtype_word
from everybyte.formats.values import boolean, names, whole

ALL_LINEAR = frozenset({"all-linear", "all_linear", "all", "auto", "all-linear-layers"})
RANK = ("lora_r", "lora_rank", "lora_dim", "peft_lora_r", "r", "lora.rank")
ALPHA = ("lora_alpha", "peft_lora_alpha", "lora.alpha")
TARGETS = ("lora_target_modules", "target_modules", "lora_target", "lora_modules", "lora.target_modules", "modules")
DROPOUT = ("lora_dropout", "lora.dropout")
SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")


def read_lora(run: Run, *, kind: str, place: Place) -> None:
    """States an adapter from the usual keys."""
    draft = run.draft
    run.state("train.adapter.rank", run.whole(*RANK), *RANK)
    run.state("train.adapter.alpha", run.number(*ALPHA), *ALPHA)
    run.state("train.extra.lora_dropout", run.number(*DROPOUT), *DROPOUT)
    state_targets(run, run.bag.take(*TARGETS))
    saved = run.bag.take(*SAVED)
    if saved is not None and (modules := names(saved.value)):
        draft.state("train.adapter.modules_to_save", modules, saved.place)
    if run.switch("use_dora", "peft_use_dora"):
        kind = "dora"
    run.bag.take("use_rslora", "peft_use_rslora", "lora_task_type", "lora_bias", "bias", "lora_weight_path", "lora_plus_lr_ratio", "loraplus_lr_ratio")
    draft.state("train.adapter.kind", kind, place)


def state_targets(run: Run, given: Given | None) -> None:
    """Names of modules, `all-linear`, or a pattern. Finds the word that a comma spoilt."""
    if given is None:
        return
    if isinstance(given.value, str) and given.value.casefold() in ALL_LINEAR:
        run.draft.state("train.adapter.targets", "all-linear", given.place)
        return
    if isinstance(given.value, list) and len(given.value) == 1 and str(given.value[0]).casefold() in ALL_LINEAR:
        run.draft.state("train.adapter.targets", "all-linear", given.place)
        return
    if isinstance(given.value, str) and any(mark in given.value for mark in ".*()|^$\\"):
        run.draft.state("train.extra.target_modules_pattern", given.value, given.place)
        run.draft.find(
            "target-pattern",
            "note",
            given.place,
            "target_modules is a regular expression; which modules it matches is not worked out",
            "list the modules' names",
        )
        return
    found = names(given.value) or []
    spoilt = [word for word in given.value if word.endswith(",")] if isinstance(given.value, list) and run.command is not None else []
    if spoilt:
        kept = [word for word in given.value if not word.endswith(",")]
        run.draft.find(
            "targets-with-commas",
            "error",
            given.place,
            f"the argument is split at blanks, so that the name {spoilt[0]!r} with its comma matches no module: only {', '.join(kept) or 'nothing'} adapts",
            "leave the commas out",
            {"train.adapter.targets": found},
        )
        found = kept
    run.draft.state("train.adapter.targets", found or None, given.place)


def read_bitsandbytes(run: Run, *, usual_type: str, usual_double: bool, of: str, since: str = "") -> bool:
    """States a base packed by bitsandbytes; whether there is one."""
    four, eight = (
        run.bag.take("load_in_4bit", "use_4bit_quantization", "use_4bit", "q_lora", "use_qlora"),
        run.bag.take("load_in_8bit", "use_8bit_quantization"),
    )
    bits = run.bag.take("bits", "quantization_bit", "quant_bits")
    kind = run.bag.take("bnb_4bit_quant_type", "quant_type", "quantization_type")
    double = run.bag.take("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant", "use_nested_quant", "double_quantization")
    storage = run.bag.take("bnb_4bit_quant_storage", "bnb_4bit_quant_storage_dtype")
    run.bag.take("bnb_4bit_compute_dtype", "compute_dtype")
    origin = _packed(four, eight, bits)
    if origin is None:
        return False
    place, width = origin
    draft = run.draft
    if width == 8:
        draft.state("train.quantization.format", "int8", place)
        return True
    if kind is not None:
        draft.state("train.quantization.format", str(kind.value).casefold(), kind.place)
    else:
        draft.default("train.quantization.format", usual_type, since, of)
    if double is not None:
        draft.state("train.quantization.double", boolean(double.value), double.place)
    else:
        draft.default("train.quantization.double", usual_double, since, of)
    if storage is not None:
        draft.state("train.quantization.storage", dtype_word(storage.value) or str(storage.value), storage.place)
    return True


def _packed(four: Given | None, eight: Given | None, bits: Given | None) -> tuple[Place, int] | None:
    if four is not None and boolean(four.value):
        return four.place, 4
    if eight is not None and boolean(eight.value):
        return eight.place, 8
    width: Any = whole(bits.value) if bits is not None else None
    return (bits.place, width) if bits is not None and width in (4, 8) else None
