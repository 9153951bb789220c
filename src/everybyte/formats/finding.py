"""What an import found wrong or worth knowing, and what it could not read."""

from __future__ import annotations

from typing import Any, Literal

from everybyte.basics.record import Record

Severity = Literal["error", "warning", "note"]
"""error: the run will fail or is not what was meant (exit 1). warning: costs memory, or was assumed. note: worth knowing."""


class Finding(Record, frozen=True, kw_only=True):
    """A contradiction, a trap, or an assumption."""

    id: str
    """Of the rule, such as `zero3-init`."""
    severity: Severity
    place: str
    """`acc.yaml:4`, `--deepspeed (run.sh:7)`."""
    message: str
    """What is wrong, in one sentence."""
    remedy: str = ""
    """The way out, in one sentence."""
    change: dict[str, Any] | None = None
    """Settings of the job that the remedy means; None as a value leaves a key out. The effect in bytes is the difference of two estimates."""
    effect_bytes: int | None = None
    """Bytes at the peak that the fault costs (above zero) or hides (below), where two estimates say so."""


class Unknown(Record, frozen=True, kw_only=True):
    """A key that no table knows. It is told, never dropped."""

    key: str
    value: Any
    place: str


class Missing(Record, frozen=True, kw_only=True):
    """A setting of the job that nothing given decides."""

    key: str
    message: str
