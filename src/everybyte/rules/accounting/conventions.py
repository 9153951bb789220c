"""What the rules leave to a framework, as a value that its engine hands: no rule asks which framework runs."""

from __future__ import annotations

from typing import Literal

from everybyte.basics.record import Record

Wraps = Literal["plain", "accelerate", "accelerate uncast"]
"""Who wraps a model for FSDP: the loop, block by block, as it is; accelerate; or accelerate with a preparation that casts nothing and leaves what is
outside of blocks to the root."""
Groups = Literal["torch", "torch and a clone", "core"]
"""Process groups: those of torch's device mesh; the same and a second group over all ranks (DeepSpeed); Megatron Core's."""


class Conventions(Record, frozen=True):
    """How a framework does what several frameworks do in their own ways."""

    wraps: Wraps = "plain"
    zero_preset: str = ""
    """Name of the ZeRO configurations that it ships (`catalog/data/zero_presets.csv`); empty for DeepSpeed's own defaults."""
    torch_pipelines: bool = True
    """Pipelines are those of torch.distributed.pipelining; else Megatron Core's."""
    divides_experts: bool = False
    """Experts are divided over tensor-parallel ranks as other layers are, though they are spread over expert-parallel ranks."""

    @property
    def by_accelerate(self) -> bool:
        """Whether accelerate wraps the model."""
        return self.wraps != "plain"


PLAIN = Conventions()
CORE = Conventions(torch_pipelines=False, divides_experts=True)
"""Megatron Core's."""
