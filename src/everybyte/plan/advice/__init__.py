"""What would make a job fit: single changes and combinations, each estimated again, the best first."""

from __future__ import annotations

from everybyte.plan.advice.apply import apply
from everybyte.plan.advice.row import Advice
from everybyte.plan.advice.search import advice

__all__ = ["Advice", "advice", "apply"]
