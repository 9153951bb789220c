"""The fake CUDA device's Python part: what `torch.cuda` says and does while code is traced. Only called in the process of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from everybyte.catalog.gpus import Gpu


class DevicelessMode(FakeTensorMode):  # type: ignore[misc]  # torch is not checked
    """Fake tensors on a device that is there in words alone: `torch.tensor(..., device="cuda")` else wants to copy real numbers to it."""

    avoid_device_init = True
    supports_higher_order_operators = True  # as fake tensors do; torch knows it of their own class alone


class Memory(NamedTuple):
    """How the program's questions about memory are answered: by what the trace has recorded so far."""

    allocated: Callable[[], int]
    peak: Callable[[], int]
    reset_peak: Callable[[], None]


class Stream:
    """A CUDA stream by number; 0 is the default one. Work on fake tensors is done at once, so waiting means nothing."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Stream.made += 1
        self.stream_id = self.cuda_stream = Stream.made
        self.device_type = 1

    @property
    def device(self) -> torch.device:
        """The GPU that the program works on."""
        return torch.device("cuda", self.device_index)

    @property
    def device_index(self) -> int:
        """Its number."""
        return int(torch.accelerator.current_device_index())

    def wait_stream(self, stream: Any) -> None:
        """Nothing: no work is ever under way."""

    def wait_event(self, event: Any) -> None:
        """Nothing: no work is ever under way."""

    def record_event(self, event: Any = None) -> Any:
        """An event, which has always happened."""
        return event or Event()

    def query(self) -> bool:
        """All work is done."""
        return True

    def synchronize(self) -> None:
        """Nothing: no work is ever under way."""

    def __enter__(self) -> Self:
        _streams.append(self)
        return self

    def __exit__(self, *args: object) -> None:
        _streams.pop()


class Event:
    """A CUDA event, which has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        """Nothing."""

    def wait(self, *args: Any) -> None:
        """Nothing."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """Nothing."""

    def elapsed_time(self, other: Any) -> float:
        """Fake work takes no time."""
        return 0.0


_default_stream = Stream()
_default_stream.stream_id = _default_stream.cuda_stream = 0
_streams: list[Any] = []


def current_stream_id() -> int:
    """The stream on which the program works now."""
    return int(_streams[-1].stream_id) if _streams else 0


class Properties:
    """What `torch.cuda.get_device_properties` says of a GPU of the catalogue."""

    warp_size = 32
    gcnArchName = ""  # noqa: N815  # torch's name

    def __init__(self, gpu: Gpu) -> None:
        major, _, minor = gpu.compute_capability.partition(".")
        self.name, self.total_memory = gpu.name, gpu.capacity
        self.major, self.minor = int(major), int(minor or 0)
        self.multi_processor_count = 132  # nothing in memory depends on it; some libraries print it
        self.shared_memory_per_block_optin = 232448


def install(gpu: Gpu, count: int, memory: Memory) -> None:
    """Lets `torch.cuda` speak for `count` GPUs of one kind. The C++ part (trace.shim) must be loaded."""
    facts = Properties(gpu)
    said: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": count,
        "get_device_properties": facts,
        "get_device_capability": (facts.major, facts.minor),
        "get_device_name": facts.name,
        "get_arch_list": [f"sm_{facts.major}{facts.minor}"],
        "current_blas_handle": 0,
        "default_stream": _default_stream,
        "mem_get_info": (facts.total_memory, facts.total_memory),
        "initial_seed": 0,
    }
    for name, value in said.items():
        setattr(torch.cuda, name, _saying(value))
    for name in ("_lazy_init", "init", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all"):
        setattr(torch.cuda, name, _saying(None))
    torch.cuda.current_device, torch.cuda.set_device = torch.accelerator.current_device_index, _set_device
    torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = _exchange_device
    torch.cuda.current_stream = lambda *_, **__: _streams[-1] if _streams else _default_stream
    torch.cuda.stream = lambda stream: stream if stream is not None else contextlib.nullcontext()
    torch.cuda.Stream, torch.cuda.Event, torch.Event = Stream, Event, Event
    torch.cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8, device="cpu")
    torch.cuda.set_rng_state = torch.cuda.set_rng_state_all = _saying(None)
    torch.cuda.get_rng_state_all = lambda: [torch.zeros(16, dtype=torch.uint8, device="cpu")]
    torch._C._cuda_getCurrentRawStream = _saying(0)  # bitsandbytes hands it to its kernels
    _answer_memory(memory)
    torch.cuda.amp.common.amp_definitely_not_available = _saying(False)
    torch.accelerator.is_available = _saying(True)


def _set_device(device: Any) -> None:
    if isinstance(device, int):
        torch.accelerator.set_device_index(device)
    elif torch.device(device).index is not None:
        torch.accelerator.set_device_index(torch.device(device).index)


def _exchange_device(index: int) -> int:
    """What `with torch.cuda.device(index)` does at its ends; a negative number is no device."""
    before = int(torch.accelerator.current_device_index())
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return before


def _answer_memory(memory: Memory) -> None:
    for name in ("memory_allocated", "memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: memory.allocated())
    for name in ("max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: memory.peak())
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
        setattr(torch.cuda, name, lambda *_, **__: memory.reset_peak())
    torch.cuda.memory_stats = lambda *_, **__: {"allocated_bytes.all.current": memory.allocated(), "allocated_bytes.all.peak": memory.peak()}


def _saying(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


@contextlib.contextmanager
def watched_streams(told: Callable[[torch.Tensor, int], None]) -> Iterator[None]:
    """Tells of every tensor that the program says another stream uses (`Tensor.record_stream`): its memory waits for that stream when it is freed."""
    before = torch.Tensor.record_stream
    torch.Tensor.record_stream = lambda self, stream: told(self, int(stream.stream_id))
    try:
        yield
    finally:
        torch.Tensor.record_stream = before
