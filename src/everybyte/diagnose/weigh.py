"""All rules, asked one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.rules import (
    engine_share,
    fragmentation,
    full,
    imbalance,
    limit,
    load,
    other_process,
    place,
    quadratic,
    report_words,
    sequence,
    steps,
    wording,
)
from everybyte.diagnose.suspicion import Suspicion, ranked

MODULES = (
    sequence,
    wording,
    place,
    other_process,
    fragmentation,
    limit,
    quadratic,
    load,
    engine_share,
    steps,
    imbalance,
    report_words,
    full,
)
RULES: tuple[Callable[[Evidence], Iterator[Suspicion]], ...] = tuple(module.suspect for module in MODULES)


def causes_of(e: Evidence) -> tuple[Suspicion, ...]:
    """Every cause that something speaks for, the likeliest first; `unknown` where nothing does."""
    found = ranked(one for rule in RULES for one in rule(e))
    return found or (Suspicion("unknown", 0.3, "nothing in the log decides"),)
