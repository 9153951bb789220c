"""Rows of the ledger of time, and their sum."""

from __future__ import annotations

from everybyte.basics.record import Record


class Term(Record, frozen=True):
    """One part of a step: what of it cannot be hidden behind other work. All terms of a step add up to its length."""

    name: str
    seconds: float
    formula: str
    source: str


class TimeLedger(Record, frozen=True):
    """The terms of one training step or one decoded token."""

    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        """Length of the step."""
        return sum(term.seconds for term in self.terms)

    @property
    def dominant(self) -> Term:
        """The term that takes most."""
        return max(self.terms, key=lambda term: term.seconds)
