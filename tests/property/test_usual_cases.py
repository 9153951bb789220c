"""The choice of the usual cases of a matrix."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from usual import pairs, usual

AXES = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@given(AXES, st.data())
def test_every_pair_of_values_is_met(axes: list[int], data: st.DataObject) -> None:
    """The usual cases are cases, and two values that meet in any case meet in a usual one, also where some combinations are left out."""
    cases = list(product(*map(range, axes)))
    cases = data.draw(st.lists(st.sampled_from(cases), min_size=1, unique=True))
    chosen = usual(cases)
    assert set(chosen) <= set(cases)
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, cases))


def test_a_matrix_of_many_axes_is_tried_by_few() -> None:
    """Ten families in two ways each of three settings are 80 cases, of which at most 26 are usual: no fewer than 20 could meet all pairs."""
    assert 20 <= len(usual(list(product(range(10), *([range(2)] * 3))))) <= 26
