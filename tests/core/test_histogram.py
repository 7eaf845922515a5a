from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.util.histogram import Histogram


def tally_of(bounds: Iterable[float], values: Iterable[float]) -> Histogram:
    tally = Histogram(tuple(bounds))
    for value in values:
        tally.record(value)
    return tally


def test_a_value_is_counted_under_the_first_bound_it_does_not_exceed() -> None:
    tally = tally_of([1, 2, 5], [0, 1, 1.5, 2, 4.9, 5, 5.1, 100])

    assert tally.counts == [2, 2, 2, 2]
    assert tally.count == 8
    assert tally.sum == pytest.approx(119.5)


def test_a_new_tally_has_counted_nothing() -> None:
    tally = Histogram([1, 2])

    assert (tally.bounds, tally.counts, tally.sum, tally.count) == ((1, 2), [0, 0, 0], 0.0, 0)


def test_a_copy_stays_as_it_was() -> None:
    tally = tally_of([1], [0.5])
    copied = tally.copy()

    tally.record(3)

    assert (copied.counts, copied.sum, copied.count) == ([1, 0], 0.5, 1)
    assert (tally.counts, tally.sum, tally.count) == ([1, 1], 3.5, 2)


@given(
    st.lists(st.integers(-50, 50), unique=True, max_size=8).map(sorted),
    st.lists(st.integers(-100, 100), max_size=50),
)
def test_every_value_is_counted_once_and_below_each_bound_are_those_that_belong_there(
    bounds: list[int], values: list[int]
) -> None:
    tally = tally_of(bounds, values)

    assert tally.count == len(values)
    assert tally.sum == sum(values)
    for place, bound in enumerate(bounds):
        assert sum(tally.counts[: place + 1]) == sum(value <= bound for value in values)
