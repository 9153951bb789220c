"""Finds the program that a target names, and makes it a function that runs its steps under a clock."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.trace.module_step import random_input, step_of_module
from everybyte.trace.patching.libraries import IMAGES, TARGET, is_library, model_named
from everybyte.trace.recording.clock import Clock, EnoughSteps, run_steps
from everybyte.trace.request import TraceRequest

Step = Callable[[], Any]
Run = Callable[[Clock], None]


def program_of(asked: TraceRequest) -> Run:
    """What runs `module:function`, `file.py:function`, a library's model, the script `file.py`, or a job. Raises BadInput where there is none."""
    if asked.job is not None:
        from everybyte.trace.jobs.program import run_of  # most targets need neither the estimate nor transformers

        return run_of(asked.job)
    place, colon, name = asked.target.rpartition(":")
    path = Path(asked.target)
    if is_library(place) or (not colon and path.suffix != ".py"):
        named = model_named(asked.target)
        return lambda clock: run_steps(_step_of(named.build, asked, named.images), clock)
    if colon:
        return lambda clock: run_steps(_step_of(_found(_module(place), name), asked, IMAGES), clock)
    if not path.is_file():
        raise BadInput(TARGET, f"there is no file {asked.target!r}")
    return lambda clock: _run_script(path, asked.arguments, clock)


def _run_script(path: Path, arguments: tuple[str, ...], clock: Clock) -> None:
    """Runs a script as `python script.py arguments`; a step ends when its optimizer has stepped. It is ended after the last one."""
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    clock.recorder.after_step = clock.stepped
    clock.begin()
    with contextlib.suppress(EnoughSteps, SystemExit):
        runpy.run_path(str(path), run_name="__main__")
        clock.over()


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


def _step_of(build: Callable[[], Any], asked: TraceRequest, usual: str) -> Step:
    """What is built: a step; (module, inputs); or a module, whose inputs were named beside the target, such as `usual`."""
    built = build()
    if isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module):
        return step_of_module(*built, asked.optimizer)
    if isinstance(built, torch.nn.Module):
        if not asked.inputs:
            takes = ", ".join(name for name, given in inspect.signature(built.forward).parameters.items() if given.default is given.empty)
            raise BadInput(TARGET, f"{asked.target} is a module that takes {takes}: say what goes into it (--input {usual}), or return (module, inputs)")
        return step_of_module(built.to(asked.device), tuple(random_input(text, asked.device) for text in asked.inputs), asked.optimizer)
    if callable(built):
        step: Step = built
        return step
    what = f"a {type(built).__name__}"
    raise BadInput(TARGET, f"{asked.target} returns {what}; it must build model and optimizer and return a function that runs one step, or (module, inputs)")
