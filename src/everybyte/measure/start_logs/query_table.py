"""Tables of `nvidia-smi --query-gpu=... --format=csv` and `--query-compute-apps`: a header that names columns, then a row a GPU or process."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.measure.log_text import Line
from everybyte.measure.sizes import resolution, size
from everybyte.measure.start_logs.figure import Figure

FIGURES = {"memory.used": "device.used", "used_memory": "process.used", "used_gpu_memory": "process.used"}
"""Column -> figure."""
NAMES = ("index", "gpu_index", "pid", "gpu_uuid", "uuid", "gpu_name", "name")
"""Columns that say which GPU or process a row is of, the best first."""


class QueryTable:
    """Sees every line; a header begins a table, a line of another width ends it."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._units: list[str] = []
        self._rows = 0
        self.given: dict[str, float] = {}

    def see(self, line: Line) -> Iterator[Figure]:
        """The figures of a row of a table."""
        cells = [cell.strip() for cell in line.text.split(",")]
        if any(cell.split(" ")[0] in FIGURES for cell in cells):
            self._columns = [cell.split(" ")[0] for cell in cells]
            self._units = [cell.partition("[")[2].rstrip("]") for cell in cells]
            self._rows = 0
            return
        if not self._columns or len(cells) != len(self._columns):
            self._columns = []
            return
        rank = next((cells[self._columns.index(name)] for name in NAMES if name in self._columns), str(self._rows))
        self._rows += 1
        for column, unit, cell in zip(self._columns, self._units, cells, strict=True):
            printed = cell if cell.endswith("B") else f"{cell} {unit}"
            if column in FIGURES or column == "memory.total":
                try:
                    nbytes, fine = size(printed), resolution(printed)
                except ValueError:  # [N/A], [Insufficient Permissions]
                    continue
                if nbytes is None:
                    continue
                if column == "memory.total":
                    self.given["capacity"] = float(nbytes)
                else:
                    yield Figure(FIGURES[column], rank, float(nbytes), "bytes", float(fine), line.number)
