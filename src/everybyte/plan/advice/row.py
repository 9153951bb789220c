"""One line of advice, in the contract's form."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.job.shorthand import HEAD_KEY

MOST_PATHS = {f"{section}.{part}.{head}": f"{section}.{part}" for section, parts in HEAD_KEY.items() for part, head in parts.items()}
"""Key path -> what stands for it in short: `train.recompute.policy` -> `train.recompute`."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job and what comes of it."""

    settings: dict[str, Any]
    """Key path -> value, all that change."""
    flags: str
    """The same as flags of the command line."""
    saves_bytes: int
    """Bytes of `peak.device` that it saves; below zero where more is used."""
    needs: int
    """`peak.device` with it."""
    fits: bool
    verdict: str
    """`fits`, `close` or `does not fit`."""
    price: str
    """What it costs, in words."""
    changes_objective: bool
    """Whether another result is trained or served, not the same one in another way."""

    def as_dict(self) -> dict[str, Any]:
        """The row of an answer."""
        return {
            "change": shortened(self.settings),
            "flags": self.flags,
            "saves_bytes": self.saves_bytes,
            "peak.device": self.needs,
            "fits": self.fits,
            "verdict": self.verdict,
            "price": self.price,
            "changes_objective": self.changes_objective,
        }


def shortened(settings: dict[str, Any]) -> dict[str, Any]:
    """`{train.recompute.policy: full}` -> `{train.recompute: full}` where nothing else of that part changes."""
    heads = {path: short for path, short in MOST_PATHS.items() if path in settings}
    alone = {path for path, short in heads.items() if sum(other.startswith(f"{short}.") for other in settings) == 1}
    return {heads[path] if path in alone else path: value for path, value in settings.items()}
