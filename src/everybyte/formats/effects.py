"""What a finding costs: the difference of two estimates, of the job as it is and with the remedy."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import EverybyteError
from everybyte.estimator import estimate
from everybyte.formats.finding import Finding
from everybyte.formats.finish import Imported, nested

FIGURE = "peak.allocated"


def with_effects(imported: Imported) -> Imported:
    """The same import, where each finding whose remedy is a setting has the bytes at the peak that it changes; as it was where no estimate is possible."""
    if not any(finding.change for finding in imported.findings):
        return imported
    flat = {row.key: row.value for row in imported.settings}
    before = _peak(flat)
    if before is None:
        return imported
    return replace(imported, findings=tuple(_with_effect(finding, flat, before) for finding in imported.findings))


def _with_effect(finding: Finding, flat: dict[str, Any], before: int) -> Finding:
    if not finding.change:
        return finding
    changed = {key: value for key, value in (flat | finding.change).items() if value is not None}
    after = _peak(changed)
    return finding if after is None or after == before else replace(finding, effect_bytes=before - after)


def _peak(flat: dict[str, Any]) -> int | None:
    try:
        return estimate(nested(flat)).size(FIGURE)
    except EverybyteError:
        return None
