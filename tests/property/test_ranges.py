"""Laws of the intervals that answers state: no two contradict one another, whatever the figures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everybyte.catalog.ranges import PARTS, Kind, intervals
from everybyte.ledger.verdict import share_that_fits, verdict_of

SIZES = st.integers(min_value=2**20, max_value=2**41)
KINDS = st.sampled_from(
    [("train", "pytorch"), ("train", "litgpt"), ("train", "megatron"), ("train", "transformers"), ("serve", "vllm"), ("serve", "sglang"), ("serve", "llamacpp")]
)


@given(kind=KINDS, several=st.booleans(), sizes=st.lists(SIZES, min_size=4, max_size=4))
def test_a_part_is_never_more_than_its_whole(kind: tuple[str, str], several: bool, sizes: list[int]) -> None:
    """Ends of nested figures are in the order of the figures, at both ends."""
    figures = dict(zip(("static.allocated", "peak.allocated", "peak.reserved", "peak.device"), sorted(sizes), strict=True))
    ends = intervals(figures, Kind(*kind, several))
    assert all(low <= high for low, high in ends.values())
    for part, whole in PARTS:
        if part in ends and whole in ends:
            assert ends[part][0] <= ends[whole][0]
            assert ends[part][1] <= ends[whole][1]


@given(several=st.booleans(), pool=st.integers(min_value=-(2**38), max_value=2**38), blocks=st.integers(min_value=0, max_value=10**6))
def test_a_cache_is_one_quantity(several: bool, pool: int, blocks: int) -> None:
    """Tokens lie between the pages of the interval times their size; a pool below zero has its lower end first."""
    figures = {"kv.pool": pool, "kv.blocks": blocks, "kv.block_size": 16, "kv.tokens": 16 * blocks, "peak.device": 2**39}
    ends = intervals(figures, Kind("serve", "vllm", several))
    assert ends["kv.pool"][0] <= ends["kv.pool"][1]
    assert ends["kv.tokens"] == (16 * ends["kv.blocks"][0], 16 * ends["kv.blocks"][1])


@given(needed=SIZES, low=st.floats(0.3, 1.0), high=st.floats(1.0, 3.0), capacity=SIZES)
def test_chance_and_verdict_say_the_same(needed: int, low: float, high: float, capacity: int) -> None:
    """Outside the interval less than a twentieth of the runs are on the other side; inside, the verdict is close."""
    ends = (low * needed, high * needed)
    chance = share_that_fits(needed, ends, capacity)
    verdict = verdict_of(fits=needed <= capacity, ends=ends, capacity=capacity)
    assert (verdict == "close") == (ends[0] <= capacity < ends[1])
    if verdict == "fits":
        assert chance >= 0.949
    if verdict == "does not fit":
        assert chance <= 0.051


@given(needed=SIZES, high=st.floats(1.01, 3.0), capacity=SIZES)
def test_more_memory_never_lowers_the_chance(needed: int, high: float, capacity: int) -> None:
    """A larger card holds at least as many of the runs."""
    ends = (0.9 * needed, high * needed)
    assert share_that_fits(needed, ends, capacity) <= share_that_fits(needed, ends, 2 * capacity)
