"""The answer for a person: one screen, the verdict first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.report.bar import bar
from everybyte.report.columns import Cell, columns, wrap
from everybyte.report.language import said
from everybyte.report.phase_bars import phase_bars
from everybyte.report.sums import Group, by_category, judged, needed, places
from everybyte.report.words import CATEGORY_STYLE, COUNTS, SPEEDS, TORCH_FIGURES, amount, count, figure_meaning, short_size, speed_text, spoken

AXES = ("tp", "cp", "ulysses", "pp", "ep", "etp", "dp_replicate", "dp_shard")
MOST_PLACES = 3
MOST_ADVICE = 3
VERDICT_STYLE = {"fits": "bold green", "close": "bold yellow", "does not fit": "bold red"}
MOST_LINES = 6
"""Assumptions, warnings and ranks beyond these are counted, not listed, so that the screen stays one screen."""


def show_answer(console: Console, answer: Answer, unit: str = "GiB") -> None:
    """Prints the screen."""
    for i, part in enumerate(screen(console, answer, unit)):
        if i:
            console.print()
        console.print(part, soft_wrap=True)


def screen(console: Console, answer: Answer, unit: str = "GiB") -> Iterator[Text]:
    """The parts of the screen, from the verdict down to what it rests on."""
    width = console.width
    caveats = [wrap(Text(caveat, style="bold yellow"), width) for caveat in answer.caveats]
    yield Text("\n").join([wrap(verdict(answer, unit), width), *caveats, bar(console, answer, unit)])
    yield heading(answer, width)
    if served := capacity_line(answer):
        yield wrap(served, width)
    if fast := speed_line(answer):
        yield wrap(fast, width)
    yield figures(answer, unit, width)
    if len(answer.ranks) > 1:
        yield ranks(answer, unit, width)
    yield categories(console, answer.worst, unit)
    if answer.warnings:
        yield notes("Warnings", answer.warnings, "bold yellow", width)
    if answer.assumptions:
        yield notes("Assumed", answer.assumptions, "bold", width)
    if answer.advice:
        yield advice(answer.advice, unit, width)


def heading(answer: Answer, width: int) -> Text:
    """Name, model and the settings that shape the answer, in two or three lines."""
    title = Text(answer.name or answer.model.name, style="bold")
    lines = [title, Text(" · ".join(model_facts(answer))), Text(" · ".join(settings_in_short(answer.job)))]
    return Text("\n").join(wrap(line, width) for line in lines if line.plain)


def model_facts(answer: Answer) -> list[str]:
    """The model, where the answer has another name, and its parameters."""
    model = answer.model
    facts = [model.name] if answer.name else []
    facts.append(f"{count(model.params)} parameters")
    if model.active_params != model.params:
        facts.append(f"{count(model.active_params)} active")
    if model.trainable_params and model.trainable_params != model.params:
        facts.append(f"{count(model.trainable_params)} trained")
    return facts


def settings_in_short(job: dict[str, Any]) -> Iterator[str]:
    """The settings of the job that a reader looks for first."""
    train, serve = job.get("train"), job.get("serve")
    if train:
        yield str(train.get("framework", "training"))
        if train.get("seq_len"):
            yield f"{train.get('micro_batch', 1)} × {train['seq_len']:,} tokens"
        for key, head in (("precision", ""), ("optimizer", "name"), ("adapter", "kind"), ("quantization", "format"), ("recompute", "policy")):
            value = train.get(key)
            word = value.get(head) if isinstance(value, dict) else value
            if word:
                yield (
                    f"{'no' if word == 'none' else word} activation checkpointing"
                    if key == "recompute"
                    else str(word) + (f" r={value['rank']}" if isinstance(value, dict) and value.get("rank") else "")
                )
        if train.get("attention"):
            yield str(train["attention"])
        if train.get("sharding") not in (None, "none"):
            yield str(train["sharding"])
    elif serve:
        yield str(serve.get("engine", "serving"))
        weights = serve.get("weights")
        if weights:
            yield str(weights.get("format", "") if isinstance(weights, dict) else weights)
        if serve.get("context"):
            many = f"{serve['sequences']:,} × " if serve.get("sequences") else ""
            yield f"{many}{serve['context']:,} tokens"
        yield from _axes(serve.get("mesh") or {})
    gpus = job.get("hardware", {}).get("gpus", 1)
    if gpus > 1:
        yield f"{gpus:,} GPUs"
    yield from _axes((train or {}).get("mesh") or {})


def _axes(mesh: dict[str, Any]) -> Iterator[str]:
    """`tp 8 × pp 16 × dp_shard 16`: the axes that are wider than one rank."""
    wide = [f"{name} {mesh[name]}" for name in AXES if mesh.get(name, 1) > 1]
    if wide:
        yield " × ".join(wide)


def verdict(answer: Answer, unit: str) -> Text:
    """`needs 21.4 GiB of 23.6: fits, 2.2 GiB left`."""
    figure, bytes_needed = needed(answer)
    if answer.hardware is None or answer.fits is None:
        text = Text(f"needs {short_size(bytes_needed, unit)}", style="bold")
        text.append(f" ({figure}). Name a GPU for a verdict: hardware.gpu in the job, --gpu on the command line.", style="")
        return text
    text = Text(f"needs {short_size(bytes_needed, unit)} of {amount(answer.hardware.capacity, unit, 1)}: ", style="bold")
    text.append(judged(answer, unit=unit), style=VERDICT_STYLE[answer.verdict or "fits"])
    each = "" if sum(rank.gpus for rank in answer.ranks) <= 1 else "each "
    return text.append(f"  ({each}{answer.hardware.gpu})", style="")


def advice(rows: Sequence[Mapping[str, Any]], unit: str, width: int, *, applies: bool = True) -> Text:
    """The best lines of advice, each with the flags that apply it, what is needed then, and its price."""
    lines = [Text("What would make it fit", style="bold")]
    for i, row in enumerate(rows[:MOST_ADVICE]):
        line = Text.assemble(f" {i + 1}. ", (row["flags"], "bold"))
        then = row["verdict"] if row["fits"] else "still does not fit"
        line.append(f"  {short_size(row['peak.device'], unit)}, {said(then)}; {said(row['price'])}")
        lines.append(wrap(line, width, indent=4))
    if applies:
        lines.append(wrap(Text(" --apply N answers the job with line N applied", style="dim"), width, indent=1))
    return Text("\n").join(lines)


def capacity_line(answer: Answer) -> Text | None:
    """`KV cache: 412,408 tokens, max concurrency 3.1x at 131,072 tokens per sequence.` None where nothing is served, or the pool is not known."""
    found, context = answer.figures, (answer.job.get("serve") or {}).get("context")
    tokens, at_once = found.get("kv.tokens"), found.get("kv.concurrency")
    if tokens is None or at_once is None or not context:
        return None
    text = Text.assemble("KV cache: ", (f"{tokens:,} tokens", "bold"), ", max concurrency ")
    text.append(f"{at_once:,.1f}x", style="bold").append(f" at {context:,} tokens per sequence")
    return text.append(".")


MOST_TERMS = 3


def speed_line(answer: Answer) -> Text | None:
    """`Speed: 1.42 s a step, 5,760/s per GPU, 412 TFLOP/s (41 % of peak). Most of it: matrix products 61 %, attention 14 %.` None without figures of speed."""
    found = answer.figures
    if not answer.time:
        return None
    text = Text("Speed: ")
    if "step.time_s" in found:
        text.append(speed_text("step.time_s", found["step.time_s"]), style="bold").append(" a step, ")
        text.append(f"{found['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU", style="bold")
        text.append(f", {speed_text('tflops_per_gpu', found['tflops_per_gpu'])} ({speed_text('mfu', found['mfu'])} of the 16-bit peak)")
    else:
        text.append(f"{found['decode.tokens_per_s']:,.0f} tokens/s per request", style="bold")
        if "decode.batch_tokens_per_s" in found:
            text.append(f", {found['decode.batch_tokens_per_s']:,.0f} tokens/s of all requests")
        text.append(f", first token after {speed_text('ttft_s', found['ttft_s'])}")
    total = sum(term.seconds for term in answer.time)
    most = sorted(answer.time, key=lambda term: -term.seconds)[:MOST_TERMS]
    shares = ", ".join(f"{said(term.name)} {100 * term.seconds / total:.0f} %" for term in most)
    return text.append(f". Most of a step: {shares}.", style="dim")


def figures(answer: Answer, unit: str, width: int) -> Text:
    """The figures with their ranges and meaning; torch's three stand one below the other and are not added."""
    rows: list[list[Cell]] = [[Text(word, style="dim") for word in ("figure", unit, "90 % interval" if answer.range else "", "")]]
    names = [*(name for name in TORCH_FIGURES if name in answer.figures), *(name for name in answer.figures if name not in TORCH_FIGURES)]
    for name in names:
        between = "" if name not in answer.range else interval_text(name, answer.range[name], unit)
        rows.append([name, figure_text(name, answer.figures[name], unit), between, Text(figure_meaning(name, answer.job), style="dim")])
    return columns(rows, "lrrl", width, wraps=True)


