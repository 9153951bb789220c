"""Plans for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.job import job_to_dict
from everybyte.plan.layouts.clock import WORDS
from everybyte.plan.layouts.layout import chosen
from everybyte.plan.search import Found, Plan
from everybyte.plan.whole import Planned
from everybyte.plan.why import deciding, neighbours
from everybyte.report.columns import Cell, columns, wrap

MOST_REASONS = 8
ADAM = 16
"""Bytes of a parameter in mixed precision with Adam: 2 weight, 2 gradient, 4 master copy, 8 moments (Rajbhandari et al. 2020, section 3.1)."""


def show_plan(console: Console, planned: Planned, *, explained: int = 0) -> None:
    """Prints the ranked plans, the front, what was rejected, and the details of the first `explained`."""
    console.print(Text(_title(planned), style="bold"))
    if planned.plans:
        console.print(_table(planned.plans, console.width))
        _say(console, _sure(planned.found[0]), "dim")
        _front(console, planned)
    else:
        _say(console, _nothing(planned.found))
    for number, plan in enumerate(planned.plans[:explained], start=1):
        _explain(console, planned, number, plan)
    if len(planned.plans) > 1:
        _say(console, f"What would decide between the first two: measure the {deciding(*planned.plans[:2])}.")
    for note in planned.notes:
        _say(console, note)
    for found in planned.found:
        _rejected(console, found)
    for source in dict.fromkeys(rent.source for rent in planned.rents if rent.source):
        _say(console, f"Price: {source}. Prices change, and are no offers of today.", "dim")


def _title(planned: Planned) -> str:
    asked = planned.found[0].asked
    card = asked.card.name if asked.card is not None else "GPU"
    counts = ", ".join(f"{one.asked.gpus:,}" for one in planned.found)
    name = planned.job.name or (planned.job.model if isinstance(planned.job.model, str) else "the model")
    return f"{name} on {counts} x {card}, {asked.global_batch:,} sequences of {asked.seq_len:,} tokens a step"


def _table(plans: Sequence[Plan], width: int) -> Text:
    several = len({plan.layout.gpus for plan in plans}) > 1
    rows = [_cells(number, plan, several=several) for number, plan in enumerate(plans, start=1)]
    kept = [title for title in rows[0] if any(row[title] for row in rows)]
    head: Sequence[Cell] = [Text(title, style="bold") for title in kept]
    body: list[Sequence[Cell]] = [[row[title] for title in kept] for row in rows]
    justify = "".join("l" if title in ("layout", "recompute", "states and what takes time") else "r" for title in kept)
    return columns([head, *body], justify, width, wraps=True)


def _cells(number: int, plan: Plan, *, several: bool) -> dict[str, str]:
    layout, cost = plan.layout, plan.usd_per_million_tokens
    chunks = f" v {layout.virtual}" if layout.virtual > 1 else ""
    return {
        "": f"{number}",
        "GPUs": f"{layout.gpus:,}" if several else "",
        "layout": f"{layout.words}{chunks} mb {layout.micro_batch}",
        "s/step": f"{plan.seconds:.3g}",
        "GiB": f"{plan.memory.peak_device / GiB:.1f}",
        "at most": f"{plan.memory.peak_device_high / GiB:.1f}",
        "$/M": f"{cost:.2f}" if cost is not None else "",
        "recompute": layout.recompute.label,
        "states and what takes time": "; ".join(part for part in (_states(plan), plan.dominates) if part),
    }


def _states(plan: Plan) -> str:
    layout = plan.layout
    parts = [layout.sharding if layout.sharding not in ("none", "distributed-optimizer") else ""]
    parts += [layout.precision, f"{layout.grads} grads" if layout.grads else "", f"{layout.moments} moments" if layout.moments else ""]
    parts += [f"{layout.offload} on host" if layout.offload != "none" else ""]
    return ", ".join(part for part in parts if part)


def _sure(found: Found) -> str:
    """How sure the times are."""
    low, high = found.interval
    return f"9 of 10 measured steps of such models take {low:.2f} to {high:.2f} times as long as predicted; the memory is the ledger's."


def _front(console: Console, planned: Planned) -> None:
    """The plans that are the best for some price of memory, where there are several."""
    if len(planned.front) < 2:
        return
    console.print(Text("Best for less memory or a lower price", style="bold"))
    rows: list[Sequence[Cell]] = []
    for plan in planned.front[:MOST_REASONS]:
        cost = f"${plan.usd_per_million_tokens:.2f}/M" if plan.usd_per_million_tokens is not None else ""
        rows.append([f"{plan.seconds:.3g} s", f"{plan.memory.peak_device_high / GiB:.1f} GiB", cost, _one_line(plan)])
    console.print(columns(rows, "rrrl", console.width, indent=2, wraps=True))


def _one_line(plan: Plan) -> str:
    layout = plan.layout
    chunks = f" v {layout.virtual}" if layout.virtual > 1 else ""
    return f"{layout.words}{chunks} mb {layout.micro_batch}, recompute {layout.recompute.label}" + (f", {_states(plan)}" if _states(plan) else "")


def _explain(console: Console, planned: Planned, number: int, plan: Plan) -> None:
    """Terms of the time, the rank and phase that need most, and the neighbours."""
    console.print(Text(f"{number}. {_one_line(plan)}", style="bold"))
    terms = [f"{WORDS[name]} {value:.3g} s" for name, value in plan.time._asdict().items() if value > 0]
    _say(console, f"  time: {', '.join(terms)}")
    room = plan.memory.margin / GiB
    _say(console, f"  memory: {plan.memory.rank}, {plan.memory.phase}; {room:.1f} GiB left at the upper end of the 90 % interval")
    if plan.alike:
        _say(console, f"  {plan.alike} more of this mesh fit and take at most 1 % longer")
    for one in neighbours(planned.found_of(plan), plan):
        _say(console, f"  why not {one.words}")


def _nothing(found: Sequence[Found]) -> str:
    """What it would take where nothing fits."""
    asked = found[0].asked
    capacity = asked.capacity / GiB
    least = min((one.smallest.peak_device_high for one in found if one.smallest is not None), default=None)
    needed = (
        f"the layout that needs least needs up to {least / GiB:,.1f} GiB of the card's {capacity:.1f} GiB" if least is not None else "no layout is small enough"
    )
    text = f"No layout fits: {needed}."
    if asked.job.train is not None and asked.job.train.adapter is None:
        cards = -(-asked.shape.parameters * ADAM // asked.capacity)
        text += f" Weights, gradients, a master copy and two moments ({ADAM} bytes a parameter) alone fill {cards:,} such cards."
    return f"{text} More GPUs (--gpus), a card with more memory, an adapter or shorter sequences need less; --risk counts on the predicted figure alone."


def _rejected(console: Console, found: Found) -> None:
    head = f"{found.examined:,} legal layouts of {found.asked.gpus:,} GPUs"
    scope = "all were asked" if found.is_complete else "counted as far as the search went; --complete counts all"
    _say(console, f"{head}; rejected ({scope}):", "dim")
    for counts, unit in ((found.too_big, "layouts"), (found.refused, "layouts"), (found.illegal, "meshes")):
        for why, count in counts.most_common(MOST_REASONS):
            _say(console, f"  {count:,} {unit}: {why}", "dim")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(wrap(Text(text, style=style), console.width, indent=4 if text.startswith(" ") else 0), soft_wrap=True)


def plan_object(planned: Planned, explained: int = 0) -> dict[str, Any]:
    """The plans as JSON; each `job` is a whole job file."""
    return {
        "objective": planned.objective,
        "plans": [_plan_object(plan) for plan in planned.plans],
        "front": [_plan_object(plan) for plan in planned.front],
        "neighbours": [[one._asdict() for one in neighbours(planned.found_of(plan), plan)] for plan in planned.plans[:explained]],
        "deciding": deciding(*planned.plans[:2]) if len(planned.plans) > 1 else None,
        "rejected": [_rejected_object(found) for found in planned.found],
        "prices": [rent._asdict() for rent in planned.rents],
        "notes": list(planned.notes),
    }


def _plan_object(plan: Plan) -> dict[str, Any]:
    return {
        "layout": {"gpus": plan.layout.gpus, **chosen(plan.layout)},
        "job": job_to_dict(plan.job),
        "step.time_s": plan.seconds,
        "time": plan.time._asdict(),
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "peak.allocated": plan.memory.peak_allocated,
        "peak.device": plan.memory.peak_device,
        "peak.device.high": plan.memory.peak_device_high,
        "margin": plan.memory.margin,
        "rank": plan.memory.rank,
        "phase": plan.memory.phase,
        "host.bytes": plan.memory.host,
        "usd_per_hour": plan.usd_per_hour,
        "usd_per_million_tokens": plan.usd_per_million_tokens,
        "alike": plan.alike,
    }


def _rejected_object(found: Found) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {"meshes": found.illegal, "memory": found.too_big, "refused": found.refused}
    scope = {"gpus": found.asked.gpus, "examined": found.examined, "ledgers": found.ledgers, "complete": found.is_complete}
    return {**scope, **{name: dict(count) for name, count in counts.items()}}
