"""The tape on which a layer writes its forward pass.

A tape knows values (tensors with a storage), parameters and steps. Each step says what it makes, what autograd keeps of it and which
gradients its backward makes; `replay` turns that into bytes over time. Rules of single operations are in `ops`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.layers.recording.setup import Setup, SharedTable
from everybyte.layers.recording.size import ZERO, Dims, Size, elements

Role = Literal["activation", "temporary", "autograd_detail", "gradient"]
"""What a storage is for the ledger: made by forward, a kernel's scratch, a gradient on its way, the gradient of a weight."""


class Storage(msgspec.Struct, eq=False):
    """Memory that one or several values share."""

    size: Size
    place: str
    """Module path of the step that made it."""
    what: str
    """The operation that made it."""
    dims: Dims
    dtype: DType
    persistent: bool = False
    """Lives outside the step (parameters, buffers, ids): never counted by a replay."""
    cached: bool = False
    """Kept to the end of forward by its maker (a weight that autocast cast, positions that all layers share)."""
    role: Role = "activation"
    head_major: bool = False
    """Heads lie one after another (b, a, s, d), not side by side in every token (b, s, a, d)."""
    lingers: bool = False
    """Held by the autograd graph itself, or by a variable that holds the graph: backward does not free it."""
    outside: bool = False
    """Persistent for this tape, but made in this step by another part of the network (encoder states that cross-attention reads): counted
    there; its gradient is on its way, not a weight's."""

    shared_table: SharedTable = ""
    """Of a weight whose gradient is added to one that is counted elsewhere: as in Setup."""
    view: bool = False
    """A gradient that comes as a view: autograd keeps the view's base beside it and adds no other gradient to it in place."""
    kept_before: bool = False
    """What the layer is given, kept for backward by the layer that made it: counted there, unless it is recomputed there."""

    @property
    def weight(self) -> bool:
        """Whether a gradient that arrives here stays for the optimizer."""
        return self.persistent and not self.outside


class Value(msgspec.Struct, eq=False):
    """A tensor: a view of a storage. Views of one value share its gradient (`root`)."""

    storage: Storage
    dims: Dims
    dtype: DType
    grad: bool
    root: Value | None = None

    @property
    def source(self) -> Value:
        """The value whose gradient this view's gradient is."""
        return self if self.root is None else self.root


class Parameter(Record, frozen=True):
    """A weight of the network. `count` equal tensors of these dims stand behind it (experts that are separate modules)."""

    name: str
    dims: Dims
    dtype: DType
    trainable: bool
    count: int = 1
    packed: bool = False
    adapter: bool = False
    buffer: bool = False
    tied: bool = False
    """The same memory as another parameter: counted there."""
    share: tuple[int, int] = (1, 1)
    """(used, all): how many of its equal parts one token uses (top_k of E experts)."""

    @property
    def numel(self) -> int:
        """Number of elements of all `count` tensors."""
        return elements(self.dims)[0] * self.count


class Made(Record, frozen=True):
    """A gradient that a backward step makes for `to`. `size` None passes the incoming gradient on without a copy; `into` writes it over
    a tensor that the step kept."""

    to: Value
    size: Size | None
    into: Storage | None = None
    view: bool = False
    """As in Storage."""
    late: bool = False
    """Summed or cast from a product of the common shape and type (the step's back_scratch) when the kernel has returned
    (torch/csrc/autograd/engine.cpp validate_outputs)."""


Scratch = Size | tuple[Size, ...]
"""What a kernel makes for itself: one tensor, or several."""


class Step(msgspec.Struct, eq=False):
    """One operation: what it makes, what it keeps, what its backward makes."""

    what: str
    place: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Storage, ...] = ()
    scratch: Scratch = ZERO
    made: tuple[Made, ...] = ()
    back_scratch: Scratch = ZERO
    ends: bool = False
    """Only marks the end of values that Python still holds; makes nothing."""
    piecewise: bool = False
    """Runs part by part: in backward each part of the incoming gradient is freed when its part of the new one is there."""


