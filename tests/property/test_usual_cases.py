"""The choice of the usual cases of a matrix."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from usual import parts, usual

AXES = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@given(AXES, st.data(), st.integers(1, 2))
def test_all_values_are_met_together(axes: list[int], data: st.DataObject, together: int) -> None:
    """The usual cases are cases, and what meets in any case meets in a usual one, also where some combinations are left out."""
    cases = list(product(*map(range, axes)))
    cases = data.draw(st.lists(st.sampled_from(cases), min_size=1, unique=True))
    chosen = usual(cases, together)
    assert set(chosen) <= set(cases)
    assert set().union(*(parts(case, together) for case in chosen)) == set().union(*(parts(case, together) for case in cases))


def test_a_matrix_of_many_axes_is_tried_by_few() -> None:
    """Ten families in two ways each of three settings are 80 cases, of which at most 26 are usual: no fewer than 20 could meet all pairs."""
    assert 20 <= len(usual(list(product(range(10), *([range(2)] * 3))))) <= 26
