"""What goes wrong in a traced program, told in its own terms: its own line first, then what the fake device cannot do, and a way round."""

from __future__ import annotations

import traceback

from everybyte.trace.birth import is_of_program
from everybyte.trace.request import Failed

NO_FAKE = "an operation has no fake version"
REGISTER = "register one with torch.library.register_fake, or trace without it"
NO_TRITON = ("the program's kernels are written in Triton, which is not installed here", "install it (Linux: pip install triton), or trace the eager version")
NO_DRIVER = ("the program asks Triton for a real GPU", "trace with the eager version of that kernel")

NO_VALUE = (
    "the program takes its way, or a size, by the value of a tensor (.item(), .tolist(), `if tensor:`), and fake tensors have shapes but no values",
    "guard it for the trace (if not everybyte.tracing()), or trace a function that leaves it out",
)
OFFLINE = (
    "the program loads a file of the Hugging Face hub that is not on this machine, and a trace downloads nothing",
    "download it before, or let the program do it (HF_HUB_OFFLINE=0 everybyte trace ...)",
)
NO_DEEPSPEED = (
    "the program needs DeepSpeed, whose kernels are built for a real GPU, and which is not traced",
    "estimate it from its own files (everybyte estimate), or trace it with FSDP2, which shards as ZeRO-3 does",
)
HELP = (
    ("DataDependentOutputException", "", *NO_VALUE),
    ("TypeError", "Unknown", *NO_VALUE),
    (
        "DynamicOutputShapeException",
        "",
        "the shape of a result depends on values (nonzero, masked_select, unique), which fake tensors do not have",
        "trace with a fixed shape there: a capacity, a top-k, or a mask that is multiplied",
    ),
    ("UnsupportedOperatorException", "", NO_FAKE, REGISTER),
    ("RuntimeError", "no fake impl registered", NO_FAKE, REGISTER),
    ("ModuleNotFoundError", "'triton'", *NO_TRITON),
    ("ModuleNotFoundError", "'deepspeed'", *NO_DEEPSPEED),
    ("ImportError", "DeepSpeed is not available", *NO_DEEPSPEED),
    ("OSError", "huggingface.co", *OFFLINE),
    ("ValueError", "backend tokenizer", *OFFLINE),
    ("OfflineModeIsEnabled", "", *OFFLINE),
    ("LocalEntryNotFoundError", "", *OFFLINE),
    ("RuntimeError", "active drivers", *NO_DRIVER),
    ("AssertionError", "libcuda.so", *NO_DRIVER),
)
"""(exception, words of its message, what it means, a way round)."""


def told(fault: BaseException) -> Failed:
    """The failure as a message."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = next((frame for frame in reversed(frames) if is_of_program(frame.filename)), None)
    line = f"{own.filename}:{own.lineno}: {own.line}" if own else ""
    name = type(fault).__name__
    for known, words, meaning, way in HELP:
        if known == name and words in str(fault):
            return Failed(message=meaning, line=line, help=way)
    first = str(fault).strip().splitlines()[0] if str(fault).strip() else ""
    return Failed(message=f"{name}: {first}" if first else name, line=line)
