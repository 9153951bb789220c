"""The rows in which two sides differ, each with its reason, and the rest that no row explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from everybyte.basics.record import Record
from everybyte.ledger.entry import Category
from everybyte.measure.comparing.side import Amount, Detail, Key, Side

Reason = Literal[
    "missing here", "missing there", "lives at other times here", "lives at other times there", "other count", "other size", "not told here", "not told there"
]
"""Why a row differs. `here` is the first side, `there` the second."""
BLOCK = 512
"""The allocator rounds to so many bytes: layers of one size may differ by it."""
NEAR = 1.5
"""Sizes within this factor are told apart in percent."""
LEAST_PERCENT = 0.1
COMPARED = ("peak.allocated", "peak.reserved", "peak.device", "static.allocated", "weights", "kv.pool", "kv.bytes", "kv.swa_bytes", "state.bytes")
"""Figures in bytes that two sides may both have."""
COMPARED_MORE = ("activation_peak", "non_torch", "cuda_graphs", "compute_buffer", "host.bytes")


class Row(Record, frozen=True):
    """A category and place, or a figure, in which the sides differ."""

    category: Category | None
    """None where figures are compared."""
    place: str
    """The place, or the figure's name."""
    here: int
    there: int
    reason: Reason
    detail: str = ""
    """What the reason rests on: phases, counts, sizes."""

    @property
    def more(self) -> int:
        """How much more is here."""
        return self.here - self.there


class Comparison(Record, frozen=True, eq=False):
    """What two sides have in common, and what not."""

    detail: Detail
    here: int
    there: int
    """Bytes at the peak of both."""
    rows: tuple[Row, ...]
    """The largest difference first."""
    unexplained: int
    """Bytes at the second side's peak that lie in no row with a name."""
    figures: int = 0
    """How many figures both know, where figures are compared."""

    @property
    def share(self) -> float:
        """The unexplained part of the second side's peak, from 0 to 1."""
        return self.unexplained / self.there if self.there else 0.0

    @property
    def distance(self) -> int:
        """Bytes in which the sides differ, rows that are too large and too small added up; what a side does not tell is no difference."""
        return sum(abs(row.more) for row in self.rows if not row.reason.startswith("not told"))


def compared(here: Side, there: Side) -> Comparison:
    """Row by row as finely as both sides tell: by place, by category, or by figure."""
    if "figure" in (here.detail, there.detail):
        return _by_figure(here, there)
    fine = here.detail == there.detail == "place"
    left, right = (side.rows if fine else side.by_category() for side in (here, there))
    rows = [_row(key, left.get(key), right.get(key), here, there, fine=fine) for key in dict.fromkeys([*left, *right]) if _differs(left, right, key)]
    named = sum(amount.bytes for key, amount in right.items() if key.category != "unknown")
    detail: Detail = "place" if fine else "category"
    return Comparison(detail, here.total, there.total, _sorted(rows), max(there.total - named, 0))


def _differs(left: Mapping[Key, Amount], right: Mapping[Key, Amount], key: Key) -> bool:
    return (left[key].bytes if key in left else 0) != (right[key].bytes if key in right else 0)


def _sorted(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (-abs(row.more), row.category or "", row.place)))


def _row(key: Key, left: Amount | None, right: Amount | None, here: Side, there: Side, *, fine: bool) -> Row:
    reason, detail = _reason(key, left, right, here, there, fine=fine)
    return Row(key.category, key.place, left.bytes if left else 0, right.bytes if right else 0, reason, detail)


def _reason(key: Key, left: Amount | None, right: Amount | None, here: Side, there: Side, *, fine: bool) -> tuple[Reason, str]:
    if left is None or right is None:
        lacking, word = (here, "here") if left is None else (there, "there")
        if key.category in lacking.silent:
            return f"not told {word}", ""  # type: ignore[return-value]  # a word of Reason
        if fine and key in lacking.elsewhere:
            return f"lives at other times {word}", ", ".join(lacking.elsewhere[key])  # type: ignore[return-value]  # a word of Reason
        return f"missing {word}", ""  # type: ignore[return-value]
    if fine and left.pieces != right.pieces and abs(left.bytes / left.pieces - right.bytes / right.pieces) <= BLOCK:
        return "other count", f"{left.pieces} and {right.pieces} layers"
    return "other size", times(left.bytes, right.bytes)


def times(left: int, right: int) -> str:
    """How much larger the first is: `2.5 times`, `+3.1 %`; empty where the second is nothing."""
    if right <= 0 or left <= 0:
        return ""
    if not 1 / NEAR < left / right < NEAR:
        return f"{left / right:.3g} times"
    share = 100 * (left / right - 1)
    return f"{share:+.1f} %" if abs(share) >= LEAST_PERCENT else f"by less than {LEAST_PERCENT} %"


def _by_figure(here: Side, there: Side) -> Comparison:
    """Figures that both know. What is more at a peak there than the first side has is unexplained: figures alone do not say where it lies."""
    shared = [name for name in (*COMPARED, *COMPARED_MORE) if name in there.figures and name in here.figures]
    rows = []
    for name in shared:
        left, right = int(here.figures[name]), int(there.figures[name])
        if left != right:
            rows.append(Row(None, name, left, right, "other size", times(left, right)))
    peaks = [(int(here.figures[name]), int(there.figures[name])) for name in shared if name.startswith("peak.")]
    first = peaks[0] if peaks else (here.total, there.total)
    return Comparison("figure", *first, _sorted(rows), max(first[1] - first[0], 0) if peaks else 0, len(shared))
