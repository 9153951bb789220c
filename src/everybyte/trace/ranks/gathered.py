"""Says which storages are the buffers of FSDP2 and DistributedDataParallel: nothing in the operation that makes them tells."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param
from torch.nn.parallel import distributed as ddp

from everybyte.trace.hooks.patches import replaced, replaced_everywhere
from everybyte.trace.recording.record import Recorder
from everybyte.trace.request import BUCKET, GATHERED, OUTPUT, REDUCED


@contextlib.contextmanager
def buffers_of_wrappers(recorder: Recorder) -> Iterator[None]:
    """While entered, gathered parameters, the buffers that they are copied out of, gradients on their way, and DDP's buckets get names of their own."""
    parameter = _fsdp_param.FSDPParam
    gather, outputs, reduce = _fsdp_collectives.foreach_all_gather, parameter.init_all_gather_outputs, _fsdp_collectives.foreach_reduce
    buckets, rebuild = ddp.DistributedDataParallel._ddp_init_helper, dist.Reducer._rebuild_buckets

    def name(tensor: torch.Tensor, operation: str, category: str, module: str = "") -> None:
        for birth in recorder.births_of(tensor):
            birth.operation, birth.category, birth.module = operation, category, module or birth.module

    def foreach_all_gather(*args: Any, **kwargs: Any) -> Any:
        result = gather(*args, **kwargs)
        if result is not None:
            name(result.all_gather_output, OUTPUT, "parameter")
        return result

    def init_all_gather_outputs(self: Any, *args: Any, **kwargs: Any) -> None:
        outputs(self, *args, **kwargs)
        for tensor in self.all_gather_outputs:
            name(tensor, GATHERED, "parameter", f"FSDP.{self._param_fqn or ''}".rpartition(".")[0])

    def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
        result = reduce(*args, **kwargs)
        name(result[0], REDUCED, "comm_buffer")
        return result

    def making_buckets(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            first = len(recorder.births)
            result = make(*args, **kwargs)
            for birth in recorder.births[first:]:
                if birth.died is None:
                    birth.operation, birth.category = BUCKET, "comm_buffer"
            return result

        return made

    with (
        replaced_everywhere(gather, foreach_all_gather),
        replaced_everywhere(reduce, foreach_reduce),
        replaced(parameter, init_all_gather_outputs=init_all_gather_outputs),
        replaced(ddp.DistributedDataParallel, _ddp_init_helper=making_buckets(buckets)),
        replaced(dist.Reducer, _rebuild_buckets=making_buckets(rebuild)),
    ):
        yield