class Region(msgspec.Struct, eq=False):
    """Steps `first` to `last` (exclusive) of a tape that keep their inputs alone: backward runs them again."""

    first: int
    last: int
    until: int
    """The step before whose backward they run again: the last of them, or, where their result is thrown away too, a later one."""
    discards: bool
    """The result is freed as soon as forward has used it, and made again with the rest (Megatron-LM's CheckpointWithoutOutput)."""


class Cache(Record, frozen=True):
    """What a layer stores of the past for each sequence. `dims` without the batch are fixed per sequence; kind is `kv` or `state`."""

    kind: str
    name: str
    place: str
    dims: Dims
    dtype: DType | None
    """None: the type that the engine chooses for its cache."""
    window: int = 0
    """Only this many tokens back are ever read (sliding-window attention); 0: all of them."""
    every: int = 1
    """One entry stands for this many tokens (DeepSeek-V4's compressed keys)."""


class Tape(msgspec.Struct, eq=False):
    """Records one forward pass of one layer."""

    setup: Setup
    steps: list[Step] = msgspec.field(default_factory=list)
    parameters: list[Parameter] = msgspec.field(default_factory=list)
    caches: list[Cache] = msgspec.field(default_factory=list)
    pinned: list[Storage] = msgspec.field(default_factory=list)
    """Storages that the caller holds through backward."""
    shared: list[Storage] = msgspec.field(default_factory=list)
    """Storages that other layers use too: alive while this one runs, and while it is recomputed and goes back."""
    regions: list[Region] = msgspec.field(default_factory=list)
    stored: list[Storage] = msgspec.field(default_factory=list)
    """Results that selective recomputing keeps beside the layer's input."""
    casts: dict[int, Value] = msgspec.field(default_factory=dict)
    weights: dict[str, Value] = msgspec.field(default_factory=dict)
    path: str = ""
    silent: bool = False
    """Set by `silence`."""
    borrows: bool = False
    """Set by `borrowed`."""
    _held: list[list[Value]] = msgspec.field(default_factory=lambda: [[]])

    # -- places ---------------------------------------------------------------------------------------------------------------
    @contextmanager
    def scope(self, name: str, *held: Value) -> Iterator[None]:
        """Enters a module. `held` values stay alive until it returns, as the caller's local variables do."""
        outer = self.path
        self.path = f"{outer}.{name}" if outer and name else outer or name
        self._held.append(list(held))
        yield
        ended = self._held.pop()
        if ended:
            self.steps.append(Step("return", self.path, tuple(ended), (), ends=True))
        self.path = outer

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Steps whose results reach no loss, or that run under torch.no_grad: nothing is kept for their backward."""
        outer, self.silent = self.silent, True
        yield
        self.silent = outer

    @contextmanager
    def recomputed(self, wanted: bool = True, *, discards: bool = False) -> Iterator[Region]:
        """Steps that backward runs again, if `wanted`. With `discards` their result is thrown away as well: `restored` says before what it is there again."""
        region = Region(len(self.steps), 0, 0, discards)
        yield region
        region.last = len(self.steps)
        region.until = region.last - 1
        if wanted:
            self.regions.append(region)

    def restored(self, region: Region) -> None:
        """The result of a discarding region is there again when the gradient of what was made last has come."""
        region.until = len(self.steps) - 1

    @contextmanager
    def borrowed(self, wanted: bool = True) -> Iterator[None]:
        """Weights declared here are those of an earlier layer, if `wanted`: counted there."""
        outer, self.borrows = self.borrows, self.borrows or wanted
        yield
        self.borrows = outer

    def store(self, *values: Value) -> None:
        """Results of operations whose outputs selective recomputing keeps (torch/utils/checkpoint.py CheckpointPolicy.MUST_SAVE)."""
        self.stored.extend(v.storage for v in values)

    def hold(self, *values: Value) -> None:
        """Keeps values alive until the current module returns."""
        self._held[-1].extend(values)

    def share(self, what: str, dims: Dims, dtype: DType) -> None:
        """Declares a tensor that the model makes once for all layers and holds while they run, such as the mask of eager attention."""
        self.shared.append(Storage(Size.of(dims, dtype), self.path, what, dims, dtype))

    def until_end(self, value: Value) -> None:
        """Keeps a value alive to the end of the network's forward."""
        value.storage.cached = True

    def drop(self, *values: Value) -> None:
        """A local variable held these values up to here; then its name was bound to something else."""
        self.steps.append(Step("drop", self.path, values, (), ends=True))

    def pin(self, value: Value) -> None:
        """Keeps a value alive through backward: the caller still holds it."""
        self.pinned.append(value.storage)

    def linger(self, value: Value) -> None:
        """Keeps a value alive through backward and after it, as long as somebody holds the graph."""
        value.storage.lingers = True
        self.pin(value)

    def name(self, leaf: str) -> str:
        """Full name of something in the current module."""
        return f"{self.path}.{leaf}" if self.path else leaf

    # -- values ---------------------------------------------------------------------------------------------------------------
    def new(self, what: str, dims: Dims, dtype: DType, grad: bool) -> Value:
        """A fresh tensor."""
        return Value(Storage(Size.of(dims, dtype), self.path, what, dims, dtype), dims, dtype, grad and self.setup.grad and not self.silent)

    def given(self, what: str, dims: Dims, dtype: DType, grad: bool = False, persistent: bool = True) -> Value:
        """A tensor that exists before the step."""
        storage = Storage(Size.of(dims, dtype), self.path, what, dims, dtype, persistent=persistent)
        return Value(storage, dims, dtype, grad and self.setup.grad)

    def from_outside(self, what: str, dims: Dims, dtype: DType, grad: bool = True) -> Value:
        """A tensor that another part of the network made in this step."""
        value = self.given(what, dims, dtype, grad)
        value.storage.outside = True
        return value

    def parameter(
        self,
        leaf: str,
        dims: Dims,
        *,
        count: int = 1,
        dtype: DType | None = None,
        packed: bool = False,
        adapter: bool = False,
        tied: bool = False,
        fixed: bool = False,
        share: tuple[int, int] = (1, 1),
    ) -> Value:
        """A weight of the current module: trained or frozen as the setup says, `fixed` ones never. The same name gives the same weight."""
        name, tied = self.name(leaf), tied or self.borrows
        if name in self.weights:
            return self.weights[name]
        trainable = self.setup.grad if adapter else self.setup.trains(name) and not (packed or fixed)
        kind = dtype or self.setup.weights
        if trainable and self.setup.keeps_originals and not (adapter or tied):
            self.parameters.append(Parameter(f"{name}.original", dims, kind, False, count, share=(0, 1)))
        self.parameters.append(Parameter(name, dims, kind, trainable, count, packed, adapter, tied=tied, share=share))
        value = self.given("weight", dims, kind, grad=trainable)
        self.weights[name] = value
        return value

    def buffer(self, leaf: str, dims: Dims, dtype: DType) -> None:
        """A tensor of the module that is no parameter and is moved with it."""
        self.parameters.append(Parameter(self.name(leaf), dims, dtype, trainable=False, buffer=True))

    def cache(self, kind: str, name: str, dims: Dims, dtype: DType | None = None, *, window: int = 0, every: int = 1) -> None:
        """Declares what the current module stores of the past."""
        self.caches.append(Cache(kind, name, self.path, dims, dtype, window, every))

    # -- steps ----------------------------------------------------------------------------------------------------------------
    def step(
        self,
        what: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        *,
        saved: Sequence[Storage | Value] = (),
        made: Sequence[Made] | None = None,
        scratch: Scratch = ZERO,
        back_scratch: Scratch = ZERO,
        piecewise: bool = False,
    ) -> None:
        """Records an operation. Without `made`, backward makes one gradient of each input that needs one, in its own type."""
        needs = self.setup.grad and any(o.grad for o in outputs)
        gradients = tuple(Made(v, Size.of(v.dims, v.dtype)) for v in inputs if v.grad) if made is None else tuple(m for m in made if m.to.grad)
        kept = tuple(s.storage if isinstance(s, Value) else s for s in saved)
        made_of = gradients if needs else ()
        self.steps.append(Step(what, self.path, tuple(inputs), tuple(outputs), kept if needs else (), scratch, made_of, back_scratch, piecewise=piecewise))
