"""PyTorch's eight categories of what a snapshot shows: from the stack that made a block, from its size, and from how long it lived.

A stack alone does not tell a gradient from a temporary of backward; its life does. The step's own rhythm gives
the places to look at: the optimizer's allocations and the instants at which backward runs.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections import Counter
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

from everybyte.ledger.entry import Category
from everybyte.measure.snapshots.timeline import Frames, History, Life

Kind = Literal["optimizer", "load", "input", "backward", "loss", "forward", "workspace", "none"]
SAID = re.compile(r"^\w[\w ]*, (parameter|gradient|optimizer_state|activation|input|temporary|autograd_detail|workspace|comm_buffer|kv_cache|state|unknown)$")
"""Snapshots that `everybyte trace` writes say the category in a frame of their own (trace.results.snapshot)."""
LEAST_SHARE_OF_LIFE = 0.5
"""Of the history: what lives as long and was made while a model was loaded, is a parameter."""


@cache
def _signs() -> tuple[tuple[Kind, re.Pattern[str]], ...]:
    rows = tomllib.loads((files(__package__) / "data/frames.toml").read_text(encoding="utf-8"))["sign"]
    return tuple((row["kind"], re.compile(row["pattern"])) for row in rows)


@lru_cache(maxsize=65536)
def _kind_of_frame(place: str) -> Kind:
    return next((kind for kind, pattern in _signs() if pattern.search(place)), "none")


def said(frames: Frames) -> Category | None:
    """The category that the stack itself states."""
    for frame in frames[:3]:
        found = SAID.match(str(frame.get("filename", "")))
        if found:
            category: Category = found.group(1)  # type: ignore[assignment]  # the pattern lists categories
            return category
    return None


def kind_of(frames: Frames) -> Kind:
    """What ran when a block was made: the strongest sign of the stack. A stack without Python frames is autograd's own thread."""
    kinds = [_kind_of_frame(f"{frame.get('filename', '')}:{frame.get('name', '')}") for frame in frames]
    for wanted in ("optimizer", "backward", "workspace"):
        if wanted in kinds:
            return wanted
    if not any(str(frame.get("filename", "")).endswith(".py") for frame in frames):
        return "backward" if frames else "none"
    return next((kind for kind in kinds if kind != "none"), "none")


class Sorter:
    """Sorts the lives of one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.kinds = {id(life): kind_of(life.frames) for life in history.lives}
        self.optimizer_runs = sorted(life.start for life in history.lives if life.start >= 0 and self.kinds[id(life)] == "optimizer")
        self.backward_runs = sorted(life.start for life in history.lives if life.start >= 0 and self.kinds[id(life)] == "backward")
        self.parameter_sizes = Counter(life.size for life in history.lives if self._is_parameter(life))

    def category(self, life: Life) -> Category:
        """The category of one block."""
        stated = said(life.frames)
        if stated is not None:
            return stated
        kind = self.kinds[id(life)]
        if self._is_parameter(life):
            return "parameter"
        if kind == "optimizer":
            return "optimizer_state" if life.end >= self.history.events else "temporary"
        if kind == "workspace":
            return "workspace"
        if kind == "input":
            return "input"
        if kind == "backward":
            return self._of_backward(life)
        if kind in ("forward", "loss"):
            return self._of_forward(life, kind)
        return "parameter" if kind == "load" and life.end - life.start > LEAST_SHARE_OF_LIFE * self.history.events else "unknown"

    def _is_parameter(self, life: Life) -> bool:
        kind = self.kinds[id(life)]
        lasting = life.end >= self.history.events
        if life.start < 0:
            return lasting and kind in ("load", "none", "forward") and said(life.frames) is None
        return kind == "load" and lasting

    def _of_backward(self, life: Life) -> Category:
        """A gradient lives on when its layer's backward is done, and has the size of a parameter; what a layer's backward uses for itself does not."""
        length = life.end - life.start
        outlives = life.end >= self.history.events or self._next(self.optimizer_runs, life.start) <= life.end
        if life.size in self.parameter_sizes and (outlives or length > len(self.backward_runs) // 8):
            return "gradient"
        return "gradient" if outlives and self.optimizer_runs else ("autograd_detail" if length > 2 else "temporary")

    def _of_forward(self, life: Life, kind: Kind) -> Category:
        """What lives until backward runs was kept for it."""
        backward = self._next(self.backward_runs, life.start)
        if life.end > backward:
            return "activation"
        if kind == "loss":
            return "autograd_detail"
        return "temporary" if backward <= self.history.events else "unknown"

    @staticmethod
    def _next(positions: list[int], after: int) -> int:
        """The first of sorted positions behind one; beyond every event where there is none."""
        at = bisect_right(positions, after)
        return positions[at] if at < len(positions) else 1 << 62
