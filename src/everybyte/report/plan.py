"""Ranked layouts, for people and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.job import Job, job_to_dict
from everybyte.plan.layouts.search import Found, Plan, front
from everybyte.report.catalogue import show_table
from everybyte.report.columns import Cell, columns, wrap
from everybyte.report.language import said
from everybyte.report.words import speed_text

MOST_REASONS = 6


def show_plan(console: Console, job: Job, found: Found, gpus: tuple[int, ...], global_batch: int) -> None:
    """Prints the table of layouts, why the neighbours are worse, and what became of the rest."""
    where = " or ".join(f"{n:,}" for n in gpus)
    gpu = job.hardware.gpu if job.hardware else ""
    model = job.model if isinstance(job.model, str) else job.name or "the model"
    title = f"{model} on {where} × {gpu}, {global_batch:,} sequences a step: {found.considered:,} layouts"
    console.print(wrap(Text(title, style="bold"), console.width), soft_wrap=True)
    if not found.plans:
        _show_nearest(console, found)
    else:
        _show_table(console, found, several=len(gpus) > 1)
        for line in _neighbours(found.plans):
            _say(console, line)
    _show_rejected(console, found)


def _show_table(console: Console, found: Found, *, several: bool) -> None:
    best = front(found.plans)
    titles = ["", *(["GPUs"] if several else []), "step", "90 % interval", "MFU", "GiB left", "USD/M", "layout"]
    rows: list[list[Cell]] = [[Text(title, style="bold") for title in titles]]
    for i, plan in enumerate(found.plans, 1):
        low, high = plan.answer.range.get("step.time_s", (plan.seconds, plan.seconds))
        rows.append(
            [
                f"{i}{'*' if plan in best else ''}",
                *([f"{plan.candidate.gpus:,}"] if several else []),
                Text(speed_text("step.time_s", plan.seconds), style="bold"),
                f"{speed_text('step.time_s', low)} – {speed_text('step.time_s', high)}",
                speed_text("mfu", plan.answer.figures["mfu"]),
                f"{plan.margin / GiB:.1f}",
                f"{plan.usd_per_million_tokens:.2f}" if plan.usd_per_million_tokens is not None else "",
                plan.candidate.layout.said() + (f" (+{plan.variants} like it)" if plan.variants else ""),
            ]
        )
    console.print(columns(rows, "r" * (len(titles) - 1) + "l", console.width, wraps=True))
    _say(console, "* no other is better in time, memory and cost together; USD/M: a million tokens at the lowest price of the catalogue", "dim")
    _say(console, "--explain N shows where the time of a line goes; --pick N --save FILE writes it as a job", "dim")


def _neighbours(plans: tuple[Plan, ...]) -> list[str]:
    """Why not the next: how much slower, and what it leaves."""
    if len(plans) < 2:
        return []
    first, second = plans[0], plans[1]
    slower = 100 * (second.seconds / second.candidate.tokens * second.candidate.gpus / (first.seconds / first.candidate.tokens * first.candidate.gpus) - 1)
    more = (second.margin - first.margin) / GiB
    lines = [f"Line 2 is {slower:.1f} % slower in GPU time and leaves {abs(more):.1f} GiB {'more' if more >= 0 else 'less'}."]
    ends = second.answer.range.get("step.time_s"), first.answer.range.get("step.time_s")
    if ends[0] and ends[1] and ends[0][0] < ends[1][1]:
        lines.append("Their intervals overlap: a few steps of both on the cluster would decide.")
    return lines


def _show_nearest(console: Console, found: Found) -> None:
    if found.nearest is None:
        _say(console, "Nothing fits.")
        return
    short = -found.nearest.margin / GiB
    what = f"{short:.1f} GiB short on the fullest GPU" if short > 0 else "its 90 % interval crosses the card"
    _say(console, f"Nothing fits. The nearest: {found.nearest.candidate.layout.said()}, {what}.")
    _say(console, "More GPUs, a card with more memory, 16-bit gradients and moments, or an adapter would take it.")


def _show_rejected(console: Console, found: Found) -> None:
    reasons = sorted(found.rejected.items(), key=lambda item: -item[1])
    if reasons:
        console.print(Text(f"Not taken ({found.asked:,} asked of the ledger, from the fastest on)", style="bold"))
        for reason, count in reasons[:MOST_REASONS]:
            _say(console, f"{count:,} {reason}", "dim")


def show_time(console: Console, plan: Plan) -> None:
    """Prints the terms of a layout's step."""
    console.print(Text(f"{plan.candidate.layout.said()}: {speed_text('step.time_s', plan.seconds)}", style="bold"))
    terms = sorted(plan.candidate.ledger.terms, key=lambda term: -term.seconds)
    rows = [[said(t.name), speed_text("step.time_s", t.seconds), f"{100 * t.seconds / plan.seconds:.0f} %", t.formula] for t in terms]
    show_table(console, ("term", "time", "share", "formula"), rows, "lrrl")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(wrap(Text(f"  {said(text)}", style=style), console.width, indent=4), soft_wrap=True)


def plan_object(found: Found, gpus: tuple[int, ...], global_batch: int) -> dict[str, Any]:
    """The search as JSON: sizes in bytes, times in seconds."""
    best = front(found.plans)
    return {
        "fits": bool(found.plans),
        "gpus": gpus,
        "global_batch": global_batch,
        "considered": found.considered,
        "asked": found.asked,
        "rejected": found.rejected,
        "plans": [{**_plan_object(plan), "on_front": plan in best} for plan in found.plans],
        "nearest": _plan_object(found.nearest) if found.nearest is not None else None,
    }


def _plan_object(plan: Plan) -> dict[str, Any]:
    return {
        "layout": plan.candidate.layout._asdict(),
        "gpus": plan.candidate.gpus,
        "figures": plan.answer.figures,
        "range": plan.answer.range,
        "headroom": plan.margin,
        "usd_per_million_tokens": plan.usd_per_million_tokens,
        "variants": plan.variants,
        "time": plan.candidate.ledger.terms,
        "job": job_to_dict(plan.candidate.job),
    }
