"""Makes libraries take the way on fake tensors that they take on real ones. Each exception names the line that asks what kind of tensor it has."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from everybyte.trace.hooks.on_import import when_imported
from everybyte.trace.hooks.patches import replaced
from everybyte.trace.patching.generation import generation


@contextlib.contextmanager
def real_branches(device: str) -> Iterator[None]:
    """While entered, optimizers, modules and transformers treat fake tensors as they treat real ones on `device`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_optimizers())
        stack.enter_context(_moved_modules())
        stack.enter_context(_copies())
        stack.enter_context(_masks())
        stack.enter_context(generation())
        stack.enter_context(_samples())
        stack.enter_context(_experts())
        stack.enter_context(_norms())
        stack.enter_context(_losses())
        if device == "cuda":
            stack.enter_context(_kernels())
        yield


@contextlib.contextmanager
def _optimizers() -> Iterator[None]:
    """torch/optim/optimizer.py (_default_to_fused_or_foreach) and torch/utils/_foreach_utils.py (_has_foreach_support, for clip_grad_norm_) take the `foreach`
    way for plain tensors alone; on a GPU parameters are that."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    lists = (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types)
    for types in lists:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


@contextlib.contextmanager
def _moved_modules() -> Iterator[None]:
    """torch/nn/modules/module.py (_apply) gives a moved parameter new data in place, so that an optimizer that was made before still holds it. A fake parameter
    is told its new device as well."""
    before = torch.nn.Module._apply

    def applied(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        if not any(isinstance(value, FakeTensor) for value in (*self._parameters.values(), *self._buffers.values())):
            return before(self, fn, recurse)
        if recurse:
            for child in self.children():
                child._apply(fn)
        for parameter in self._parameters.values():
            for tensor in (parameter, None if parameter is None else parameter.grad):
                if tensor is not None:
                    _move(tensor, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    with replaced(torch.nn.Module, _apply=applied):
        yield


def _move(tensor: Any, fn: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        moved = fn(tensor)
    if moved is not tensor:
        tensor.data = moved
        tensor.fake_device = moved.device


@contextlib.contextmanager
def _copies() -> Iterator[None]:
    """torch/_tensor.py (__deepcopy__) makes an empty tensor, which would be fake, for the copied storage of a real one."""
    before = torch.Tensor.__deepcopy__

    def copied(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        with contextlib.nullcontext() if isinstance(self, FakeTensor) else _disable_current_modes():
            return before(self, memo)

    with replaced(torch.Tensor, __deepcopy__=copied):
        yield


@contextlib.contextmanager
def _samples() -> Iterator[None]:
    """torch/nn/init.py (_no_grad_trunc_normal_) samples until all values lie within the bounds, which fake ones never say."""
    from torch.nn import init

    before = init._no_grad_trunc_normal_
    init._no_grad_trunc_normal_ = lambda tensor, *args, **kwargs: tensor if isinstance(tensor, FakeTensor) else before(tensor, *args, **kwargs)
    try:
        yield
    finally:
        init._no_grad_trunc_normal_ = before


MULTIPLIED = (torch.float32, torch.float16)
"""What else than bf16 `grouped_mm` multiplies."""


@contextlib.contextmanager
def _experts() -> Iterator[None]:
    """torch/_meta_registrations.py (_meta_grouped_mm_common) lets `grouped_mm` multiply bf16 alone. Kernels of CPUs and GPUs multiply fp32 and fp16 as well,
    into the same output and without other memory (ATen/native/GroupedMMUtils.h: _grouped_mm_validate_inputs, _grouped_mm_fallback)."""
    from torch import _meta_registrations as metas

    before = metas._meta_grouped_mm_common

    def grouped_mm(a: torch.Tensor, b: torch.Tensor, scale_a: Any, scale_b: Any, offs: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        if a.dtype in MULTIPLIED and b.dtype in MULTIPLIED:
            return metas._create_grouped_mm_output_tensor(a, b, offs, a.dtype)
        return before(a, b, scale_a, scale_b, offs, *args, **kwargs)

    with replaced(metas, _meta_grouped_mm_common=grouped_mm):
        yield


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Losses of liger_kernel.ops ask whether the gradient of the loss is 1, and else multiply by it; it is where `backward` is called on what they return."""
    before = torch.equal

    def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.startswith("liger_kernel.ops.") or bool(before(one, other))

    with replaced(torch, equal=equal):
        yield


@contextlib.contextmanager
def _norms() -> Iterator[None]:
    """torch/_decomp/decompositions.py (native_group_norm_backward, pw_cast_for_opmath) has gradients of 32 bits alone where activations of 16 bits meet weights
    of 32; kernels make them like the tensors that they belong to (aten/src/ATen/native/group_norm.cpp)."""
    from torch._decomp import decomposition_table as table

    operation = torch.ops.aten.native_group_norm_backward.default
    before = table[operation]

    @functools.wraps(before)
    def backward(gradient: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, size: int, groups: int, wanted: list[bool]) -> tuple[Any, ...]:
        return tuple(torch.empty_like(one) if want and one is not None else None for one, want in zip((x, weight, weight), wanted, strict=True))

    table[operation] = backward
    try:
        yield
    finally:
        table[operation] = before


UNMASKED = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


@contextlib.contextmanager
def _masks() -> Iterator[None]:
    """transformers/masking_utils.py builds the whole mask of s·s when it traces; when it runs, it sees that nothing is padded or packed and builds none."""
    undo: list[Callable[[], None]] = []

    def unmask(masking: Any) -> None:
        changed = {"find_packed_sequence_indices": _not_packed(masking.find_packed_sequence_indices)}
        changed |= {name: _without_padding(getattr(masking, name)) for name in UNMASKED if hasattr(masking, name)}
        for name, function in changed.items():
            undo.append(functools.partial(setattr, masking, name, getattr(masking, name)))
            setattr(masking, name, function)

    undo.append(when_imported("transformers.masking_utils", unmask))
    try:
        yield
    finally:
        for back in undo:
            back()


def _not_packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the tensors by which it is found out."""

    def asked(position_ids: torch.Tensor) -> None:
        (function(position_ids)[:, -1] == 0).all()

    return asked


def _without_padding(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda padding_mask, *args, **kwargs: function(None, *args, **kwargs)


@contextlib.contextmanager
def _kernels() -> Iterator[None]:
    """Operations that have a kernel on CUDA and a composition of others elsewhere (native_functions.yaml: CompositeImplicitAutograd beside CUDA). A CPU build
    has no function for CUDA, so that the composition with its many tensors would run."""
    library = torch.library.Library("aten", "IMPL")

    def rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None) -> tuple[torch.Tensor, torch.Tensor]:
        rest = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
        return torch.empty_like(x), torch.empty(rest, dtype=torch.float32, device=x.device)

    def silu_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    library.impl("_fused_rms_norm", rms_norm, "CUDA")
    library.impl("silu_backward", silu_backward, "CUDA")
    try:
        yield
    finally:
        library._destroy()
