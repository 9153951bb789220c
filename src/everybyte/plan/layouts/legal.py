"""Every layout that is legal for a model on a cluster, and what the others break, counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from everybyte.plan.layouts.asked import Asked
from everybyte.plan.layouts.layout import Layout, Policy
from everybyte.plan.layouts.policies import policies
from everybyte.plan.layouts.statics import static_bytes

LEAST_CHUNK = 2048
"""Tokens of a sequence that each context-parallel rank has at least: below it a ring of attention waits for its messages."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
MOST_CP = 64
FP8 = "fp8"
FINEST = 12
"""Numbers of virtual stages tried for one mesh: those that make the largest chunk smaller."""


class Axes(NamedTuple):
    """A mesh before micro-batches and the rest are chosen."""

    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    dp: int


class Space(NamedTuple):
    """Legal layouts in a fixed order, and meshes that are not legal by reason."""

    layouts: list[Layout]
    illegal: Counter[str]
    too_big: int
    """Legal layouts that are left out: what lives between two steps alone exceeds the card."""


def space(asked: Asked, *, offload: bool = False) -> Space:
    """All legal layouts, with `offload` those that keep states in host memory. The order is that of the axes, smallest first, so that equal questions have
    equal answers."""
    illegal: Counter[str] = Counter()
    layouts: list[Layout] = []
    too_big = 0
    for axes in _meshes(asked, illegal):
        states = [state for state in _states(asked, axes) if (state.offload != "none") == offload]
        lean = [state for state in states if _is_lean(asked, axes, state)]
        works = list(_of_mesh(asked, axes, illegal))
        too_big += len(works) * (len(states) - len(lean))
        layouts += [_layout(asked, axes, work, state) for work in works for state in lean]
    return Space(layouts, illegal, too_big)


def _is_lean(asked: Asked, axes: Axes, state: _State) -> bool:
    """Whether the states of a mesh leave room on the card. Only for Megatron's way of keeping them, which the bound is made for."""
    if asked.family_name != "megatron" or state.offload != "none":
        return True
    train = asked.job.train
    weight = 1 if FP8 in (state.precision, train.precision if train is not None else None) else 2
    return static_bytes(asked.shape, Layout(gpus=asked.gpus, **axes._asdict(), **state._asdict()), weight) <= asked.capacity


