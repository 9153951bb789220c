"""What the driver says of each GPU and process (NVML, by nvidia-ml-py of the extra [measure])."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class GpuState(NamedTuple):
    """A GPU at one instant, bytes."""

    number: int
    name: str
    capacity: int
    used: int
    processes: dict[int, int]
    """pid -> bytes; a process whose memory the driver does not tell is left out."""


class Driver:
    """An open NVML."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.version = _text(nvml.nvmlSystemGetDriverVersion())
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._names = [_text(nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def states(self) -> list[GpuState]:
        """All GPUs now."""
        return [self._state(index, handle) for index, handle in enumerate(self._handles)]

    def _state(self, index: int, handle: Any) -> GpuState:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:  # some drivers do not tell
            running = []
        processes = {int(one.pid): int(one.usedGpuMemory) for one in running if one.usedGpuMemory is not None}
        return GpuState(index, self._names[index], int(memory.total), int(memory.used), processes)


@contextmanager
def driver() -> Iterator[Driver | str]:
    """The driver, or in words why there is none."""
    try:
        import pynvml
    except ImportError:
        yield "GPU memory by process: nvidia-ml-py is not installed (pip install 'everybyte[measure]')"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield f"GPU memory by process: there is no NVIDIA driver here ({error})"
        return
    try:
        yield Driver(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
