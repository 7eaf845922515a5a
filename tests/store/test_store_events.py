from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.events import VIEWS, Event, EventType
from app.core.util.json_codec import dumps
from app.store import calls, events
from app.store.events import EventFilter
from app.store.writer import Batch, CommittedEvent, Writer

STORED = [EventType.CALL_PENDING, EventType.CALL_PROGRESS, EventType.CALL_COMPLETED, EventType.PLAN_UPDATED]
CALLS = {
    call.id: call
    for call in [
        Call("call_1", "ada", "toy", 1, arguments='{"a":1}', result='{"output":"one"}'),
        Call("call_2", "ada", "toy", 2, session="blue"),
        Call("call_3", "bob", "toy", 3),
    ]
}
CHOICES: dict[str, list[Any]] = {
    "principal": [None, "ada", "nobody"],
    "session": [None, "blue"],
    "call": [None, "call_1"],
    "types": [None, frozenset(), frozenset({EventType.CALL_PENDING}), VIEWS],
}
FILTERS = [EventFilter(**dict(zip(CHOICES, values, strict=True))) for values in product(*CHOICES.values())]
EVERYTHING = EventFilter(principal=None)


@pytest.fixture
async def told(writer: Writer) -> list[Event]:
    """Four events for each call, interleaved: first of each, second of each …"""
    made = [
        Event(0, type, call.id, call.principal, call.session, 10, None if type in VIEWS else '{"own":1}')
        for type in STORED
        for call in CALLS.values()
    ]

    def change(batch: Batch) -> None:
        for call in CALLS.values():
            calls.add(batch, call, "owner")
        for event in made:
            batch.publish(event, CALLS[event.call or ""])

    await writer.submit(change)
    return made


async def found(
    engine: AsyncEngine, wanted: EventFilter, after: int = 0, upto: int | None = None, limit: int = 100
) -> list[Event]:
    return [event for event, _ in await events.page(engine, wanted, after, upto, limit)]


async def test_every_combination_of_filters_finds_what_it_lets_pass_live(
    told: list[Event], engine: AsyncEngine
) -> None:
    for wanted in FILTERS:
        assert await found(engine, wanted) == [event for event in told if wanted.matches(event)], wanted


async def test_a_page_begins_behind_after_and_ends_with_upto(told: list[Event], engine: AsyncEngine) -> None:
    assert [event.seq for event in told] == list(range(1, 13))
    for after, upto in product([0, 1, 5, 12, 99], [None, 0, 1, 5, 12, 99]):
        expected = [event for event in told if after < event.seq <= (99 if upto is None else upto)]
        assert await found(engine, EVERYTHING, after, upto) == expected, (after, upto)


@pytest.mark.parametrize("limit", [1, 2, 5, 12, 13])
async def test_walking_page_by_page_shows_each_event_once_in_order(
    told: list[Event], engine: AsyncEngine, limit: int
) -> None:
    walked: list[Event] = []

    while page := await found(engine, EVERYTHING, walked[-1].seq if walked else 0, limit=limit):
        assert len(page) <= limit
        walked += page

    assert walked == told


async def test_a_status_event_comes_with_the_call_it_is_a_view_of(told: list[Event], engine: AsyncEngine) -> None:
    page = await events.page(engine, replace(EVERYTHING, types=VIEWS), 0, None, 100)

    assert page == [(event, CALLS[event.call or ""]) for event in told if event.type in VIEWS]


async def test_a_replayed_event_is_the_live_one_byte_for_byte(
    told: list[Event], engine: AsyncEngine, published: list[list[CommittedEvent]]
) -> None:
    live = [dumps(event.view(call)) for batch in published for event, call in batch]

    replayed = [dumps(event.view(call)) for event, call in await events.page(engine, EVERYTHING, 0, None, 100)]

    assert replayed == live


async def test_spans_are_the_log_cut_by_size_and_each_holds_at_least_one(
    told: list[Event], engine: AsyncEngine
) -> None:
    for wanted, most in product(FILTERS, [0, 100, 300, 1000, 100_000]):
        spans = await events.spans(engine, wanted, 0, 99, limit=100, max_bytes=most)
        walked, after = list[Event](), 0
        for span in spans:
            part = await found(engine, wanted, after, span.upto)
            assert len(part) == span.count
            assert span.size <= most or span.count == 1
            walked, after = walked + part, span.upto
        assert walked == [event for event in told if wanted.matches(event)]
    assert len(await events.spans(engine, EVERYTHING, 0, 99, limit=100, max_bytes=-1)) == len(told)
    assert len(await events.spans(engine, EVERYTHING, 0, 99, limit=100, max_bytes=100_000)) == 1


async def test_a_call_counts_once_in_a_span_however_many_of_its_events_are_in_it(
    told: list[Event], engine: AsyncEngine
) -> None:
    views = replace(EVERYTHING, types=VIEWS)
    apart = await events.spans(engine, views, 0, 99, limit=100, max_bytes=0)
    [together] = await events.spans(engine, views, 0, 99, limit=100, max_bytes=100_000)

    assert 0 < together.size < sum(span.size for span in apart)


async def test_spans_end_with_the_limit(told: list[Event], engine: AsyncEngine) -> None:
    spans = await events.spans(engine, EVERYTHING, 2, 99, limit=5, max_bytes=300)

    assert (sum(span.count for span in spans), spans[-1].upto) == (5, 7)


async def test_the_last_sequence_of_an_empty_log_is_zero_and_grows_with_it(engine: AsyncEngine, writer: Writer) -> None:
    assert await events.last_seq(engine) == 0

    await writer.submit(lambda batch: batch.publish(Event(0, EventType.PLAN_UPDATED, None, "ada", "default", 0)))

    assert await events.last_seq(engine) == 1