def _meshes(asked: Asked, illegal: Counter[str]) -> Iterator[Axes]:
    for tp in _sizes(asked, "tp", divisors(asked.gpus)):
        if (why := _tp_fault(asked, tp)) is not None:
            illegal[why] += 1
            continue
        for pp in _sizes(asked, "pp", divisors(asked.gpus // tp)):
            if pp > asked.layers:
                illegal["more pipeline stages than layers"] += 1
                continue
            yield from _with_sequence(asked, tp, pp, illegal)


def _with_sequence(asked: Asked, tp: int, pp: int, illegal: Counter[str]) -> Iterator[Axes]:
    left = asked.gpus // (tp * pp)
    for cp in _sizes(asked, "cp", [size for size in divisors(left) if size <= MOST_CP]):
        dp = left // cp
        why = _length_fault(asked, tp, cp) or _batch_fault(asked, dp)
        if why is not None:
            illegal[why] += 1
        elif asked.keeps("dp", dp):
            yield from _with_experts(asked, Axes(tp, cp, pp, 1, 1, dp), illegal)


def _with_experts(asked: Asked, axes: Axes, illegal: Counter[str]) -> Iterator[Axes]:
    experts = asked.widths.experts
    if not experts:
        yield axes
        return
    ranks = axes.tp * axes.cp * axes.dp
    for ep in _sizes(asked, "ep", divisors(experts)):
        for etp in _sizes(asked, "etp", sorted({1, axes.tp})):
            if ranks % (ep * etp):
                illegal["ep × etp does not divide the ranks of a pipeline stage"] += 1
            elif any(width % etp for width in asked.widths.expert_ffn):
                illegal["the experts' width is not divisible by etp"] += 1
            else:
                yield axes._replace(ep=ep, etp=etp)


def _sizes(asked: Asked, axis: str, sizes: list[int]) -> list[int]:
    """The sizes of an axis that the framework has and that nobody ruled out."""
    if axis not in asked.family.axes:
        if axis == "etp":  # experts are whole, or divided as other layers where they are not spread
            return [size for size in sizes if size == 1]
        return [1] if asked.keeps(axis, 1) else []
    return [size for size in sizes if asked.keeps(axis, size)]


def _tp_fault(asked: Asked, tp: int) -> str | None:
    widths = asked.widths
    if tp > asked.node and not any(key == "tp" for key, _ in asked.fixed):
        return "tp is larger than the GPUs that fast links join"
    if any(heads % tp for heads, _ in widths.heads):
        return "the attention heads are not divisible by tp"
    if any(kv % tp and tp % kv for _, kv in widths.heads):
        return "the KV heads are neither divided nor replicated evenly by tp"
    if any(width % tp for width in widths.ffn):
        return "the feed-forward width is not divisible by tp"
    return None


def _length_fault(asked: Asked, tp: int, cp: int) -> str | None:
    if cp == 1:
        return "the sequence is not divisible by tp (sequence parallel)" if asked.seq_len % tp else None
    if asked.seq_len % (2 * cp):
        return "the sequence is not divisible by 2·cp"
    if asked.seq_len // cp < LEAST_CHUNK and not any(key == "cp" for key, _ in asked.fixed):
        return f"fewer than {LEAST_CHUNK:,} tokens of a sequence on each context-parallel rank"
    return "the tokens of a context-parallel rank are not divisible by tp (sequence parallel)" if asked.seq_len // cp % tp else None


def _batch_fault(asked: Asked, dp: int) -> str | None:
    return "the sequences of a step are not divisible by dp" if asked.global_batch % dp else None


class _Work(NamedTuple):
    """How a rank goes through its batch."""

    micro_batch: int
    grad_accum: int
    virtual: int
    recompute: Policy


def _of_mesh(asked: Asked, axes: Axes, illegal: Counter[str]) -> Iterator[_Work]:
    """Micro-batch, virtual stages and recomputation that are legal on a mesh."""
    per_rank = asked.global_batch // axes.dp
    for micro_batch in MICRO_BATCHES:
        if per_rank % micro_batch or not asked.keeps("micro_batch", micro_batch):
            continue
        accum = per_rank // micro_batch
        if not asked.keeps("grad_accum", accum):
            continue
        if axes.pp > 1 and accum < axes.pp and asked.family_name == "torchtitan":
            illegal["fewer micro-batches than pipeline stages"] += 1
            continue
        for virtual in _virtual(asked, axes.pp, accum):
            for policy in _policies(asked, axes.pp, virtual):
                yield _Work(micro_batch, accum, virtual, policy)


class _State(NamedTuple):
    """How weights, gradients and moments are kept."""

    sharding: str
    offload: str
    precision: str
    grads: str
    moments: str


def _layout(asked: Asked, axes: Axes, work: _Work, state: _State) -> Layout:
    return Layout(gpus=asked.gpus, **axes._asdict(), **work._asdict(), **state._asdict())


def _policies(asked: Asked, pp: int, virtual: int) -> list[Policy]:
    layers = -(-asked.layers // (pp * virtual))
    return [policy for policy in policies(asked.family, asked.shape, layers) if asked.keeps("recompute", policy.label)]


def _virtual(asked: Asked, pp: int, accum: int) -> list[int]:
    """1, and numbers of chunks with which the largest chunk gets smaller."""
    sizes = [1]
    if pp > 1 and accum % pp == 0:
        largest = -(-asked.layers // pp)
        for virtual in range(2, largest + 1):
            chunk = -(-asked.layers // (pp * virtual))
            if chunk < largest and len(sizes) <= FINEST and pp * virtual <= asked.layers:
                sizes.append(virtual)
                largest = chunk
    return [virtual for virtual in sizes if asked.keeps("virtual", virtual)]


def _states(asked: Asked, axes: Axes) -> Iterator[_State]:
    train, family = asked.job.train, asked.family
    assert train is not None
    frozen = train.adapter is not None
    grads = ("",) if frozen or (train.dtypes is not None and train.dtypes.grads is not None) else family.grads
    moments = ("",) if frozen or (train.optimizer is not None and train.optimizer.state_dtype is not None) else family.moments
    sharded = axes.dp * axes.cp > 1
    shardings = family.sharding if sharded else _alone(asked)
    for sharding in shardings:
        if sharding == "hsdp" and axes.tp * axes.cp * axes.dp <= asked.node:
            continue
        for offload, precision, grad, moment in product(_offloads(asked, sharding), _precisions(asked), grads, moments):
            state = _State(sharding, offload, precision, grad, moment)
            if all(asked.keeps(name, value) for name, value in state._asdict().items() if value):
                yield state


def _precisions(asked: Asked) -> tuple[str, ...]:
    """What the products run in: as the job says; where it says nothing, what the framework has and the card is quicker with."""
    train = asked.job.train
    assert train is not None
    if train.precision is not None or train.adapter is not None:
        return ("",)
    card = asked.card
    has_fp8 = card is not None and (card.fp8_tflops or 0) > (card.bf16_tflops or card.fp16_tflops or 0)
    found = tuple(word for word in asked.family.precision if word != FP8 or has_fp8)
    return found if len(found) > 1 or asked.keeps_any("precision") else ("",)


def _alone(asked: Asked) -> tuple[str, ...]:
    """Nothing is shared on one data-parallel rank; DeepSpeed has its stages there too, torchtitan and Megatron keep their only way."""
    if asked.family_name == "trainer":
        return ("none",)
    return asked.family.sharding if asked.family_name == "deepspeed" else asked.family.sharding[:1]


def _offloads(asked: Asked, sharding: str) -> tuple[str, ...]:
    """What can wait on the host under a kind of sharding: weights only where they are sharded."""
    whole = sharding in ("zero1", "zero2", "ddp", "none")
    return tuple(word for word in asked.family.offload if not (whole and word == "params"))


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
