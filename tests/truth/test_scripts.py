"""The allocations of every measured training job, in program order, are such as a program can make."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.basics.errors import EverybyteError
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.measure.truth import load_records

RECORDS = [r for r in load_records() if "train" in r["job"]]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_only_what_lives_is_freed(record: dict[str, Any]) -> None:
    """No key is made twice while it lives, and none is freed that does not live."""
    try:
        _, _, found = accounted(read_job(record["job"]))
    except EverybyteError:
        return
    for rank in found.ranks:
        alive: set[int] = set()
        for key, size, *_ in rank.bill.script():
            if size > 0:
                assert key not in alive
                alive.add(key)
            elif key > 0 and not size:
                alive.remove(key)
