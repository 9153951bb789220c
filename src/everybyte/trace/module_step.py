"""A training step of any module: the sum of what it returns is the loss, which has the memory of a mean or a distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from everybyte.basics.errors import BadInput, did_you_mean

INPUT = "--input"
INTEGERS = (torch.int64, torch.int32, torch.bool)


def step_of_module(module: torch.nn.Module, inputs: Any, optimizer: str | None = None) -> Callable[[], None]:
    """Forward and backward of a module, and a step of an optimizer of torch.optim if one is named; gradients are freed at the end, as zero_grad does.

    `inputs` are what the module is called with: a tensor, a sequence of arguments, or a mapping of named ones. Raises BadInput for an unknown optimizer.
    """
    stepper = _optimizer(optimizer)([p for p in module.parameters() if p.requires_grad]) if optimizer else None

    def step() -> None:
        out = module(**inputs) if isinstance(inputs, dict) else module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
        loss = loss_of(out)
        del out  # a loop hands on the loss alone
        if loss.requires_grad:
            loss.backward()
            if stepper is not None:
                stepper.step()
            module.zero_grad(set_to_none=True)

    return step


def loss_of(out: Any) -> torch.Tensor:
    """The loss that a model returns, or the sum of its floating outputs. Raises BadInput where it returns none."""
    if isinstance(getattr(out, "loss", None), torch.Tensor):
        loss: torch.Tensor = out.loss
        return loss
    leaves = tree_leaves(dict(out) if hasattr(out, "keys") else out)
    sums = [leaf.sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    if not sums:
        raise BadInput("target", f"the module returns no floating tensor, but {type(out).__name__}")
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def random_input(text: str, device: str) -> torch.Tensor:
    """The tensor of `32,3,224,224` (fp32) or `8,2048:int64`. Raises BadInput."""
    shape, _, name = text.partition(":")
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        known = [known for known, value in vars(torch).items() if isinstance(value, torch.dtype)]
        raise BadInput(INPUT, f"{name!r} is no dtype of torch{did_you_mean(name, known)}")
    try:
        lengths = [int(length) for length in shape.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise BadInput(INPUT, f"{text!r} is no shape; write its lengths with commas, such as 32,3,224,224 or 8,2048:int64")
    if dtype in INTEGERS:
        return torch.zeros(lengths, dtype=dtype, device=device)
    return torch.randn(lengths, dtype=dtype, device=device)


def _optimizer(name: str) -> Callable[..., torch.optim.Optimizer]:
    """An optimizer of torch.optim by its name in any case; those that step without arguments."""
    known = {key.casefold(): value for key, value in vars(torch.optim).items() if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)}
    found = known.get(name.casefold())
    if found is None:
        raise BadInput("--optimizer", f"torch.optim has no {name!r}{did_you_mean(name.casefold(), known)}")
    return found