def interval_text(name: str, ends: tuple[float, float], unit: str) -> str:
    """The ends of an interval; one of no width is said to be exact."""
    low, high = (figure_text(name, end, unit) for end in ends)
    return said("exact") if ends[0] == ends[1] else f"{low} – {high}"


def figure_text(name: str, value: float, unit: str) -> str:
    """A figure without the name of the unit; a count, or bytes of one token, in its own."""
    if name in SPEEDS:
        return speed_text(name, value)
    if name in COUNTS:
        return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
    value = int(value)
    return f"{value:,} B" if name == "kv.bytes_per_token" else amount(value, unit)


def ranks(answer: Answer, unit: str, width: int) -> Text:
    """The kinds of rank, the one that needs most first."""
    rows: list[list[Cell]] = [[Text(word, style="dim") for word in ("rank type", "GPUs", "allocated", "device", "peak in")]]
    order = sorted(answer.ranks, key=lambda rank: -max((rank.figures.get(name, 0) for name in TORCH_FIGURES), default=0))
    for rank in order[:MOST_LINES]:
        sizes = (amount(rank.figures[name], unit) if name in rank.figures else "" for name in ("peak.allocated", "peak.device"))
        rows.append([rank.label, str(rank.gpus), *sizes, spoken(rank.peak_phase)])
    if len(order) > MOST_LINES:
        rows.append([Text(f"and {len(order) - MOST_LINES} more rank types", style="dim")])
    return columns(rows, "lrrrl", width)


