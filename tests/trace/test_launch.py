"""Which ranks a trace runs, and how many there are."""

from __future__ import annotations

import pytest

from everybyte.basics.errors import BadInput
from everybyte.trace.device.launch import environment, mesh_of, ranks_of, world_of


def test_a_mesh_gives_the_world_and_the_first_rank_of_each_stage() -> None:
    """The ranks are the product of the axes, and without a list the first of each pipeline stage runs, wherever that axis stands."""
    mesh = mesh_of("pp=2, dp=4,tp=2")
    assert world_of(None, mesh) == 16
    assert ranks_of(None, 16, mesh) == (0, 8)
    assert ranks_of(None, 6, mesh_of("dp=2,pp=3")) == (0, 1, 2)
    assert ranks_of(None, 8, {}) == (0,)


def test_a_list_of_ranks_is_read_once_each() -> None:
    """`last` is the last rank, and one that is named twice runs once."""
    assert ranks_of("0, 3,last,3", 8, {}) == (0, 3, 7)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mesh_of("dp4"), "dp=4,tp=2"),
        (lambda: mesh_of("dp=2,dp=3"), "dp=4,tp=2"),
        (lambda: mesh_of("dp=0"), "dp=4,tp=2"),
        (lambda: world_of(3, {"dp": 4}), "3 ranks do not fill a mesh of 4"),
        (lambda: ranks_of("8", 8, {}), "no rank 8 of 8"),
        (lambda: ranks_of("first", 8, {}), "0,3,last"),
    ],
)
def test_what_cannot_be_launched_is_refused(call: object, words: str) -> None:
    """Axes, sizes and ranks that fit to nothing are refused with what is wrong."""
    with pytest.raises(BadInput, match=words):
        call()  # type: ignore[operator]


def test_ranks_are_told_what_torchrun_tells_them() -> None:
    """A rank of the second node has its place in that node."""
    told = environment(11, 16)
    assert (told["LOCAL_RANK"], told["GROUP_RANK"], told["LOCAL_WORLD_SIZE"], told["WORLD_SIZE"]) == ("3", "1", "8", "16")
