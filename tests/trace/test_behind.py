"""Memory that another stream still uses when it is freed."""

from __future__ import annotations

from everybyte.allocator.reserved import peak_reserved
from everybyte.basics.units import MiB
from everybyte.trace.device.stream_lag import Behind, delayed

FREED_TWICE = ((1, 32 * MiB), (2, 16 * MiB), (1, -32 * MiB), (1, 32 * MiB), (2, -16 * MiB), (1, -32 * MiB), (3, 32 * MiB), (3, -32 * MiB))
"""Two lives of storage 1, and a later one of as many bytes."""


def reserved(behind: Behind) -> int:
    """The peak when frees are as late as a program's waits let them be."""
    script = [(number, max(nbytes, 0)) for number, nbytes in FREED_TWICE]
    return peak_reserved(delayed(script, behind.late(FREED_TWICE))).peak


def test_what_is_used_elsewhere_comes_back_behind_a_wait() -> None:
    """A gathered parameter that another stream used cannot be had again until the program has waited for an event behind its free: here once its second life
    has begun, so that both lie side by side, and the third storage takes the first one's place."""
    behind = Behind()
    behind.uses(1, 2)
    behind.waits(4, 3)
    assert behind.late(FREED_TWICE) == ((2, 4),)
    assert reserved(behind) == (32 + 16 + 32) * MiB


def test_a_use_of_an_earlier_life_delays_no_later_one() -> None:
    """The second free of the storage is at once, as nothing used it since it was filled again; what nobody waits for is free at the end alone."""
    behind = Behind()
    behind.uses(1, 2)
    behind.waits(1, 0)
    assert behind.late(FREED_TWICE) == ((2, len(FREED_TWICE)),)
    assert reserved(behind) == (32 + 16 + 32) * MiB


def test_without_waits_the_gpu_keeps_up() -> None:
    """Where the program never waits, nothing says how far it is ahead, and nothing is late."""
    behind = Behind()
    behind.uses(1, 2)
    assert behind.late(FREED_TWICE) == ()
    assert reserved(behind) == (32 + 16) * MiB
