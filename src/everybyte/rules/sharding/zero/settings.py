"""What a DeepSpeed configuration decides about memory, by DeepSpeed's own names (deepspeed/runtime/zero/config.py, offload_config.py)."""

from __future__ import annotations

import sys
from typing import Literal

from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.record import Record

Place = Literal["none", "cpu", "nvme"]
"""Where something is kept between its uses: none is the GPU."""


class ZeroSettings(Record, frozen=True):
    """One rank's view of a ZeRO run. Sizes are in numbers (elements), not bytes. The defaults are DeepSpeed's own."""

    stage: Literal[1, 2, 3]
    degree: int
    """Ranks that share each partitioned tensor."""
    reduce_bucket: int = 500_000_000
    """`reduce_bucket_size`."""
    overlap: bool = False
    """`overlap_comm`: stages 1 and 2 then have two buckets."""
    contiguous: bool = True
    """`contiguous_gradients`: gradients are copied into the bucket as they are made."""
    prefetch: int = 50_000_000
    """`stage3_prefetch_bucket_size`."""
    persistence: int = 100_000
    """`stage3_param_persistence_threshold`: smaller parameters stay whole on every rank."""
    model_persistence: int = sys.maxsize
    """`stage3_model_persistence_threshold`: at most so many numbers stay whole."""
    live: int = 1_000_000_000
    """`stage3_max_live_parameters`: no prefetching beyond it."""
    reuse: int = 1_000_000_000
    """`stage3_max_reuse_distance`: what is used again within so many numbers is not freed."""
    sub_group: int = 1_000_000_000
    """`sub_group_size`: stage 3 steps so many numbers at a time."""
    hpz: int = 1
    """`zero_hpz_partition_size`: ranks that share a second copy of the weights for backward."""
    round_robin: bool = False
    """`round_robin_gradients`."""
    accumulates: bool = False
    """There are several micro-batches to a step."""
    accumulation: DType | None = None
    """`grad_accum_dtype`; None: that of the weights."""
    master: DType = FP32
    """Type of the partition that the optimizer steps, and of its gradient."""
    checks_overflow: bool = True
    """`check_grad_overflow`: stages 1 and 2 look for infinite gradients before the step; stage 3 does with fp16 alone."""
    bucket_before_loss: bool = False
    """Backward makes the bucket before it starts; since 0.18.3 the first gradient does (pull request 7665)."""
    optimizer: Place = "none"
    """`offload_optimizer.device`."""
    ratio: float = 1.0
    """`offload_optimizer.ratio`: share of the sub-groups whose states are off the GPU (stage 3)."""
    params: Place = "none"
    """`offload_param.device` (stage 3)."""
    pinned: bool = True
    """`pin_memory`."""
    param_buffers: int = 5
    """`offload_param.buffer_count`."""
    param_buffer: int = 100_000_000
    """`offload_param.buffer_size`."""
    optimizer_buffers: int = 4
    """`offload_optimizer.buffer_count`."""
    max_in_cpu: int = 1_000_000_000
    """`offload_param.max_in_cpu`: with nvme, so many numbers stay in host memory."""

    @property
    def buckets(self) -> int:
        """Reduction buckets of stages 1 and 2."""
        return (2 if self.overlap else 1) if self.contiguous else 0

    @property
    def sharded_gradients(self) -> bool:
        """Gradients are shared among the ranks while backward runs. Stage 1 does that too if it overlaps, but not before the last micro-batch."""
        return self.stage > 1 or (self.overlap and self.contiguous and not self.accumulates)
