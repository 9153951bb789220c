"""Categories from stacks, sizes and lives, against what the tracer knows of the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from tests.trace.changed_steps import CHANGES, CONFIGS, job_of
from tests.trace.real_stacks import RealSnapshot

from everybyte.measure.snapshots.categories import Sorter
from everybyte.measure.snapshots.timeline import history_of
from everybyte.trace.jobs.program import asked_of
from everybyte.trace.run import run

pytestmark = pytest.mark.usefixtures("compiler")

LEAST_SHARE = 0.97
ALIKE = ("larger batch", "shorter sequences")
"""Changes that only move sizes."""


def shares(cases: Iterable[tuple[str, str]]) -> tuple[float, Counter[str]]:
    """(share of live bytes that are sorted right, bytes by mistake), at the peak and between two steps of all cases."""
    right = total = 0
    wrong: Counter[str] = Counter()
    for family, name in cases:
        real = RealSnapshot(run(asked_of(job_of(family, CHANGES[name]))))
        history = history_of(real.memory)
        sorter = Sorter(history)
        for position in (history.peak_at, history.events - 1):
            for life in history.at(position):
                true, found = real.true_category(life), sorter.category(life)
                total += life.size
                right += life.size * (true == found)
                wrong[f"{family} {name}: {true} sorted as {found}"] += life.size * (true != found)
    return right / total, wrong


def test_categories_of_a_traced_step() -> None:
    """Of a Llama's step with autocast, at least 97 % of the live bytes are sorted right."""
    share, wrong = shares([("llama", "autocast")])
    assert share >= LEAST_SHARE, wrong.most_common(5)


@pytest.mark.long
def test_categories_of_many_traced_steps() -> None:
    """Of steps of five families with eight recipes, at least 97 % of the live bytes are sorted right."""
    share, wrong = shares([(family, name) for family in CONFIGS for name in CHANGES if name not in ALIKE])
    assert share >= LEAST_SHARE, wrong.most_common(5)