def categories(console: Console, rank: RankAnswer, unit: str) -> Text:
    """Rows by category at the peak, each with its biggest places, and the phases as small bars."""
    groups = by_category(rank)
    total = sum(group.bytes for group in groups)
    title = Text.assemble(("At the peak, in ", "bold"), (spoken(rank.peak_phase), "bold underline"), (f", {unit}", "bold"))
    rows: list[list[Cell]] = []
    for group in groups:
        name = Text(spoken(group.category), style=CATEGORY_STYLE[group.category])
        share = f"{100 * group.bytes / total:.0f} %" if group.bytes * 100 >= total else "<1 %"
        rows.append([name, amount(group.bytes, unit), share, Text(_places(group, unit), style="dim")])
    rows.append([Text("allocated", style="bold"), Text(amount(total, unit), style="bold"), ""])
    return Text("\n").join([title, columns(rows, "lrrl", console.width, indent=1), phase_bars(console, rank, unit)])


def _places(group: Group, unit: str) -> str:
    found = places(group.entries)
    shown = [f"{name} {amount(size, unit)}" for name, size in found[:MOST_PLACES]]
    more = len(found) - MOST_PLACES
    return " · ".join([*shown, f"{more} more"] if more > 0 else shown)


def notes(title: str, lines: tuple[str, ...], style: str, width: int) -> Text:
    """Remarks below a title; beyond a few they are counted."""
    remarks = [wrap(Text(f" - {said(line)}"), width, indent=3) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        remarks.append(Text(f"   and {len(lines) - MOST_LINES} more (--json has all)", style="dim"))
    return Text("\n").join([Text(title, style=style), *remarks])
