"""Finds the program that a target names, and makes it a function that runs its steps under a clock."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.trace.asked import Asked
from everybyte.trace.clock import Clock, EnoughSteps

Step = Callable[[], Any]
Run = Callable[[Clock], None]
TARGET = "target"


def program_of(asked: Asked) -> Run:
    """What runs `module:function`, `file.py:function`, or the script `file.py`. Raises BadInput where there is none."""
    place, colon, name = asked.target.rpartition(":")
    if colon:
        return lambda clock: _run_steps(_step_of(_found(_module(place), name), asked.target), clock)
    path = Path(asked.target)
    if path.suffix != ".py":
        raise BadInput(TARGET, f"{asked.target!r} is neither module:function nor a script that ends in .py")
    if not path.is_file():
        raise BadInput(TARGET, f"there is no file {asked.target!r}")
    return lambda clock: _run_script(path, asked.arguments, clock)


def _run_steps(step: Step, clock: Clock) -> None:
    for _ in range(clock.steps):
        clock.begin()
        step()


def _run_script(path: Path, arguments: tuple[str, ...], clock: Clock) -> None:
    """Runs a script as `python script.py arguments`; a step ends when its optimizer has stepped. It is ended after the last one."""
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    clock.recorder.after_step = clock.stepped
    clock.begin()
    with contextlib.suppress(EnoughSteps, SystemExit):
        runpy.run_path(str(path), run_name="__main__")


def _module(place: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            raise BadInput(TARGET, f"there is no module {place!r} here; a file is named as path/to/file.py:function") from None
    path = Path(place).resolve()
    if not path.is_file():
        raise BadInput(TARGET, f"there is no file {place!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _found(module: ModuleType, name: str) -> Callable[[], Any]:
    function: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(function):
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise BadInput(TARGET, f"{module.__name__} has no function {name!r}{did_you_mean(name, known)}")
    return function


def _step_of(build: Callable[[], Any], target: str) -> Step:
    """What the function returns: a step, or (module, inputs) for a forward and backward pass of a module."""
    built = build()
    if isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module):
        module, inputs = built
        return lambda: _pass(module, inputs)
    if callable(built) and not isinstance(built, torch.nn.Module):
        step: Step = built
        return step
    what = f"a {type(built).__name__}"
    raise BadInput(TARGET, f"{target} returns {what}; it must build model and optimizer and return a function that runs one step, or (module, inputs)")


def _pass(module: torch.nn.Module, inputs: Any) -> None:
    """A forward pass and, where something trains, a backward pass; the gradients are freed as between steps."""
    out = module(**inputs) if isinstance(inputs, dict) else module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
    loss = _sum(out)
    if loss.requires_grad:
        loss.backward()
        module.zero_grad(set_to_none=True)


def _sum(out: Any) -> torch.Tensor:
    from torch.utils._pytree import tree_leaves

    if getattr(out, "loss", None) is not None:
        return out.loss
    tensors = [value for value in tree_leaves(dict(out) if hasattr(out, "keys") else out) if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return torch.stack([value.sum() for value in tensors]).sum()
