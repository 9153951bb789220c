"""The step over its phases as small bars, two to a line, so that the answer stays one screen."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import RankAnswer
from everybyte.ledger.by_category import living
from everybyte.ledger.entry import Phase
from everybyte.report.bar import FULL, glyph
from everybyte.report.columns import wrap
from everybyte.report.language import said
from everybyte.report.palette import STACK
from everybyte.report.words import CATEGORY_STYLE, amount, spoken

LEAST, MOST = 8, 30
"""Cells of a bar. On a narrower screen the sizes stand in a line without bars."""
GAP = 3
"""Spaces between two bars of a line."""
PEAK = " peak"


def phase_bars(console: Console, rank: RankAnswer, unit: str) -> Text:
    """Each phase with a bar of what it allocates, by category, as long as its share of the peak."""
    names = max(cell_len(spoken(phase.name)) for phase in rank.phases)
    sizes = max(len(amount(phase.allocated, unit, 1)) for phase in rank.phases)
    room = (console.width - 1 - GAP) // 2 - names - sizes - cell_len(said(PEAK)) - 2
    if room < LEAST:
        return _in_a_line(rank, unit, console.width)
    cells = [_phase(console, rank, phase.name, min(room, MOST), (names, sizes), unit) for phase in rank.phases]
    half = -(-len(cells) // 2)
    rows = [Text(said("All phases"), style="dim")]
    for left, right in zip(cells[:half], [*cells[half:], Text()], strict=False):
        row = Text(" ").append_text(left)
        if right.plain:
            row.append(" " * GAP).append_text(right)
        row.rstrip()
        rows.append(row)
    return Text("\n").join(rows)


def _phase(console: Console, rank: RankAnswer, phase: Phase, width: int, widths: tuple[int, int], unit: str) -> Text:
    top = max(total.allocated for total in rank.phases)
    parts = living(rank, phase, outside=False)
    text = Text(set_cell_size(spoken(phase), widths[0] + 1), style="dim")
    running = drawn = 0
    for category in (category for category in STACK if category in parts):
        running += parts[category]
        upto = round(width * running / top) if top else 0
        text.append(glyph(console, FULL) * (upto - drawn), style=f"not dim {CATEGORY_STYLE[category]}")
        drawn = upto
    text.append(" " * (width - drawn))
    size = amount(sum(parts.values()), unit, 1)
    text.append(f" {size:>{widths[1]}}", style="not dim")
    peak = said(PEAK)
    return text.append(peak if phase == rank.peak_phase else " " * cell_len(peak), style="not dim bold")


def _in_a_line(rank: RankAnswer, unit: str, width: int) -> Text:
    phases = " · ".join(f"{spoken(phase.name)} {amount(phase.allocated, unit, 1)}" for phase in rank.phases)
    return wrap(Text(f"All phases: {phases}", style="dim"), width, indent=1)
