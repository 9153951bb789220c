"""Runs the cases of a grid: what a file of rows holds is not worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from everybyte.grid.cases import Case
from everybyte.grid.cluster import on_cluster
from everybyte.grid.kept import ENDING, Kept
from everybyte.grid.local import cores, on_cores
from everybyte.grid.rows import ERROR, Row
from everybyte.grid.table import check_table, write_table

Tell = Callable[[int, int], None]


class Grid(NamedTuple):
    """The rows in the order of their cases, and how many of them a file held already."""

    rows: list[Row]
    known: int

    @property
    def failed(self) -> int:
        """Rows without an answer."""
        return sum(row[ERROR] is not None for row in self.rows)


def run_grid(
    cases: Sequence[Case], to: str | None = None, *, workers: int | None = None, scheduler: str | None = None, tell: Tell = lambda done, of: None
) -> Grid:
    """Answers all cases, on `workers` cores or on the cluster of `scheduler`, and writes the table `to`. Raises BadInput for a file that cannot be
    written and for a scheduler that is not there; what is wrong with a combination is its row."""
    if to is not None:
        check_table(to)
    with Kept(to + ENDING) if to is not None else nullcontext() as kept:
        rows = {case.key: kept.rows[case.key] for case in cases if case.key in kept.rows} if kept is not None else {}
        known = len(rows)
        todo = list({case.key: case for case in cases if case.key not in rows}.values())
        tell(known, len(cases))
        for case, row in _answered(todo, workers, scheduler):
            rows[case.key] = row
            if kept is not None and row["seconds"] is not None:  # a case that ended its process is tried again at the next start
                kept.keep(case.key, row)
            tell(len(rows), len(cases))
        found = [rows[case.key] for case in cases]
        if to is not None:
            write_table(found, to)
    return Grid(found, known)


def _answered(cases: Sequence[Case], workers: int | None, scheduler: str | None) -> Iterable[tuple[Case, Row]]:
    if not cases:
        return ()
    return on_cluster(cases, scheduler) if scheduler is not None else on_cores(cases, min(workers or cores(), len(cases)))
