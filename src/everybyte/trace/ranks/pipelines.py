"""What ranks of a pipeline send one another: nothing arrives, but what is sent and received takes its memory as long as among real ranks."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from everybyte.basics.errors import EverybyteError
from everybyte.trace.hooks.patches import replaced, replaced_everywhere


class Done:
    """A collective that is done. It holds its tensors until the program waits for it (ProcessGroupNCCL's stash); comm hooks ask for its result."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def wait(self, *_: Any) -> bool:
        """It is done."""
        self.tensors = []
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True

    def get_future(self) -> Any:
        """Its tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


@contextlib.contextmanager
def transfers() -> Iterator[None]:
    """Pipeline schedules wait for what they have sent at the end of a step, and keep it until then."""
    batch, send, receive = dist.batch_isend_irecv, dist.isend, dist.irecv

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        batch(operations)
        return [Done([operation.tensor for operation in operations])]

    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if send(tensor, *args, **kwargs) is None else Done([tensor])

    def irecv(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if receive(tensor, *args, **kwargs) is None else Done([tensor])

    with replaced_everywhere(batch, batch_isend_irecv), replaced_everywhere(send, isend), replaced_everywhere(receive, irecv):
        yield


class UnknownShapes(EverybyteError):
    """A pipeline stage asks its neighbours for the shapes of its inputs, and they do not say."""


Told = Callable[[int, Any], None]
Asks = Callable[[int, int], Any]


def _nobody(stage: int, rank: int) -> Any:
    raise UnknownShapes(
        f"stage {stage} of the pipeline does not say what it sends, and the traced rank is alone: "
        "give PipelineStage input_args and output_args (and input_grads and output_grads if they are DTensors)"
    )


@contextlib.contextmanager
def pipelines(told: Told = lambda *_: None, asks: Asks = _nobody) -> Iterator[None]:
    """Stages of torch.distributed.pipelining that do not know the shapes between them run once and send what they get: `told` hears (stage, shapes of its
    outputs), and `asks` answers for a (stage, its rank) before this one. Gradients have the shapes of what they are gradients of."""
    try:
        from torch.distributed.pipelining import _utils, schedules, stage
    except ImportError:
        yield
        return
    mode = _utils.InferenceMode

    def warm_up(self: Any, stages: list[Any], has_backward: bool, *_: Any) -> None:
        asking = [one for one in stages if isinstance(one, stage.PipelineStage)]
        needs = any(mode.needs_dynamic(one._user_meta, has_backward) for one in asking)
        for one in asking:
            one._inference_mode = mode.DYNAMIC if needs else mode.STATIC

    def send(self: Any, shapes: Any, to: int) -> None:
        if to > self.stage_index:
            told(self.stage_index, shapes)

    def receive(self: Any, source: int) -> Any:
        if source > self.stage_index:
            return stage._StageBackwardMeta(backward_metas=stage._derive_grad_metas(self._stage_meta.outputs))
        return asks(source, self._resolve_peer_global_rank(source))

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(stage.PipelineStage, _send_meta=send, _recv_meta=receive))
        for value in list(vars(schedules).values()):
            if inspect.isclass(value) and "_warmup_p2p" in vars(value):
                stack.enter_context(replaced(value, _warmup_p2p=warm_up))
        yield
