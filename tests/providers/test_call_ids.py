"""Which ids stand for one call only."""

import pytest

from app.core.runs import ModelCall
from app.providers.call_ids import have_unique_ids


@pytest.mark.parametrize(
    "id", ["call_9f3KdLx", "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-8ab1", "a1b2c3d4e", "call_20261117123456789"]
)
def test_ids_that_providers_make_up_are_the_calls_own(id: str) -> None:
    assert have_unique_ids([ModelCall(id=id, name="get_weather")]) == [True]


@pytest.mark.parametrize(
    "id", [None, "", "0", "call_0", "call-12", "functions.get_weather:0", "get_weather_1", "get_weather", "shim_3"]
)
def test_ids_that_count_or_say_nothing_are_not(id: str | None) -> None:
    assert have_unique_ids([ModelCall(id=id, name="get_weather")]) == [False]


def test_an_id_that_two_calls_have_is_neithers_own_unless_they_came_in_one_wrapper() -> None:
    twice = [ModelCall(id="call_9f3KdLx", name="a"), ModelCall(id="call_9f3KdLx", name="b")]
    wrapped = [ModelCall(id="call_9f3KdLx", name="a", sub_index=number) for number in (0, 1)]

    assert have_unique_ids(twice) == [False, False]
    assert have_unique_ids(wrapped) == [True, True]
