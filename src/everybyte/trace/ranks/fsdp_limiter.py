"""Hears from FullyShardedDataParallel which streams use what it frees, and what its limiter waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import _common_utils, _limiter_utils

from everybyte.trace.hooks.patches import replaced, replaced_everywhere
from everybyte.trace.recording.record import Recorder


@contextlib.contextmanager
def limited_frees(recorder: Recorder) -> Iterator[None]:
    """While entered, the recorder knows how far FSDP1 lets the program run ahead of the GPU."""
    queue = _limiter_utils._FreeEventQueue
    put, take = queue.enqueue, queue.dequeue_if_needed

    def used(tensor: torch.Tensor, stream: Any) -> None:
        for birth in recorder.births_of(tensor):
            if birth.stream != stream.stream_id:
                recorder.behind.uses(birth.id, len(recorder.events))

    def enqueue(self: Any, event: Any) -> None:
        event.position = len(recorder.events)
        put(self, event)

    def dequeue(self: Any) -> Any:
        event = take(self)
        if event is not None:
            recorder.behind.waits(len(recorder.events), event.position)
        return event

    with replaced_everywhere(_common_utils._no_dispatch_record_stream, used), replaced(queue, enqueue=enqueue, dequeue_if_needed=dequeue):
        yield
