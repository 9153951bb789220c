"""What a process of the run says of itself: torch's peaks, by phase where the program names phases."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

PHASES = ("load", "init", "forward", "loss", "backward", "optimizer", "between_steps", "eval", "save")
"""The contract's phases; a program may name others."""
SCHEMA = 1


class Recorder:
    """Records the process that it lives in: `with Recorder("run.json") as run: ... with run.phase("forward"): ...`.

    On a GPU torch's own counters are read and set back between phases. Without one, host memory and torch's tensors on the CPU are measured, and the file
    says what it lacks. Under torchrun each rank writes a file of its own (`run.rank3.json`); `merged` joins them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        rank, target = os.environ.get("RANK", ""), Path(path)
        self.path = target.with_name(f"{target.stem}.rank{rank}{target.suffix}") if rank.isdigit() else target
        self.rank = int(rank) if rank.isdigit() else 0
        self.phases: dict[str, dict[str, int]] = {}
        self.oom: str | None = None
        self._peak = {"allocated": 0, "reserved": 0}
        self._begun = time.time()

    def __enter__(self) -> Self:
        _reset()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: object) -> None:
        if fault is not None and "out of memory" in str(fault):
            self.oom = str(fault).splitlines()[0][:500]
            self._dump_snapshot()
        self.write()

    def write(self) -> None:
        """Writes what was seen until now."""
        self._fold()
        self.path.write_text(json.dumps(self.result()), encoding="utf-8")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The peaks of what runs inside belong to a phase; of a phase that comes again the highest counts."""
        self._fold()
        try:
            yield
        finally:
            seen = self._fold()
            held = self.phases.setdefault(name, {"allocated": 0, "reserved": 0, "allocated_after": 0})
            held["allocated"] = max(held["allocated"], seen["allocated"])
            held["reserved"] = max(held["reserved"], seen["reserved"])
            held["allocated_after"] = seen["now"]

    def _fold(self) -> dict[str, int]:
        """The peaks since the last look, which become part of the run's; the counters start anew."""
        seen = _peaks()
        for name in self._peak:
            self._peak[name] = max(self._peak[name], seen[name])
        _reset()
        return seen

    def result(self) -> dict[str, Any]:
        """What the file holds."""
        figures: dict[str, int] = {}
        if self._peak["allocated"]:
            figures = {"peak.allocated": self._peak["allocated"], "peak.reserved": self._peak["reserved"]}
        between = self.phases.get("optimizer") or self.phases.get("between_steps")
        if figures and between:
            figures["static.allocated"] = between["allocated_after"]
        return {
            "everybyte_record": SCHEMA,
            "rank": self.rank,
            "pid": os.getpid(),
            "device": _device(),
            "figures": figures,
            "phases": [{"name": name, **held} for name, held in self.phases.items()],
            "host": {"peak": _host_peak(), "torch_cpu": _cpu_tensors()},
            "oom": self.oom,
            "environment": environment(),
            "seconds": round(time.time() - self._begun, 3),
            "lacks": _lacks(),
        }

    def _dump_snapshot(self) -> None:
        """The allocator's history at the instant of the fault, where torch was told to keep one."""
        cuda = _cuda()
        if cuda is not None:
            cuda.memory._dump_snapshot(str(self.path.with_suffix(".pickle")))  # noqa: SLF001  # torch's documented name


def environment() -> dict[str, str]:
    """Releases and settings that memory depends on; no names of users, hosts or paths."""
    found = {"python": sys.version.split()[0]}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        found["cuda"] = str(torch.version.cuda)
    found.update({name: os.environ[name] for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "WORLD_SIZE") if name in os.environ})
    return found


def _cuda() -> Any:
    """torch.cuda, if the program has loaded torch and uses a GPU; torch is never imported for its own sake."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _peaks() -> dict[str, int]:
    cuda = _cuda()
    if cuda is None:
        return {"allocated": 0, "reserved": 0, "now": 0}
    return {"allocated": cuda.max_memory_allocated(), "reserved": cuda.max_memory_reserved(), "now": cuda.memory_allocated()}


def _reset() -> None:
    cuda = _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def _device() -> str | None:
    cuda = _cuda()
    return f"cuda:{cuda.current_device()}" if cuda is not None else None


def _host_peak() -> int:
    """The most that was resident, bytes (getrusage counts KiB on Linux, bytes on macOS)."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def _cpu_tensors() -> int:
    """Bytes of torch's storages on the CPU that live now."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    import gc
    import warnings

    sizes: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at every object touches deprecated ones
        for thing in gc.get_objects():
            plain = type(thing) is torch.Tensor or type(thing) is torch.nn.Parameter  # nothing is asked of other objects
            if plain and thing.device.type == "cpu" and thing.layout == torch.strided:
                storage = thing.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _lacks() -> list[str]:
    if "torch" not in sys.modules:
        return ["torch's peaks: the program did not load torch"]
    return [] if _cuda() is not None else ["torch's peaks: no GPU was used; host memory alone is measured"]
