"""The page of what is read from logs: made by reading a printed line of each tool."""

from __future__ import annotations

from itertools import groupby

from everybyte.measure.start_logs.examples import Example, examples
from writers.markdown import page, table

INTRODUCTION = """\
What `everybyte read`, `compare` and `doctor` take from the output of other programs. Each row was made by reading the line that stands in it, so the table says
what the reader does. Where releases or options print different lines, the row names them; a row without a name holds for all that were read. Figures have the
names that estimates use; what stands in brackets is a plain fact that is no measured figure. Beside these lines, tables of `nvidia-smi --query-gpu`,
`nvidia-smi --query-compute-apps`, `rocm-smi --csv`, `amd-smi --csv` and `xpu-smi dump` are read by their columns; memory snapshots of PyTorch (pickle protocols
2 to 5, plain or gzip), memory timelines of `torch.profiler` (`.json`, `.raw.json`, either with `.gz`; the `.html` form is a picture and is refused) and chrome
traces with memory events by their content."""


def read_figures_page() -> str:
    """A chapter for each tool."""
    return page("What is read", INTRODUCTION, *(_chapter(name, list(rows)) for name, rows in groupby(examples(), key=lambda one: one.engine)), wide=True)


def _chapter(name: str, rows: list[Example]) -> str:
    return f"## {name}\n\n{table(('printed by', 'figures', 'line'), [(one.generation or 'all', _figures(one), _code(one.line)) for one in rows])}"


def _figures(example: Example) -> str:
    found = example.found()
    return ", ".join([f"`{one.figure}`" for one in found.measured] + [f"(`{name}`)" for name in found.given])


def _code(line: str) -> str:
    return "`" + " ".join(line.split()).replace("|", "\\|") + "`"
