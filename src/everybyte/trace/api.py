"""The door for Python: `everybyte.trace(...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import BadInput
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.trace.jobs.program import asked_of, is_job
from everybyte.trace.request import DEFAULT_GPU, TraceRequest
from everybyte.trace.results.answer import answer_of_ranks
from everybyte.trace.run import Told, run_ranks


def trace(
    target: str | Job | dict[str, Any] | Callable[[], Any],
    *,
    gpu: str | None = None,
    steps: int = 2,
    inputs: Sequence[str] = (),
    optimizer: str | None = None,
    world: int = 1,
    ranks: Sequence[int] = (0,),
    alloc_conf: str | None = None,
    timeout: float | None = None,
    told: Told | None = None,
) -> Answer:
    """What real PyTorch code would hold on a GPU. It runs on fake tensors in a process of its own; nothing is loaded, and no GPU is needed.

    `target` is what `everybyte trace` takes (`module:function`, `file.py:function`, a script, a job file), a job, or a function at the top level of a file
    that builds model and optimizer and returns a step, (module, inputs) or a module. `inputs` and `optimizer` go with a module alone
    (`["32,3,224,224"]`, `"adamw"`). `told` hears of the progress. Raises BadInput for a target that is none, TraceFailed for a fault of the program.
    """
    if isinstance(target, (Job, dict)) or (isinstance(target, str) and is_job(target)):
        asked = asked_of(target, gpu, steps)
    else:
        name = target if isinstance(target, str) else _name_of(target)
        asked = TraceRequest(target=name, gpu=gpu or DEFAULT_GPU, steps=steps, inputs=tuple(inputs), optimizer=optimizer, world=world)
    return answer_of_ranks(run_ranks(asked, ranks, told, timeout), read_alloc_conf(alloc_conf or "", "alloc_conf"))


def _name_of(function: Any) -> str:
    """`file.py:function` of a function: the process of the trace imports it from there."""
    if not inspect.isfunction(function):
        raise BadInput("target", f"is a {type(function).__name__}; a trace runs in a process of its own and needs a function that builds it there")
    source = inspect.getsourcefile(function)
    if source is None or not Path(source).is_file() or "." in function.__qualname__:
        raise BadInput("target", f"{function.__qualname__} does not stand at the top level of a file, where the process of the trace could import it")
    return f"{Path(source).resolve()}:{function.__qualname__}"
