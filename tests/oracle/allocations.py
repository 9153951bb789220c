"""The bytes that PyTorch's CPU allocator really hands out, in order: peaks with in-place gradient accumulation and all temporaries."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

WHOLE = {
    f"aten::{name}"
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "add",
        "add_",
        "mul",
        "mul_",
        "sub",
        "div",
        "div_",
        "neg",
        "pow",
        "sum",
        "mean",
        "rsqrt",
        "where",
        "clamp_",
        "tanh",
        "gelu",
        "silu",
        "relu",
        "sigmoid",
        "tanh_backward",
        "gelu_backward",
        "silu_backward",
        "sigmoid_backward",
        "threshold_backward",
        "_softmax",
        "_softmax_backward_data",
        "native_layer_norm",
        "native_layer_norm_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_chunk_cat",
    )
}
"""Operations taken as one event: what their CPU kernels use inside (packed weights, copies in a common type) is not there on a GPU."""


class Peak(NamedTuple):
    """Highest bytes during a call, and what was left after it."""

    highest: int
    left: int


@contextmanager
def _recorded() -> Iterator[Any]:
    """A profiler of memory; what earlier tests left in reference cycles is freed before, so that no collection falls into the measured part."""
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield profiler
    finally:
        gc.enable()


def peak_of(call: Callable[[], Any], start: int = 0) -> tuple[Peak, Any]:
    """The peak while `call` runs, counted from `start`, and its result."""
    with _recorded() as profiler:
        result = call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    spans = _outermost(sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() in WHOLE))
    live = highest = start
    for size in _merged(changes, spans):
        live += size
        highest = max(highest, live)
    return Peak(highest, live), result


def peaks_of_parts(*calls: Callable[[], Any]) -> list[int]:
    """The peak of each of several calls, one after the other under one profiler, above what is there when the second is done."""
    with _recorded() as profiler:
        for index, call in enumerate(calls):
            with record_function(f"part {index}"):
                call()
    events = profiler.profiler.kineto_results.events()
    parts = {e.name(): (e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name().startswith("part ")}
    ends = [parts[f"part {index}"][1] for index in range(len(calls))]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    spans = _outermost(sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() in WHOLE))
    live, base, highest = 0, 0, [0] * len(calls)
    for time, size in _timed(changes, spans):
        part = min(bisect_right(ends, time), len(calls) - 1)
        live += size
        base = live if part < 2 else base
        highest[part] = max(highest[part], live)
    return [peak - base for peak in highest]


def _outermost(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for span in spans:
        if not out or span[0] >= out[-1][1]:
            out.append(span)
    return out


def _merged(changes: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[int]:
    """Sizes in order; those inside one span as their sum."""
    return [size for _, size in _timed(changes, spans)]


def _timed(changes: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(time, size) in order; sizes inside one span as their sum."""
    starts = [span[0] for span in spans]
    found: list[tuple[int, int]] = []
    owner: tuple[int, int] | None = None
    for time, size in changes:
        index = bisect_right(starts, time) - 1
        span = spans[index] if index >= 0 and time <= spans[index][1] else None
        if span is not None and span == owner:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((time, size))
        owner = span
    return found


class Ones(torch.autograd.Function):
    """Ends a graph: its backward makes a gradient that nobody else holds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """A zero."""
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Ones."""
        return torch.ones(ctx.shape, dtype=ctx.dtype)


def block_peaks(model: torch.nn.Module, block: torch.nn.Module, ids: torch.Tensor, *, amp: bool = False) -> tuple[Peak, Peak, int]:
    """Peaks of a block's forward and backward, beside its weights and its input, with what `model` gives it for `ids`; bytes of the input."""
    caught: dict[str, Any] = {}
    hook = block.register_forward_pre_hook(lambda _, args, kwargs: caught.update(args=args, kwargs=kwargs), with_kwargs=True)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        model(input_ids=ids, use_cache=False)
    hook.remove()
    args, kwargs = list(caught["args"]), dict(caught["kwargs"])
    given = args.pop(0) if args else kwargs.pop("hidden_states")
    for counted in (False, True):
        # a leaf's cast would be kept by autocast, so the input is the result of something; the first round warms kernels up
        x = given.detach().clone().requires_grad_().clone()

        def forward(x: torch.Tensor = x) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                out = block(x, *args, **kwargs)
            return out[0] if isinstance(out, tuple) else out

        up, out = peak_of(forward)
        loss = Ones.apply(out)
        del out
        down, _ = peak_of(loss.backward, up.left - x.numel() * x.element_size())
        if not counted:
            block.zero_grad(set_to_none=True)
    return up, down, x.numel() * x.element_size()
