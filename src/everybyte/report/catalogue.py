"""Tables of the catalogue and of the formula book."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.catalog.gpus import Gpu
from everybyte.catalog.models import ModelRow
from everybyte.ledger.entry import put_in
from everybyte.report.columns import Cell, columns
from everybyte.report.words import count
from everybyte.textbook.formula import Formula

LEAST_ROOM = 40
"""Columns below which a summary is left out rather than cut to a few letters."""


def show_table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[Cell]], justify: str) -> None:
    """Prints rows below their titles."""
    head: list[Sequence[Cell]] = [[Text(title, style="bold") for title in titles]]
    console.print(columns([*head, *rows], justify, console.width))


def show_gpus(console: Console, gpus: Sequence[Gpu]) -> None:
    """Prints capacity, bandwidth and rates of each GPU."""
    rows = [
        [
            gpu.name,
            f"{gpu.capacity / GiB:.2f}",
            f"{gpu.memory_gb_marketing:g}",
            _number(gpu.bandwidth_gb_s),
            _number(gpu.bf16_tflops or gpu.fp16_tflops),
            _number(gpu.fp8_tflops),
            str(gpu.launch_year),
            gpu.compute_capability,
            gpu.interconnect if gpu.interconnect != "none" else "",
        ]
        for gpu in gpus
    ]
    titles = ("GPU", "usable GiB", "nominal GB", "GB/s", "16-bit TFLOPS", "fp8 TFLOPS", "year", "cc", "link")
    show_table(console, titles, rows, "lrrrrrlll")


def show_gpu(console: Console, gpu: Gpu) -> None:
    """Prints all that is known of one GPU, with sources."""
    _show_fields(console, gpu.name, gpu._asdict(), {"capacity": f"{gpu.capacity:,} bytes = {gpu.capacity / GiB:.2f} GiB", "aliases": ", ".join(gpu.aliases)})


def show_models(console: Console, models: Sequence[ModelRow]) -> None:
    """Prints size and architecture of each model."""
    rows = [[row.name, _params(row), count(row.active_params_meta) if row.active_params_meta else "", row.architecture] for row in models]
    show_table(console, ("model", "parameters", "active", "architecture"), rows, "lrrl")


def show_model(console: Console, row: ModelRow) -> None:
    """Prints all that is known of one model, with sources."""
    exact = {key: f"{value:,}" for key, value in row._asdict().items() if isinstance(value, int) and not isinstance(value, bool)}
    _show_fields(console, row.name, row._asdict(), exact)


def _show_fields(console: Console, name: str, fields: dict[str, object], written: dict[str, str]) -> None:
    console.print(Text(name, style="bold"))
    for key, value in fields.items():
        text = written.get(key, str(value))
        if key != "name" and value not in (None, "", ()):
            console.print(Text(f"  {key.replace('_', ' '):<24}", style="dim").append(text, style="not dim"), soft_wrap=True)


def show_formulas(console: Console, formulas: Sequence[Formula]) -> None:
    """Prints name and equation of each formula, by chapter."""
    for i, chapter in enumerate(dict.fromkeys(formula.chapter for formula in formulas)):
        if i:
            console.print()
        console.print(Text(chapter, style="bold"))
        entries = [formula for formula in formulas if formula.chapter == chapter]
        room = console.width - max(len(entry.name) + len(entry.text) for entry in entries)
        rows: list[list[Cell]] = [
            [entry.name, Text(entry.text, style="cyan"), Text(entry.summary if room > LEAST_ROOM else "", style="dim")] for entry in entries
        ]
        console.print(columns(rows, "lll", console.width, indent=1))


def show_formula(console: Console, formula: Formula, values: dict[str, int], result: int | None) -> None:
    """Prints a formula with letters, source and limits; with `values` also the numbers put in and the result."""
    console.print(Text(formula.name, style="bold").append(f"  {formula.summary}", style="not bold"), soft_wrap=True)
    console.print(Text("  formula  ", style="dim").append(formula.text, style="not dim cyan"), soft_wrap=True)
    if result is not None:
        console.print(Text("  numbers  ", style="dim").append(put_in(formula.text, values), style="not dim"), soft_wrap=True)
        in_gib = f" = {result / GiB:,.3f} GiB" if formula.unit == "bytes" else ""
        console.print(Text("  result   ", style="dim").append(f"{result:,} {formula.unit}{in_gib}", style="not dim bold"))
    letters: list[list[Cell]] = [
        [Text(letter, style="dim"), f"{values[letter]:,}" if letter in values else "", meaning] for letter, meaning in formula.letters.items()
    ]
    console.print(columns(letters, "lrl", console.width, indent=2))
    console.print(Text("  source   ", style="dim").append(str(formula.citation), style="not dim"), soft_wrap=True)
    if formula.wrong_when:
        console.print(Text("  caveats  ", style="dim").append(formula.wrong_when, style="not dim yellow"), soft_wrap=True)


def _params(row: ModelRow) -> str:
    params = row.params_meta or row.params_published
    return count(params) if params else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:g}"
