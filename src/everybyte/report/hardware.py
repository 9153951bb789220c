"""Which GPUs hold a job and at what price, and what a machine can do, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.plan.hardware.offers import Offer
from everybyte.plan.hardware.owned import BreakEven
from everybyte.plan.hardware.survey import HOUR_S, Row, Survey
from everybyte.plan.hardware.tiers import Tier
from everybyte.report.catalogue import show_table
from everybyte.report.columns import Cell, columns, wrap

MOST_ROWS = 12
MOST_NAMES = 8
DAY_H = 24
PRICES = "Prices as the sources stated them on their date; they change, and are no offers of today."


def show_survey(console: Console, found: Survey, *, everything: bool = False, tokens: int | None = None, bought: BreakEven | None = None) -> None:
    """Prints the GPUs that hold the job with what they cost, then those without a price, and why the others do not do."""
    rented = [row for row in found.rows if row.offer is not None]
    unpriced = [row for row in found.rows if row.offer is None]
    console.print(Text(f"{found.job.name or _model_name(found)}: {_counted(len(found.rows), 'kind of GPU holds', 'kinds of GPU hold')} it", style="bold"))
    if rented:
        _show_rows(console, rented if everything else rented[:MOST_ROWS], tokens)
        if not everything and len(rented) > MOST_ROWS:
            _say(console, f"and {len(rented) - MOST_ROWS} more with a price; --all shows them", "dim")
        _say(console, f"{PRICES} {_dates(rented)}", "dim")
    if unpriced:
        console.print(Text("No price in the catalogue", style="bold"))
        _show_rows(console, unpriced, tokens) if everything else _show_grouped(console, unpriced)
    if bought is not None:
        _say(console, _break_even(bought))
    for line in _others(found, everything=everything):
        _say(console, line, "dim")


def _model_name(found: Survey) -> str:
    return found.rows[0].holding.answer.model.name if found.rows and found.rows[0].holding.answer else "the job"


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _show_rows(console: Console, rows: Sequence[Row], tokens: int | None) -> None:
    """A table; columns of which nothing is known are left out."""
    cells = [_cells(row, tokens) for row in rows]
    titles = list(cells[0])
    kept = [title for title in titles if any(row[title] for row in cells)]
    table: list[Sequence[Cell]] = [[row[title] for title in kept] for row in cells]
    head: Sequence[Cell] = [Text(title, style="bold") for title in kept]
    justify = "".join("l" if title in ("GPU", "from") else "r" for title in kept)
    console.print(columns([head, *table], justify, console.width, wraps=True))


def _cells(row: Row, tokens: int | None) -> dict[str, str]:
    holding, offer, spot = row.holding, row.offer, row.spot
    run = row.usd_per_hour * tokens / (row.tokens_per_s * HOUR_S) if tokens and row.tokens_per_s and row.usd_per_hour is not None else None
    return {
        "GPU": holding.gpu.name,
        "GPUs": f"{holding.gpus:,}",
        "GiB each": f"{(holding.needed or 0) / GiB:.1f}/{holding.gpu.capacity / GiB:.1f}",
        "fits": _fits(holding.answer),
        "tokens/s": f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "",
        "per hour": _money(offer.per_hour, offer) if offer is not None else "",
        "spot": _money(spot.spot_per_hour, spot) if spot is not None else "",
        "per M tokens": f"${row.usd_per_million_tokens:,.2f}" if row.usd_per_million_tokens is not None else "",
        "run": f"${run:,.0f}" if run is not None else "",
        "from": _source(offer) if offer is not None else "",
    }


def _fits(answer: Answer | None) -> str:
    if answer is None or answer.verdict == "fits" or answer.chance is None:
        return "yes"
    return f"close, {answer.chance:.0%}"


def _money(amount: float | None, offer: Offer) -> str:
    sign = "$" if offer.instance.currency == "USD" else f"{offer.instance.currency} "
    return "" if amount is None else f"{sign}{amount:,.2f}"


def _source(offer: Offer) -> str:
    number = f"{offer.number} x " if offer.number > 1 else ""
    return f"{number}{offer.instance.provider} {offer.instance.name}"


def _dates(rows: Sequence[Row]) -> str:
    """The days that the prices are of."""
    dates = sorted(row.offer.instance.price_date for row in rows if row.offer is not None and row.offer.instance.price_date)
    undated = sorted({row.offer.instance.provider for row in rows if row.offer is not None and not row.offer.instance.price_date})
    span = f"They are of {dates[0]} to {dates[-1]}" if dates else "They have no date"
    return span + (f"; those of {' and '.join(undated)} have no date." if dates and undated else ".")


def _show_grouped(console: Console, rows: Iterable[Row]) -> None:
    by_count: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row.holding.gpus or 0, -row.holding.gpu.launch_year, row.holding.gpu.capacity)):
        by_count.setdefault(row.holding.gpus or 0, []).append(row.holding.gpu.name)
    for gpus, names in by_count.items():
        _say(console, f"{gpus:,}: {_named(names)}")


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _others(found: Survey, *, everything: bool) -> Iterable[str]:
    if found.too_small:
        names = [gpu.name for gpu in found.too_small]
        yield f"Not even {found.most:,} hold it: {', '.join(names) if everything else _named(names)}"
    for why, gpus in found.refused.items():
        yield f"Refused on {_named(gpus)}: {why}"
    if found.not_supported:
        vendors = ", ".join(f"{vendor} ({number})" for vendor, number in found.not_supported.items())
        yield f"{_software(found.job)} does not run, or is not answered, on accelerators of {vendors}"


def _software(job: Job) -> str:
    word = job.train.framework if job.train is not None else job.serve.engine if job.serve is not None else None
    return word or "PyTorch"


def _break_even(found: BreakEven) -> str:
    if found.hours is None:
        return f"Buying never pays: the electricity alone costs ${found.power_per_hour:,.2f} an hour, the rent ${found.rent_per_hour:,.2f}"
    pays = f"Buying for ${found.price:,.0f} pays after {found.hours:,.0f} hours of use ({found.hours / DAY_H:,.0f} days)"
    return f"{pays}: rent ${found.rent_per_hour:,.2f} an hour, electricity ${found.power_per_hour:,.2f}"


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(wrap(Text(f"  {text}", style=style), console.width, indent=4), soft_wrap=True)


def show_tiers(console: Console, name: str, found: Sequence[Tier], note: str = "") -> None:
    """Prints for each method the largest model that fits the machine."""
    console.print(Text(f"{name}: the largest model that fits", style="bold"))
    rows = [[tier.method, tier.model or "none of the row", _used(tier)] for tier in found]
    show_table(console, ("method", "model", "GiB per GPU"), rows, "llr")
    if note:
        _say(console, note, "dim")


def _used(tier: Tier) -> str:
    return "" if tier.answer is None else f"{max(rank.figures['peak.device'] for rank in tier.answer.ranks) / GiB:.1f}"


def survey_object(found: Survey, tokens: int | None, bought: BreakEven | None) -> dict[str, Any]:
    """The survey as JSON: sizes in bytes, prices for all GPUs of a row together in the currency beside them."""
    return {
        "fits": bool(found.rows),
        "prices": PRICES,
        "rows": [_row_object(row, tokens) for row in found.rows],
        "too_small": [gpu.name for gpu in found.too_small],
        "refused": found.refused,
        "not_supported": found.not_supported,
        "most": found.most,
        "break_even": bought._asdict() if bought is not None else None,
    }


def _row_object(row: Row, tokens: int | None) -> dict[str, Any]:
    holding = row.holding
    answer = holding.answer
    return {
        "gpu": holding.gpu.name,
        "gpus": holding.gpus,
        "peak.device": holding.needed,
        "capacity": holding.gpu.capacity,
        "verdict": answer.verdict if answer is not None else None,
        "chance": answer.chance if answer is not None else None,
        "settings": dict(holding.taken),
        "tokens_per_s": row.tokens_per_s,
        "usd_per_hour": row.usd_per_hour,
        "usd_per_million_tokens": row.usd_per_million_tokens,
        "hours": tokens / (row.tokens_per_s * HOUR_S) if tokens and row.tokens_per_s else None,
        "offers": [_offer_object(offer) for offer in row.offers],
    }


def _offer_object(offer: Offer) -> dict[str, Any]:
    one = offer.instance
    return {
        "provider": one.provider,
        "instance": one.name,
        "number": offer.number,
        "per_hour": offer.per_hour,
        "spot_per_hour": offer.spot_per_hour,
        "currency": one.currency,
        "region": one.region,
        "price_date": one.price_date or None,
        "price_source": one.price_source,
        "confidence": one.confidence,
    }


def tiers_object(found: Sequence[Tier]) -> list[dict[str, Any]]:
    """Tiers as JSON."""
    return [{"method": tier.method, "model": tier.model, "figures": tier.answer.figures if tier.answer is not None else None} for tier in found]
