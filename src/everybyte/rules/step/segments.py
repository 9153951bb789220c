"""A network as a row of segments: runs of equal layers, each worked out for one setup."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.layers.network import Network, write
from everybyte.layers.recording.replay import Recompute, Tally
from everybyte.layers.recording.setup import Setup, SharedTable
from everybyte.layers.recording.size import TOKENS
from everybyte.models.count import Part, parts
from everybyte.rules.step.recipe import GradientsLive, RecomputePlan


class Segment(Record, frozen=True):
    """`copies` equal layers in a row."""

    label: str
    copies: int
    tally: Tally
    part: str = ""
    """The piece of the network that it is, or is some copies of."""
    tower: str = ""
    keeps_gradients: bool = True
    """Its weights' gradients stay until the step; else each is used up at once, or counted elsewhere."""
    offloaded: bool = False
    """What it keeps waits in host memory."""

    def copy(self, index: int) -> str:
        """The label of one of the copies."""
        name, dot, numbers = self.label.rpartition(".")
        return f"{name}.{int(numbers.split('-')[0]) + index}" if dot and self.copies > 1 else self.label


class Flow(NamedTuple):
    """The hidden states between two layers."""

    dtype: DType
    grad: bool
    """Whether they need a gradient: not before the first trained weight."""


@lru_cache(maxsize=16384)
def segments(network: Network, setup: Setup, recompute: RecomputePlan, stream: DType, gradients: GradientsLive) -> tuple[Segment, ...]:
    """The network as a row of segments, each worked out for this setup."""
    found: list[Segment] = []
    flow, tower = Flow(stream, grad=False), None
    # a stage of a pipeline that is sent its hidden states sends their gradient back
    is_sent = network.stem is None and not network.tokens
    trains = setup.grad
    shared = replace(setup, shared_table=_summed(network, setup, stream)) if network.tied and network.stem is not None else setup
    for part in parts(network):
        is_batch = part.tower != tower and reads_images(network, part)
        if part.tower != tower:
            flow, tower = Flow(stream, grad=setup.grad and not part.tower and is_sent), part.tower
        is_head = part.label == "head"
        # the gradient of a tied table is the head's: it waits for that of the embedding, and cannot be used up or accumulated before
        keeps = gradients == "backward" or (network.tied and is_head)
        is_block = part.label.rpartition(".")[2][:1].isdigit()
        for label, count, mode in _modes(part.label, part.copies, recompute if is_block else RecomputePlan()):
            flow = _append(
                found,
                part.layer,
                shared if part.label == "embed" else setup.of_blocks(part.path),
                part.dims,
                flow,
                (label, count),
                mode,
                keeps,
                is_last=is_head and trains,
                is_batch=is_batch,
                offloads=recompute.in_flight is not None,
                part=part,
            )
        if part.label == "embed" and setup.input_grads:
            flow = flow._replace(grad=trains)
    return tuple(found)


def _summed(network: Network, setup: Setup, stream: DType) -> SharedTable:
    """How the two gradients of a tied table are added: the head's is there first."""
    for part in parts(network):
        if part.label == "head":
            gradients = write(part.layer, setup, part.dims, stream, is_last=setup.grad).tally.gradients
            return "new" if any(gradient.view for gradient in gradients) else "in place"
    return ""


@lru_cache(maxsize=16384)
def ends_apart(network: Network, setup: Setup, recompute: RecomputePlan, stream: DType, gradients: GradientsLive) -> tuple[Segment, ...]:
    """The same row with the first and the last layer of every run as segments of their own."""
    found: list[Segment] = []
    for segment in segments(network, setup, recompute, stream, gradients):
        found += _ends(segment) if segment.copies > 1 else [segment]
    return tuple(found)


def _ends(run: Segment) -> list[Segment]:
    inner = run.copies - 2
    name, _, numbers = run.label.rpartition(".")
    first = int(numbers.split("-")[0])
    middle = [replace(run, label=f"{name}.{first + 1}-{first + inner}" if inner > 1 else f"{name}.{first + 1}", copies=inner)] if inner else []
    return [replace(run, label=run.copy(0), copies=1), *middle, replace(run, label=run.copy(run.copies - 1), copies=1)]


def reads_images(network: Network, part: Part) -> bool:
    """Whether the first part of a network, or of a tower, is given images of a batch."""
    if part.tower:
        return part.dims != (TOKENS,) and part.label.endswith(".stem")
    return bool(network.tokens)


def _modes(label: str, copies: int, recompute: RecomputePlan) -> Iterator[tuple[str, int, Recompute]]:
    """A run split where the way of recomputing changes."""
    if recompute.mode == "none" or recompute.every == 1 or copies == 1:
        yield label, copies, recompute.mode
        return
    name, _, first = label.rpartition(".")
    start = int(first.split("-")[0])
    for index in range(copies):
        yield f"{name}.{start + index}", 1, recompute.of(start + index)


def _append(
    found: list[Segment],
    layer: object,
    setup: Setup,
    dims: tuple,  # type: ignore[type-arg]
    flow: Flow,
    run: tuple[str, int],
    mode: Recompute,
    keeps: bool,
    *,
    is_last: bool,
    is_batch: bool,
    offloads: bool,
    part: Part,
) -> Flow:
    """Adds a run; where the first layer changes the type of the hidden states or whether they need a gradient, the others start from that."""
    label, left = run
    name, _, numbers = label.rpartition(".")
    first = int(numbers.split("-")[0]) if numbers[:1].isdigit() else None
    while left:
        written = write(layer, setup, dims, flow.dtype, mode, keeps, is_last, flow.grad, is_batch)
        after = Flow(written.out_dtype, written.out_grad)
        count = left if after == flow and not is_batch else 1
        if first is not None:
            label = f"{name}.{first}" if count == 1 else f"{name}.{first}-{first + count - 1}"
            first += count
        found.append(Segment(label, count, written.tally, part.label, part.tower, keeps, offloads and mode != "none"))
        flow, left, is_batch = after, left - count, False
    return flow
