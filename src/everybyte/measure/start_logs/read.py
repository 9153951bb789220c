"""Reads a log into figures. Wordings are data (data/lines.toml); of each figure and rank one value counts."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import BinaryIO, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.measure.log_text import Line, lines_of
from everybyte.measure.sizes import SIZE, number, resolution, size
from everybyte.measure.start_logs.figure import UNITS, Figure, StartLog
from everybyte.measure.start_logs.query_table import QueryTable

_RANK = re.compile(
    r"\((?:\w*Worker\w*|VllmWorker\w*)[ _](?:rank=)?(?P<worker>(?:TP|DP|PP|EP)?\d+(?:_(?:TP|PP|EP)\d+)*)"
    r"|\[[^\]]*?\b(?P<group>(?:DP\d+ )?(?:TP|PP)\d+(?: (?:PP|EP)\d+)*)\]"
    r"|\[rank(?P<rank>\d+)\]|\[default(?P<default>\d+)\]|\brank[ =](?P<named>\w+):|\[TRT-LLM\]\[(?P<trt>RANK \d+)\]"
)
"""How lines name the rank that writes them."""
VERSIONS = (
    ("vllm", re.compile(r"vLLM API server version v?([\w.+]+)|Initializing (?:a V\d LLM engine|an LLM engine) \(v([\w.+]+)\)|vLLM version ([\d][\w.+]+)")),
    ("sglang", re.compile(r"[Ss][Gg][Ll]ang(?: version|==| v)[ :]?v?(\d[\w.]+)")),
    ("llama.cpp", re.compile(r"build: (\d+) \(|version: (\d+) \([0-9a-f]+\)")),
    ("ollama", re.compile(r"Listening on \S+ \(version ([\w.-]+)\)")),
    ("tensorrt-llm", re.compile(r"TensorRT-LLM version: ([\w.]+)")),
    ("lmdeploy", re.compile(r"lmdeploy(?:==| version:? ?)([\d.]+)")),
    ("tgi", re.compile(r"text-generation-(?:inference|launcher)[^\d]{0,12}(\d[\w.]+)")),
    ("nvidia-smi", re.compile(r"NVIDIA-SMI ([\d.]+)")),
)
"""How each tool says which release it is."""
_PARAMS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_UNIT_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20}
RELATIVES = {"llama.cpp": ("ollama",)}
"""An engine inside another one: the outer one gives the log its name."""


class Wording(NamedTuple):
    """One row of the table."""

    engine: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    unit: str
    decimal: bool
    peak: bool
    sum: str
    sum_lines: bool
    counts_devices: bool


@cache
def wordings() -> tuple[Wording, ...]:
    """The table of wordings."""
    rows = tomllib.loads((files(__package__) / "data/lines.toml").read_text(encoding="utf-8"))["line"]
    return tuple(
        Wording(
            row["engine"],
            tuple(row["hints"]),
            re.compile(row["pattern"].replace("<SIZE>", SIZE).replace(" ?", r"\s*").replace(" ", r"\s+")),
            row.get("unit", ""),
            row.get("decimal", False),
            row.get("peak", False),
            row.get("sum", ""),
            row.get("sum_lines", False),
            row.get("counts_devices", False),
        )
        for row in rows
    )


def read(stream: BinaryIO, place: str = "log") -> StartLog:
    """The figures of a log of any size. Raises BadInput at `place` if it states none that is known."""
    reader = _Reader()
    for line in lines_of(stream):
        reader.see(line)
    found = reader.result()
    if not found.measured and not found.given:
        raise BadInput(place, "states no memory figure that is known here: it is no start-up log, metrics line or nvidia-smi table of a tool that is read")
    return found


class _Reader:
    """Sees every line once."""

    def __init__(self) -> None:
        self._hinted = [(hint, row) for row in wordings() for hint in row.hints]
        self._figures: dict[tuple[str, str], Figure] = {}
        self._given: dict[str, float] = {}
        self._engines: Counter[str] = Counter()
        self._versions: dict[str, str] = {}
        self._devices = 0
        self._sliding = False
        self._table = QueryTable()

    def see(self, line: Line) -> None:
        """Takes the figures of a line."""
        text = line.text
        for name, pattern in VERSIONS:
            if name not in self._versions and (found := pattern.search(text)):
                self._versions[name] = next(group for group in found.groups() if group)
        if "creating" in text and "KV cache" in text:  # llama.cpp: which of two caches the next lines are of
            self._sliding = "non-SWA" not in text and "SWA" in text
        for figure in self._table.see(line):
            self._engines[self._table.tool] += 1
            self._figures[figure.figure, figure.rank] = figure
        seen: set[int] = set()
        for hint, row in self._hinted:
            if hint in text and id(row.pattern) not in seen:
                seen.add(id(row.pattern))
                if found := row.pattern.search(text):
                    self._take(line, row, found)

    def _take(self, line: Line, row: Wording, found: re.Match[str]) -> None:
        self._engines[row.engine] += 1
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        rank = groups.pop("rank", None) or _rank(line.text)
        if row.counts_devices:
            rank, self._devices = str(self._devices), self._devices + 1
        percent = groups.pop("percent", None)
        added = [(name, groups.pop(name)) for name in [name for name in groups if name.startswith("add__")]]
        for name, printed in groups.items():
            figure = name.replace("__", ".")
            value, fine = _value(printed, figure, row)
            if value is None:
                continue
            if figure.startswith("given."):
                self._given[figure.removeprefix("given.")] = value
            else:
                self._put(Figure(figure, rank, value, UNITS.get(figure, "bytes"), fine, line.number), row)
                if percent is not None and number(percent) > 0:  # torchtitan: what is reserved, and its share of the capacity
                    self._given.setdefault("capacity", round(100 * value / number(percent)))
        if added:
            sizes = [size(printed) or 0 for _, printed in added]
            fine = sum(resolution(printed) for _, printed in added)
            self._put(Figure(row.sum, rank, float(sum(sizes)), "bytes", float(fine), line.number), row)

    def _put(self, new: Figure, row: Wording) -> None:
        if row.sum_lines and self._sliding:
            self._add(Figure("kv.swa_bytes", new.rank, new.value, new.unit, new.resolution, new.line))
        if row.sum_lines:
            self._add(new)
            return
        key = (new.figure, new.rank)
        old = self._figures.get(key)
        if old is None or not row.peak or new.value >= old.value:
            self._figures[key] = new

    def _add(self, new: Figure) -> None:
        """Lines of one device add up."""
        old = self._figures.get((new.figure, new.rank))
        joined = new if old is None else Figure(new.figure, new.rank, old.value + new.value, new.unit, old.resolution + new.resolution, new.line)
        self._figures[new.figure, new.rank] = joined

    def result(self) -> StartLog:
        """What all lines together state; the engine is the one that said most, or the one around it."""
        engine = self._engines.most_common(1)[0][0] if self._engines else next(iter(self._versions), None)
        engine = next((outer for outer in RELATIVES.get(engine or "", ()) if outer in self._versions or outer in self._engines), engine)
        return StartLog(engine, self._versions.get(engine or ""), tuple(self._figures.values()), {**self._table.given, **self._given})


def _rank(text: str) -> str:
    found = _RANK.search(text)
    return next(group for group in found.groups() if group) if found else "any"


def _value(printed: str, figure: str, row: Wording) -> tuple[float | None, float]:
    """The value of a printed number in the figure's unit, and the size of its last digit."""
    if row.unit == "params":
        return float(round(number(printed[:-1].strip()) * _PARAMS[printed[-1]])), 0.0
    if re.search("[A-Za-z]", printed):
        nbytes = size(printed, decimal=row.decimal)
        return (None, 0.0) if nbytes is None else (float(nbytes), float(resolution(printed, decimal=row.decimal)))
    places = len(printed.rpartition(".")[2]) if "." in printed else 0
    is_bytes = figure not in UNITS and figure not in ("given.memory_fraction", "given.bits_per_weight")
    factor = _UNIT_BYTES.get(row.unit, 1) if is_bytes else 1
    value = number(printed) * factor
    return (float(round(value)) if is_bytes else value), factor / 10**places
