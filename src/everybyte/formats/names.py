"""What the name of a model says beside the model: how its weights are packed."""

from __future__ import annotations

import re
from typing import NamedTuple

from everybyte.catalog.models import catalogue_name, relative_of
from everybyte.formats.draft import JobDraft

GGUF = re.compile(r"(?:^|[-_.:/])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4|BF16|F16|F32))(?:[-_.]|$)", re.IGNORECASE)
"""A GGUF type inside a name: `-Q4_K_M.gguf`, `:q4_K_M`, `/UD-Q4_K_XL/`."""

MARKS: tuple[tuple[str, str], ...] = (
    (r"bnb-4bit|unsloth-bnb-4bit|-4bit$|int4-bnb|-nf4", "nf4"),
    (r"bnb-8bit|-8bit$", "int8"),
    (r"awq", "awq"),
    (r"gptq", "gptq"),
    (r"nvfp4|-fp4$", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8|w8a8-fp8", "fp8"),
    (r"w8a8|int8", "int8"),
    (r"w4a16|int4|autoround", "gptq"),
    (r"exl2", "exl2"),
    (r"exl3", "exl3"),
    (r"hqq", "hqq"),
    (r"aqlm", "aqlm"),
)
"""Words inside a name -> format, the first that fits."""


class Packed(NamedTuple):
    """How the weights of a named model are stored."""

    format: str
    because: str


def packed_by_name(name: str) -> Packed | None:
    """The format that a name speaks of: `TheBloke/Llama-2-7B-GPTQ` -> gptq; None if it says nothing."""
    found = GGUF.search(name)
    if found is not None and ("gguf" in name.casefold() or ":" in name or "_k" in found[1].casefold() or re.match(r"(?i)(ud-)?i?q\d_", found[1])):
        word = found[1].casefold().removeprefix("ud-")
        return Packed({"f16": "fp16", "f32": "fp32"}.get(word, word), f"the name says {found[1]}")
    folded = name.casefold()
    for pattern, format_ in MARKS:
        if (mark := re.search(rf"(?:{pattern})", folded)) is not None:
            return Packed(format_, f"the name says {mark[0].strip('-')}")
    return None


TRAINABLE = {"nf4": True, "int8": None, "gptq": None, "awq": None, "hqq": None, "aqlm": None}
"""Packed bases that adapters are trained on -> whether the scales are packed too (unsloth's and bitsandbytes' uploads are)."""


def settle_model(draft: JobDraft) -> None:
    """A folder that is called like a model of the catalogue means it; a name that says how its weights are packed sets their format."""
    name = draft.value("model")
    if not isinstance(name, str):
        return
    _folder(draft, name)
    if (packed := packed_by_name(name)) is None:
        return
    if any(key.startswith("serve.") for key in draft.settings):
        draft.infer("serve.weights.format", packed.format, packed.because)
    elif "train.quantization.format" not in draft and packed.format in TRAINABLE:
        draft.infer("train.quantization.format", packed.format, packed.because)
        if TRAINABLE[packed.format] is not None:
            draft.infer("train.quantization.double", TRAINABLE[packed.format], packed.because)


def _folder(draft: JobDraft, path: str) -> None:
    """`/data/models/Qwen2.5-7B` and `$HOME/Qwen2.5-7B` are not here; their last part may be a name of the catalogue."""
    written = path.replace("\\", "/").rstrip("/")
    if not written.startswith(("/", "./", "../", "~", "$")) and not re.match(r"[A-Za-z]:/", written) and written.count("/") < 2:
        return
    parts = written.split("/")
    for name in ("/".join(parts[-2:]), parts[-1]):
        if catalogue_name(name) is None or ("/" in name and relative_of(name) is not None):
            continue
        draft.state("model", name, f"{draft.place('model')}, where it is {path}")
        return
