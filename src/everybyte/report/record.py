"""A measured run, and GPUs as they are now, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everybyte.basics.units import GiB
from everybyte.measure.recording.gpus import GpuState

BAR = 40


def screen(record: dict[str, Any]) -> Iterator[str]:
    """What a record says, a line a figure."""
    for name, value in record["figures"].items():
        low, high = record["spread"].get(name, (value, value))
        ranks = f"   ranks {low / GiB:,.2f} to {high / GiB:,.2f}" if low != high else ""
        yield f"{name:<18}{value / GiB:>10,.3f} GiB{ranks}"
    worst = max(record["ranks"], key=lambda rank: rank["figures"].get("peak.allocated", 0), default=None)
    for phase in worst["phases"] if worst else ():
        yield f"  {phase['name']:<16}{phase['allocated'] / GiB:>10,.3f} GiB allocated at its peak"
    for line in record["lacks"]:
        yield f"not measured: {line}"


def gpu_lines(state: GpuState, predicted: int | None) -> Iterator[str]:
    """A GPU with its processes, and the prediction beside each."""
    filled = round(BAR * state.used / state.capacity) if state.capacity else 0
    yield f"GPU {state.number} {state.name}  {'#' * filled}{'.' * (BAR - filled)}  {state.used / GiB:,.2f} of {state.capacity / GiB:,.2f} GiB"
    for pid, nbytes in sorted(state.processes.items(), key=lambda row: -row[1]):
        beside = "" if predicted is None else f"   predicted {predicted / GiB:,.2f} GiB ({100 * nbytes / predicted - 100:+.0f} %)"
        yield f"  process {pid:<10}{nbytes / GiB:>9,.2f} GiB{beside}"
