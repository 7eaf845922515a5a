"""Paces: a flood becomes a trickle, and the last of it is always told."""

import asyncio

from app.core.util.throttle import Throttle
from tests.support.services import until


async def test_a_few_are_told_at_once_and_of_the_rest_the_last() -> None:
    told: list[int] = []
    pace = Throttle(told.append, burst=3, a_second=0.001)

    for number in range(100):
        pace.offer(number)
    before = list(told)
    pace.flush()

    assert before == [0, 1, 2]
    assert told == [0, 1, 2, 99]


async def test_what_waits_is_told_by_itself_when_its_time_comes() -> None:
    told: list[int] = []
    pace = Throttle(told.append, burst=1, a_second=50)

    pace.offer(1)
    pace.offer(2)
    pace.offer(3)
    await until(lambda: len(told) == 2)

    assert told == [1, 3]


async def test_after_a_rest_some_can_be_told_at_once_again() -> None:
    told: list[int] = []
    pace = Throttle(told.append, burst=2, a_second=100)

    pace.offer(1)
    pace.offer(2)
    await asyncio.sleep(0.1)
    pace.offer(3)
    pace.offer(4)

    assert told == [1, 2, 3, 4]


async def test_where_nothing_waits_nothing_is_told() -> None:
    told: list[int] = []
    pace = Throttle(told.append)

    pace.flush()

    assert told == []
