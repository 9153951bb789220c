"""What the process behind warm traces imports, once: the fake device, then what nearly every traced program imports."""

from __future__ import annotations

import importlib
import os
import warnings

from everybyte.basics.tracing import TRACING
from everybyte.trace import shim

os.environ[TRACING] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
shim.load()

MODULES = (
    "everybyte.trace.patching.branches",
    "everybyte.trace.device.cuda",
    "everybyte.trace.faults",
    "everybyte.trace.program",
    "everybyte.trace.patching.surroundings",
    "everybyte.trace.recording.watch",
    "everybyte.trace.jobs.program",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "peft",
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in MODULES:
        importlib.import_module(name)
