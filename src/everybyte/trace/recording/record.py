"""Watches a program run and notes every storage that is born and freed on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch._guards import active_fake_mode
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from everybyte.trace.birth import Birth, line_of_program
from everybyte.trace.device.stream_lag import Behind
from everybyte.trace.recording.modules import Modules
from everybyte.trace.values.assumed_values import follow_numbers
from everybyte.trace.values.numbers import stays_real

aten = torch.ops.aten
COMPOSITION = torch._C.DispatchKey.CompositeImplicitAutograd
WRAPPERS = ("DTensor", "AsyncCollectiveTensor")
"""Tensor types that hold local tensors: the operations on those are what takes memory."""
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
}
"""What autograd's own sums are on real tensors."""
HOLDERS = {aten.add.Tensor: 4, aten.index_put.default: 5, aten.scatter.src: 4, aten.scatter_add.default: 4}
"""References to a tensor that only autograd and the operation itself hold; one more is somebody else's."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not checked
    """While it is entered, the storages that operations make on `device` are noted in `births`, and in `events`: (id, bytes) born, (id, -bytes) freed."""

    supports_higher_order_operators = True  # flex_attention is one; torch asks a mode before it hands one on

    def __init__(self, device: str = "cuda", stream: Callable[[], int] = lambda: 0, hidden: Callable[[Any, Any], Iterable[int]] = lambda *_: ()) -> None:
        super().__init__()
        self.device, self.stream, self.hidden = device, stream, hidden
        self.births: list[Birth] = []
        self.events: list[tuple[int, int]] = []
        self.stepping: list[int] = []
        """Positions in the events where an optimizer began to step."""
        self.current = self.peak = 0
        self.watchers: list[Callable[[Recorder], None]] = []
        """Called with each storage that is born."""
        self.after_step: Callable[[], None] = lambda: None
        """Called when an optimizer has stepped."""
        self.behind = Behind()
        self.collective: Callable[[Any, Any], Any] = lambda *_: NotImplemented
        """Answers an operation between ranks, or says NotImplemented."""
        self.optimizing = False
        self.operations = 0
        self._alive: dict[int, Birth] = {}
        self._modules = Modules()
        self._undo: list[Callable[[], None]] = []
        self._fake_mode: Any = None

    def note(self, tensor: torch.Tensor, category: str, place: str = "") -> None:
        """Says what a tensor is, and at `place` which module it belongs to; one that was born before the recording is born now."""
        for storage in storages_of(tensor):
            birth = self._alive.get(storage._cdata)
            if birth is None and storage.nbytes() and tensor.device.type == self.device:
                birth = self._bear(storage, tensor, "before")
            if birth is not None:
                birth.category = category
                birth.module = place or birth.module

    def forget_peak(self) -> None:
        """The peak from here on (reset_peak_memory_stats)."""
        self.peak = self.current

    def phase(self) -> str:
        """Where the program is: forward, backward or optimizer."""
        if self.optimizing:
            return "optimizer"
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    def _again(self) -> bool:
        """Whether backward runs a forward pass again: it builds a graph, which backward itself does not."""
        return self.phase() == "backward" and torch.is_grad_enabled()

    def births_of(self, tensor: torch.Tensor) -> list[Birth]:
        """The living births of a tensor's storages."""
        found = (self._alive.get(storage._cdata) for storage in storages_of(tensor))
        return [birth for birth in found if birth is not None]

    def __enter__(self) -> Self:
        self._fake_mode = active_fake_mode()
        self._modules.__enter__()
        before = register_optimizer_step_pre_hook(lambda *_: self._optimizer(True))
        after = register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            self._resized(storage)

        torch.UntypedStorage.resize_ = resized
        self._undo = [before.remove, after.remove, lambda: setattr(torch.UntypedStorage, "resize_", resize)]
        super().__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        for undo in self._undo:
            undo()
        self._modules.__exit__(*args)
        super().__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ in WRAPPERS for kind in types):
            return NotImplemented
        if active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # sharding propagation of DTensor: tensors that never are in memory
        if stays_real(func, args, kwargs, makes=self.device != "cpu"):
            with _disable_current_modes():
                return func(*args, **kwargs)
        self.operations += 1
        in_place = self._in_place(func, args, kwargs)
        if in_place is not None:
            return in_place(*args)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        done = self.collective(func, args)
        if done is not NotImplemented:
            return done
        if torch.is_inference_mode_enabled() and _is_composition(func):
            return self._by_parts(func, args, kwargs)
        out = func(*args, **kwargs)
        follow_numbers(func, args, out)
        for nbytes in self.hidden(func, args):
            self._inside(func, nbytes)
        for tensor in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device:
                self._seen(tensor, func)
        return out

    def _by_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A composition of operations, which in inference mode comes here as a whole: its parts come here after all."""
        super().__enter__()
        try:
            return func._op_dk(COMPOSITION, *args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def _seen(self, tensor: torch.Tensor, func: Any) -> None:
        for storage in storages_of(tensor):
            birth = self._alive.get(storage._cdata)
            if birth is None:
                if storage.nbytes():
                    self._bear(storage, tensor, str(func))
            elif birth.nbytes != storage.nbytes():
                self._resized(storage)

    def _bear(self, storage: torch.UntypedStorage, tensor: torch.Tensor, operation: str) -> Birth:
        birth = Birth(
            id=len(self.births) + 1,
            nbytes=storage.nbytes(),
            operation=operation,
            module=self._modules.innermost(),
            phase=self.phase(),
            dtype=str(tensor.dtype)[6:],
            shape=tuple(tensor.shape),
            stream=self.stream(),
            line=line_of_program(),
            born=len(self.events),
            again=self._again(),
        )
        key = storage._cdata
        birth.alive = weakref.ref(storage, lambda _: self._die(key))
        self._alive[key] = birth
        self.births.append(birth)
        self._event(birth.id, birth.nbytes)
        for watcher in self.watchers:
            watcher(self)
        return birth

    def _die(self, key: int) -> None:
        birth = self._alive.pop(key)
        birth.died, birth.died_in = len(self.events), self.phase()
        if birth.nbytes:
            self._event(birth.id, -birth.nbytes)

    def _inside(self, func: Any, nbytes: int) -> None:
        """Memory that a kernel takes and gives back within one operation."""
        birth = Birth(
            id=len(self.births) + 1,
            nbytes=nbytes,
            operation=str(func),
            module=self._modules.innermost(),
            phase=self.phase(),
            dtype="",
            shape=(),
            stream=self.stream(),
            line=line_of_program(),
            born=len(self.events),
            category="workspace",
        )
        self.births.append(birth)
        self._event(birth.id, nbytes)
        birth.died, birth.died_in = len(self.events), birth.phase
        self._event(birth.id, -nbytes)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """FSDP frees and fills its gathered parameters by changing the size of their storage."""
        birth = self._alive.get(storage._cdata)
        if birth is None or birth.nbytes == storage.nbytes():
            return
        if birth.nbytes:
            self._event(birth.id, -birth.nbytes)
        birth.nbytes = storage.nbytes()
        if birth.nbytes:
            self._event(birth.id, birth.nbytes)

    def _event(self, number: int, nbytes: int) -> None:
        self.events.append((number, nbytes))
        self.current += nbytes
        self.peak = max(self.peak, self.current)

    def _optimizer(self, running: bool) -> None:
        self.stepping.append(len(self.events))
        self.optimizing = running

    def _stepped(self, optimizer: Any) -> None:
        for parameter, state in optimizer.state.items():
            place = self._place_of(parameter)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.note(value, "optimizer_state", place)
        self.optimizing = False
        self.after_step()

    def _place_of(self, parameter: Any) -> str:
        births = (self._alive.get(storage._cdata) for storage in storages_of(parameter)) if isinstance(parameter, torch.Tensor) else ()
        return next((birth.module for birth in births if birth is not None), "")

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation that autograd runs on real tensors where it runs `func` on fake ones: it writes into a tensor that nobody else holds, when it sums two
        gradients (InputBuffer::accumulate, torch/csrc/autograd/input_buffer.cpp) or scatters one (index_backward in FunctionsManual.cpp,
        value_selecting_reduction_backward in ATen/native/ReduceOps.cpp, gather_backward). None elsewhere."""
        twin = IN_PLACE.get(func)
        if twin is None or kwargs or torch.is_grad_enabled() or self.phase() != "backward":
            return None
        target = args[0]
        if func is aten.add.Tensor and not (isinstance(args[1], torch.Tensor) and target.shape == args[1].shape and target.dtype == args[1].dtype):
            return None
        if not is_non_overlapping_and_dense_or_false(target):
            return None
        alone = target._use_count() <= HOLDERS[func] and torch._C._storage_Use_Count(target.untyped_storage()._cdata) <= 2
        return twin if alone else None


def _is_composition(func: Any) -> bool:
    name = func.name()
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITION.name)  # type: ignore[no-any-return]


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor; of a wrapper those of the tensors inside it."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor.untyped_storage()]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [storage for one in inner if isinstance(one, torch.Tensor) for storage in storages_of(one)]
