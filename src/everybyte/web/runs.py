"""What the server says of measured runs: the table of this release, of which it chooses rows."""

from __future__ import annotations

import re
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.job import Job
from everybyte.measure.accuracy import Comparison, Summary, Wanted, summarise
from everybyte.measure.same_kind import runs_like
from everybyte.measure.shipped import chosen, shipped
from everybyte.report.as_json import truth_object


def by_groups(pattern: str) -> dict[str, Any]:
    """Errors by group and figure, of the groups whose whole name matches. Raises BadInput for what is no regular expression, or matches nothing."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise BadInput("group", f"{pattern[:80]!r} is not a regular expression: {error}") from None
    found = chosen(shipped().ours, Wanted(lambda group: wanted.fullmatch(group) is not None, lambda _: True))
    if not found:
        raise BadInput("group", f"no group of records matches {pattern[:80]!r}")
    return truth_object(found, None, [])


def like(job: Job) -> tuple[int, list[Comparison], list[Summary]]:
    """How many measured runs are of the job's kind, their figures predicted and measured, and the errors by group."""
    ids = {record["id"] for record in runs_like(job)}
    found = [comparison for comparison in shipped().ours if comparison.id in ids]
    return len(ids), found, summarise(found)
