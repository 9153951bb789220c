"""NeMo Automodel's loop (nemo-automodel): models of transformers with Liger's kernels, recomputed part by part.

Read in github.com/NVIDIA-NeMo/Automodel f8358ee9: components/_transformers/auto_model.py (use_liger_kernel is on) and
components/distributed/parallelizer.py (DefaultParallelizationStrategy.parallelize).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.job import Train
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels
from everybyte.layers.recording.size import Dims
from everybyte.layers.recording.tape import Tape, Value
from everybyte.rules.step.recipe import Recipe, RecomputePlan

NAME = "nemo-automodel"


def is_automodel(train: Train) -> bool:
    """Whether the job says so."""
    return train.framework == NAME


def kernels(usual: Kernels) -> Kernels:
    """The loop's kernels: Liger's norm, rotary positions and gated feed-forward layer."""
    return replace(usual, norm="fused", mlp="fused", rope="fused")


def by_parts(network: Network, recipe: Recipe) -> tuple[Network, Recipe]:
    """Recomputing wraps the two branches and the two norms of each block, not the block: four inputs are kept instead of one."""
    if recipe.recompute.mode == "none":
        return network, recipe
    return _wrapped(network), replace(recipe, recompute=RecomputePlan())


class RecomputedPart(Record, frozen=True):
    """torch's checkpoint_wrapper around a module."""

    part: Any

    def forward(self, t: Tape, x: Value) -> Value:
        """What the module gives; backward runs it again."""
        with t.recomputed():
            out: Value = self.part.forward(t, x)
        return out


class RecomputedNorm(Record, frozen=True):
    """The same around a norm."""

    norm: Any

    def forward(self, t: Tape, x: Value, leaf: str, weight: Dims = ()) -> Value:
        """x (..., h) -> (..., h)."""
        with t.recomputed():
            out: Value = self.norm.forward(t, x, leaf, weight)
        return out


@lru_cache(maxsize=64)
def _wrapped(network: Network) -> Network:
    return replace(network, runs=tuple(replace(run, layer=_block(run.layer)) for run in network.runs))


def _block(layer: Any) -> Any:
    if not isinstance(layer, Block):
        return RecomputedPart(layer)
    return replace(layer, mixer=RecomputedPart(layer.mixer), mlp=RecomputedPart(layer.mlp), norm=RecomputedNorm(layer.norm))
