"""Everything that decides what a training step holds, chosen by an engine from a job."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32, DType
from everybyte.basics.record import Record
from everybyte.layers.recording.replay import Recompute
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.optimizers.plan import OptimizerPlan

ANY = Batch(1, 1, 1)
"""A batch for what does not depend on it."""

GradientsLive = Literal["backward", "always", "never"]
"""backward: from their making to the end of the step; always: through forward as well (accumulation, or zeroed instead of freed);
never: each is used up at once (optimizer in backward)."""


class RecomputePlan(Record, frozen=True):
    """Which blocks drop their activations. `every` k: each k-th block is recomputed."""

    mode: Recompute = "none"
    every: int = 1
    in_flight: int | None = None
    """The kept inputs wait in host memory: at most so many are on the device in forward, none but the one in use in backward. None: all stay."""

    def of(self, index: int) -> Recompute:
        """The mode of the block with this index."""
        return self.mode if self.mode != "none" and index % self.every == 0 else "none"


class Recipe(Record, frozen=True):
    """A training step on one GPU."""

    setup: Setup
    batch: Batch
    optimizer: OptimizerPlan = msgspec.field(default_factory=OptimizerPlan)
    recompute: RecomputePlan = msgspec.field(default_factory=RecomputePlan)
    gradient: DType | None = None
    """Type of the gradients; None: that of each parameter."""
    stream: DType = BF16
    """Type of the first hidden states."""
    gradients_live: GradientsLive = "backward"
    gradients_between: bool = False
    """Gradients stay allocated between two steps."""
    batch_bytes_per_token: int = 24
    """ids, labels and mask as int64."""
    graph_outlives: bool = False
    """The loop's variables hold the graph of a micro-batch until the next one's forward has returned, and with it what lingers."""
    handles: int = 2
    """cuBLAS handles: forward's thread and autograd's."""
    empties_cache: bool = False
    """The loop calls torch.cuda.empty_cache() between steps."""
    images: int = 0
    """Items that go through a tower in a micro-batch."""

    @property
    def timeless(self) -> Recipe:
        """The same recipe for any batch: what follows from it alone need not be worked out again."""
        return replace(self, batch=ANY, images=0)

    @property
    def at_rest(self) -> Recipe:
        """What weights, gradients and states follow from."""
        return replace(self, setup=replace(self.setup, single=False, past_window=False), batch=ANY, images=0, recompute=RecomputePlan())

    @property
    def stepped(self) -> DType | None:
        """Type of the tensors that the optimizer steps; None: the weights' own."""
        return self.optimizer.master


PRECISIONS: dict[str, tuple[DType, DType | None, DType | None]] = {
    "fp32": (FP32, None, None),
    "bf16": (BF16, None, None),
    "bf16-mixed": (FP32, BF16, None),
    "bf16-master": (BF16, None, FP32),
}
"""precision -> (weights, autocast type, master copy); fp16 forms are the same with fp16."""
