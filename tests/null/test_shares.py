"""What of a network's parameters one rank holds, against sums worked out here."""

from __future__ import annotations

import pytest

from everybyte.engines.megatron.portions import gaps
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim, elements
from everybyte.models.count import declared
from everybyte.models.source import network_of
from everybyte.rules.parallel.pipeline import Flight, covered, flights, outdone
from everybyte.rules.parallel.schedules import Plan
from everybyte.rules.serving.pages import LayerCache, prices
from everybyte.rules.serving.tensor_parallel import Cut, Sizes
from everybyte.rules.sharding.fsdp1 import Fsdp1
from everybyte.rules.sharding.zero.partitions import flat_group
from everybyte.rules.step.persistent_state import groups

SETUP = Setup()


def odd(vocab: int = 101) -> Network:
    """A network with a table of 101 × 40 numbers and norms of 40."""
    return network_of({"shape": {"family": "llama", "layers": 2, "hidden": 40, "ffn": 77, "heads": 4, "vocab": vocab}})


def numels(network: Network) -> list[int]:
    """Numbers of each parameter."""
    return [elements(row.parameter.dims)[0] for row in declared(network, SETUP) for _ in range(row.copies * row.parameter.count) if not row.parameter.buffer]


@pytest.mark.parametrize("degree", [3, 5, 7, 48])
def test_zeros_partitions_are_even(degree: int) -> None:
    """The flat group is padded to a multiple of twice the ranks, so that each partition has an even number of numbers, and no further."""
    group = flat_group(odd(), SETUP, degree)
    assert group.numel == sum(numels(odd()))
    assert group.partition * degree == group.numel + group.padding
    assert group.partition % 2 == 0
    assert group.padding < 2 * degree


@pytest.mark.parametrize("degree", [3, 7])
def test_fsdp1s_flat_tensors_are_padded(degree: int) -> None:
    """Each rank has as much as every other, and all together have every number: the last one's part is padded."""
    network = odd()
    held = {group.part: group for group in groups(network, SETUP, Fsdp1(degree=degree))}
    whole: dict[str, int] = {}
    for row in declared(network, SETUP):
        whole[row.part] = whole.get(row.part, 0) + elements(row.parameter.dims)[0] * row.parameter.count * (not row.parameter.buffer)
    for part, group in held.items():
        share = sum(p.numel for p in group.members)
        assert 0 <= share * degree - whole[part] < degree


def test_megatrons_parameters_begin_at_multiples_of_64() -> None:
    """In a buffer of one bucket, each parameter is followed by a gap up to the next multiple of 64 numbers."""
    assert gaps(odd(), SETUP, experts=False, multiple=1, bucket=0) == sum(-n % 64 for n in numels(odd()))


def test_a_rank_is_left_out_where_another_needs_as_much() -> None:
    """Of two ranks that hold the same, the later one is left out if it has no more in flight, and only then."""
    few, many = (Flight("F", 0, (count,), (0,)) for count in (2, 4))
    assert covered(("same", "same"), ((many,), (few,))) == (False, True)
    assert covered(("same", "same"), ((few,), (many,))) == (False, False)
    assert covered(("one", "other"), ((many,), (few,))) == (False, False)


@pytest.mark.parametrize("plan", [Plan("gpipe", 4, 1, 8, 4), Plan("1f1b", 8, 1, 3, 8), Plan("interleaved", 4, 3, 5, 5), Plan("interleaved", 3, 2, 9, 4)])
def test_ranks_are_left_out_without_their_flights(plan: Plan) -> None:
    """Where backward passes are whole, the closed form leaves out the ranks that a comparison of all states in flight leaves out."""
    for kinds in (("a",) * plan.pp, ("a", *("b",) * (plan.pp - 1)), tuple("ab"[rank % 2] for rank in range(plan.pp))):
        assert outdone(plan, kinds) == covered(kinds, tuple(flights(plan, rank) for rank in range(plan.pp)))


def test_vocabularies_are_padded_before_they_are_cut() -> None:
    """101 rows are 128, of which two ranks hold 64 each."""
    assert Cut(embedding=2, head=4).dim(Dim("V", 101), Sizes(rows="embedding")).size == 64
    assert Cut(embedding=2, head=4).dim(Dim("V", 101), Sizes(rows="head")).size == 32


def test_a_token_is_dear_where_all_are_seen() -> None:
    """Layers with a window cost apart from those that see everything; an entry that stands for four tokens costs a quarter for each."""
    found = prices((LayerCache("full", 2, 100, 0, 1, 0), LayerCache("window", 3, 100, 16, 1, 7), LayerCache("compressed", 1, 100, 0, 4, 0)))
    assert (found.full, found.windowed, found.window, found.state, found.token) == (225, 300, 16, 21, 525)
