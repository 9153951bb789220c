"""What goes between the program that asks for a trace and the process that runs it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from everybyte.rules.communication.communicators import Communicator

BUFFER = "buffer"
"""The category of what a module keeps beside its parameters, such as running means: a row among the weights, and no parameter of the model."""
DEFAULT_GPU = "h100-80gb"
"""What the fake device stands for where nobody says."""


GATHERED, OUTPUT, REDUCED, BUCKET = "fsdp.unsharded_parameter", "fsdp.all_gather_output", "fsdp.reduce_scatter_input", "ddp.bucket"
"""Operations by which the buffers of parallel wrappers go."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that is wanted."""

    target: str
    """`module:function`, `file.py:function`, the path of a script, or that of a job."""
    arguments: tuple[str, ...] = ()
    """Of a script."""
    job: dict[str, Any] | None = None
    """What to run instead of a program: a job in the contract's form."""
    inputs: tuple[str, ...] = ()
    """Of a target that returns a module alone: shapes such as `32,3,224,224` or `8,2048:int64`."""
    optimizer: str | None = None
    """Of a target that returns a module: a name of torch.optim; without it no optimizer steps."""
    folder: str = "."
    """Where the program's own modules are looked for."""
    steps: int = 2
    gpu: str = DEFAULT_GPU
    """A name of the catalogue."""
    world: int = 1
    """Ranks of the fake process group; 1 is none."""
    rank: int = 0
    shapes: str = ""
    """Folder where the ranks of a pipeline leave the shapes that their stages send; empty: this rank makes one."""
    until_stage: int = -1
    """The stage of this rank whose shapes alone are wanted."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Which tensors count: those on the fake GPU, or those on the CPU."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a trace is."""

    step: int
    steps: int
    phase: str
    done: int
    """Layers that this phase is done with, of `layers`, which are 0 as long as no module with layers has been called."""
    layers: int


class BirthRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A storage (trace.birth.Birth) as a row."""

    id: int
    nbytes: int
    operation: str
    module: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    stream: int
    line: str
    category: str
    born: int
    died: int | None
    died_in: str
    given: str = ""
    again: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A name for a position in the events: `step 1`, `step 2`, `end`."""

    name: str
    position: int


class Traced(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """What a trace saw. `events` are (id, bytes) when a storage is born, (id, -bytes) when it is freed."""

    births: tuple[BirthRow, ...]
    events: tuple[tuple[int, int], ...]
    marks: tuple[Mark, ...]
    operations: int
    seconds: float
    stepping: tuple[int, ...] = ()
    """Positions where an optimizer began to step."""
    late: tuple[tuple[int, int], ...] = ()
    """(position of a free, position where its memory can be had again), where another stream still uses it."""
    notes: tuple[str, ...] = ()
    """What the trace took for granted."""
    groups: tuple[Communicator, ...] = ()
    """Process groups of the rank in which something has run."""
    parameters: int = 0
    """Of the modules that were called, with the shares of other ranks."""
    trainable: int = 0
    """Those of them that want gradients."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why there is no trace. `line` is the program's own line that was running."""

    message: str
    line: str = ""
    help: str = ""
