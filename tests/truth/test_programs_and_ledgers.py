"""The ledger reads the program of a step with its loops closed, the allocator plays it tensor by tensor: both come to the same peak on every measured job."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.basics.allocations import peak_living
from everybyte.basics.errors import EverybyteError
from everybyte.basics.units import MiB
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.measure.truth import load_records

RECORDS = [r for r in load_records() if "train" in r["job"]]
SLACK = MiB
"""States and gradients are counted in blocks of 512 bytes in one of the two, and as they are in the other, where they are many."""
EXCEPTIONS = {"TN087": 4 * MiB, "TN088": 6 * MiB, "TN089": 6 * MiB}
"""CogVideoX's last norm takes the image tokens alone: the gradient that comes back from it is shorter than the hidden states, which the sums do not know."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_the_peak_of_the_program_is_the_peak_of_the_ledger(record: dict[str, Any]) -> None:
    """What lives at the highest instant of the allocations in program order is what the highest phase of the ledger holds, for every rank type."""
    try:
        _, _, found = accounted(read_job(record["job"]))
    except EverybyteError:
        return
    for rank in found.ranks:
        ledger = max(rank.bill.totals().values())
        assert abs(peak_living(rank.bill.script()) - ledger) <= EXCEPTIONS.get(record["id"], SLACK), rank.label
