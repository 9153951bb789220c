"""Names of optimizers as people write them: classes of torch, bitsandbytes and torchao, and `optim` of the Hugging Face Trainer."""

from __future__ import annotations

import re
from typing import NamedTuple


class Named(NamedTuple):
    """What a name says: the rule, and the settings that are part of it."""

    key: str
    """In `optimizer.RULES`."""
    impl: str | None = None
    paged: bool = False
    in_backward: bool = False


def squeeze(name: str) -> str:
    """`bitsandbytes.optim.PagedAdamW8bit`, `paged_adamw_8bit` -> `pagedadamw8bit`."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit(".", 1)[-1].casefold())


_LISTED: dict[str, Named] = {
    "adamw-torch": Named("adamw"),
    "adamw-hf": Named("adamw"),
    "adamw-torch-fused": Named("adamw", "fused"),
    "adamw-fused": Named("adamw", "fused"),
    "adamw-torch-xla": Named("adamw"),
    "adamw-torch-npu-fused": Named("adamw", "fused"),
    "adamw-apex-fused": Named("adamw", "fused"),
    "fused-adam": Named("adamw", "fused"),
    "adam-torch": Named("adam"),
    "adamw-anyprecision": Named("adamw-anyprecision"),
    "anyprecision-adamw": Named("adamw-anyprecision"),
    "momentum": Named("sgd-momentum"),
    "sgd-nesterov": Named("sgd-momentum"),
    "adafactor-hf": Named("adafactor-hf"),
    "adam-8bit": Named("adamw-8bit"),
    "adamw-bnb-8bit": Named("adamw-8bit"),
    "adamw-bnb": Named("adamw-8bit"),
    "adam-bnb-8bit": Named("adamw-8bit"),
    "adam-32bit": Named("adamw-32bit"),
    "adamw-bnb-32bit": Named("adamw-32bit"),
    "paged-adamw": Named("adamw-32bit", paged=True),
    "paged-adamw-32bit": Named("adamw-32bit", paged=True),
    "paged-adam": Named("adamw-32bit", paged=True),
    "paged-adam-32bit": Named("adamw-32bit", paged=True),
    "paged-adamw-8bit": Named("adamw-8bit", paged=True),
    "paged-adam-8bit": Named("adamw-8bit", paged=True),
    "paged-lion-32bit": Named("lion-32bit", paged=True),
    "paged-lion": Named("lion-32bit", paged=True),
    "paged-lion-8bit": Named("lion-8bit", paged=True),
    "paged-ademamix-32bit": Named("ademamix-32bit", paged=True),
    "paged-ademamix-8bit": Named("ademamix-8bit", paged=True),
    "ademamix": Named("ademamix-32bit"),
    "rmsprop-bnb": Named("rmsprop-32bit"),
    "rmsprop-bnb-32bit": Named("rmsprop-32bit"),
    "rmsprop-bnb-8bit": Named("rmsprop-8bit"),
    "adamw-torch-8bit": Named("adamw-torchao-8bit"),
    "adamw-torch-4bit": Named("adamw-torchao-4bit"),
    "adamw-4bit": Named("adamw-torchao-4bit"),
    "adam-4bit": Named("adamw-torchao-4bit"),
    "adamw-fp8": Named("adamw-torchao-fp8"),
    "adam-fp8": Named("adamw-torchao-fp8"),
    "galore-adamw": Named("galore"),
    "galore-adamw-8bit": Named("galore-8bit"),
    "galore-adafactor": Named("galore-adafactor"),
    "galore-adamw-layerwise": Named("galore", in_backward=True),
    "galore-adamw-8bit-layerwise": Named("galore-8bit", in_backward=True),
    "galore-adafactor-layerwise": Named("galore-adafactor", in_backward=True),
    "apollo-adamw": Named("apollo"),
    "apollo-adamw-layerwise": Named("apollo", in_backward=True),
    "apollo-mini": Named("apollo-mini"),
    "lomo": Named("lomo", in_backward=True),
    "adalomo": Named("adalomo", in_backward=True),
    "schedule-free-adamw": Named("schedule-free"),
    "schedule-free-radam": Named("schedule-free"),
    "schedule-free-sgd": Named("schedule-free-sgd"),
    "sophiag": Named("sophia"),
    "sophia-g": Named("sophia"),
    "sophiah": Named("sophia"),
    "came-pytorch": Named("came"),
    "prodigyopt": Named("prodigy"),
    "fused-lamb": Named("lamb"),
    "adopt-adamw": Named("adopt"),
    "stable-adamw": Named("adamw"),
    "stableadamw": Named("adamw"),
    "adamw-amsgrad": Named("adamw-amsgrad"),
    "amsgrad": Named("adamw-amsgrad"),
}
"""Names that are not those of rules."""

NAMES: dict[str, Named] = {squeeze(name): named for name, named in _LISTED.items()}
SPELLINGS = tuple(_LISTED)
