"""A job compared with the snapshot of a traced step in which one setting was changed: every changed row is named, and the setting too."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests.trace.changed_steps import CHANGES, CONFIGS, Outcome, job_of, outcome, traced_side

from everybyte.measure.comparing.side import Side

pytestmark = pytest.mark.usefixtures("compiler")

USUAL = ("larger batch", "autocast", "recompute")
LEAST_SHARE = 0.9
"""Of all cases: those in which each changed row is named."""


@cache
def base(family: str, folder: Path) -> Side:
    """The step without a change, traced once."""
    return traced_side(job_of(family, {}), folder / "base.pickle")


def names_the_setting(found: Outcome, name: str) -> bool:
    """Whether a change that explains as much as any is the one that was made."""
    (key,) = CHANGES[name]
    best = [one for one in found.guilty if one.distance <= found.guilty[0].distance]
    return any(one.key.split(".")[1] == key for one in best)


@pytest.mark.parametrize("name", USUAL)
def test_changed_rows_and_the_setting_are_named(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One setting of a Llama was changed: the comparison names each row that the tracer saw change, and the setting is among those that explain it best."""
    folder = tmp_path_factory.getbasetemp()
    found = outcome("llama", name, base("llama", folder), folder / "changed.pickle")
    assert found.changed
    assert found.names_all
    assert names_the_setting(found, name)


@pytest.mark.long
def test_nine_of_ten_changed_steps_are_wholly_explained(tmp_path: Path) -> None:
    """Of 50 steps of five families with one setting changed, at least 90 % have every changed row named, and as many the setting."""
    outcomes = {(family, name): outcome(family, name, base(family, tmp_path), tmp_path / "changed.pickle") for family in CONFIGS for name in CHANGES}
    whole = [case for case, found in outcomes.items() if found.names_all]
    right = [case for case, found in outcomes.items() if names_the_setting(found, case[1])]
    assert len(outcomes) == 50
    assert len(whole) >= LEAST_SHARE * len(outcomes), sorted(set(outcomes) - set(whole))
    assert len(right) >= LEAST_SHARE * len(outcomes), sorted(set(outcomes) - set(right))
