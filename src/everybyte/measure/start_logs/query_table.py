"""Tables with commas: `nvidia-smi --query-gpu=... --format=csv` and `--query-compute-apps`, `rocm-smi --showmeminfo vram --csv`, `amd-smi metric --csv`,
`xpu-smi dump`. A header names columns, then comes a row a GPU or process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everybyte.measure.log_text import Line
from everybyte.measure.sizes import resolution, size
from everybyte.measure.start_logs.figure import Figure

FIGURES = {
    "memory.used": "device.used",
    "used_memory": "process.used",
    "used_gpu_memory": "process.used",
    "VRAM Total Used Memory": "device.used",
    "used_vram": "device.used",
    "GPU Memory Used": "device.used",
}
"""Column -> figure."""
CAPACITY = ("memory.total", "VRAM Total Memory", "total_vram")
UNITS = {"used_vram": "MB", "total_vram": "MB"}
"""amd-smi names no unit in its CSV: it means 2^20 bytes."""
TOOLS = {"VRAM Total Used Memory": "rocm-smi", "used_vram": "amd-smi", "GPU Memory Used": "xpu-smi"}
"""Whose tables they are, where not nvidia-smi's."""
NAMES = ("index", "gpu_index", "pid", "gpu_uuid", "uuid", "gpu_name", "name", "device", "gpu", "DeviceId")
"""Columns that say which GPU or process a row is of, the best first."""
_UNIT = re.compile(r"\s*[\[(](\w+)[\])]$")
"""A unit behind a column's name: `memory.used [MiB]`, `GPU Memory Used (MiB)`."""


class QueryTable:
    """Sees every line; a header begins a table, a line of another width ends it."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._units: list[str] = []
        self._rows = 0
        self.tool = "nvidia-smi"
        self.given: dict[str, float] = {}

    def see(self, line: Line) -> Iterator[Figure]:
        """The figures of a row of a table."""
        cells = [cell.strip() for cell in line.text.split(",")]
        names = [_UNIT.sub("", cell) for cell in cells]
        if any(name in FIGURES for name in names):
            self._columns = names
            self._units = [found.group(1) if (found := _UNIT.search(cell)) else UNITS.get(name, "") for cell, name in zip(cells, names, strict=True)]
            self.tool = next((TOOLS[name] for name in names if name in TOOLS), "nvidia-smi")
            self._rows = 0
            return
        if not self._columns or len(cells) != len(self._columns):
            self._columns = []
            return
        rank = next((cells[self._columns.index(name)] for name in NAMES if name in self._columns), str(self._rows))
        self._rows += 1
        for column, unit, cell in zip(self._columns, self._units, cells, strict=True):
            printed = cell if cell.endswith("B") else f"{cell} {unit}"
            if column in FIGURES or column in CAPACITY:
                try:
                    nbytes, fine = size(printed), resolution(printed)
                except ValueError:  # [N/A], [Insufficient Permissions]
                    continue
                if nbytes is None:
                    continue
                if column in CAPACITY:
                    self.given["capacity"] = float(nbytes)
                else:
                    yield Figure(FIGURES[column], rank, float(nbytes), "bytes", float(fine), line.number)
