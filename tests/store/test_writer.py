import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreUnavailable
from app.core.events import Event, EventType
from app.store import events
from app.store.db import database_url
from app.store.events import EventFilter
from app.store.writer import GATHER_TICKS, MAX_BATCH, Batch, CommittedEvent, Writer
from tests.store.toy_changes import (
    breaking,
    event,
    losing,
    opened,
    outcomes,
    plain,
    shown,
    stored,
    telling,
    transactions,
)

EVERYTHING = EventFilter(principal=None)


async def test_all_changes_of_one_tick_are_one_transaction(
    said: list[str], writer: Writer, published: list[list[CommittedEvent]]
) -> None:
    names = [f"call_{n}" for n in range(100)]

    assert await outcomes(writer, [telling(name) for name in names]) == names

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"]
    assert shown(published) == [list(enumerate(names, 1))]


async def test_what_comes_while_a_batch_is_written_gathers_for_the_next_one(
    said: list[str], writer: Writer, published: list[list[CommittedEvent]]
) -> None:
    later: list[asyncio.Future[Any]] = []

    def first(batch: Batch) -> None:
        writer._loop.call_soon_threadsafe(lambda: later.extend(writer.submit(telling(name)) for name in "abc"))
        batch.publish(event("first"))

    async with asyncio.timeout(30):
        await writer.submit(first)
        assert await asyncio.gather(*later) == ["a", "b", "c"]

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"] * 2
    assert shown(published) == [[(1, "first")], [(2, "a"), (3, "b"), (4, "c")]]


@pytest.mark.parametrize(("company", "batches"), [(1, [["a"], ["b"]]), (2, [["a", "b"]])])
async def test_who_comes_after_many_waits_a_little_for_others_and_who_comes_after_one_does_not(
    writer: Writer, published: list[list[CommittedEvent]], company: int, batches: list[list[str]]
) -> None:
    async with asyncio.timeout(30):
        await outcomes(writer, [telling(f"first {n}") for n in range(company)])
        first = writer.submit(telling("a"))
        for _ in range(GATHER_TICKS // 2):
            await asyncio.sleep(0)
        await asyncio.gather(first, writer.submit(telling("b")))

    assert [[name for _, name in batch] for batch in shown(published)[1:]] == batches


async def test_a_tick_of_more_than_a_batch_is_written_in_order_in_several(
    said: list[str], writer: Writer, published: list[list[CommittedEvent]]
) -> None:
    names = [f"call_{n}" for n in range(2 * MAX_BATCH + 1)]

    assert await outcomes(writer, [telling(name) for name in names]) == names

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"] * 3
    assert [row for batch in shown(published) for row in batch] == list(enumerate(names, 1))


async def test_the_sequence_is_dense_and_in_commit_order_over_batches_and_restarts(
    url: URL, engine: AsyncEngine
) -> None:
    for start in range(3):
        async with opened(url) as writer:
            for round in range(3):
                await outcomes(writer, [telling(f"{start}.{round}.{n}") for n in range(3)])

    expected = [f"{a}.{b}.{c}" for a in range(3) for b in range(3) for c in range(3)]
    assert stored(url) == list(enumerate(expected, 1))
    assert await events.last_seq(engine) == 27


async def test_one_change_can_tell_several_events_and_they_stay_together(writer: Writer, url: URL) -> None:
    def change(batch: Batch) -> None:
        for name in "abc":
            batch.publish(event(name))

    await outcomes(writer, [telling("before"), change, telling("after")])

    assert stored(url) == [(1, "before"), (2, "a"), (3, "b"), (4, "c"), (5, "after")]


async def test_an_event_is_stored_as_it_was_told(writer: Writer, engine: AsyncEngine) -> None:
    told = Event(0, EventType.PLAN_UPDATED, None, "ada", "blue", 123, '{"plan":"é"}')

    await writer.submit(lambda batch: batch.publish(told))

    found = await events.page(engine, EVERYTHING, 0, None, 10)
    assert found == [(Event(1, EventType.PLAN_UPDATED, None, "ada", "blue", 123, '{"plan":"é"}'), None)]


async def test_events_are_published_after_their_commit_and_before_the_future_resolves(url: URL) -> None:
    order: list[tuple[str, list[Any], bool]] = []

    def publish(told: list[CommittedEvent]) -> None:
        order.append(("published", stored(url), future.done()))

    async with opened(url, publish) as writer:
        future = writer.submit(telling("a"))
        await future
        order.append(("resolved", stored(url), future.done()))

    assert order == [("published", [(1, "a")], False), ("resolved", [(1, "a")], True)]


async def test_a_change_without_events_publishes_nothing(writer: Writer, published: list[list[CommittedEvent]]) -> None:
    assert await writer.submit(lambda batch: "done") == "done"

    assert published == []


async def test_a_lost_compare_and_set_tells_its_caller_and_writes_no_event(
    writer: Writer, url: URL, published: list[list[CommittedEvent]]
) -> None:
    assert await outcomes(writer, [telling("a"), losing("b"), telling("c")]) == ["a", False, "c"]

    assert stored(url) == [(1, "a"), (2, "c")]
    assert shown(published) == [[(1, "a"), (2, "c")]]


KINDS = {"good": telling, "bad": breaking, "lost": losing}
EXPECTED: dict[str, Callable[[str], Any]] = {"good": str, "bad": lambda name: ("broken", name), "lost": lambda _: False}
batches = st.lists(st.lists(st.sampled_from(sorted(KINDS)), max_size=6), max_size=5)


@settings(max_examples=40)
@given(batches)
async def test_whatever_is_mixed_the_sequence_is_dense_and_holds_exactly_what_passed(
    migrated: Path, batches: list[list[str]]
) -> None:
    passed: list[str] = []
    published: list[list[CommittedEvent]] = []
    with TemporaryDirectory() as folder:
        url = database_url(Path(folder), None)
        shutil.copy(migrated, str(url.database))
        async with opened(url, published.append) as writer:
            for b, kinds in enumerate(batches):
                named = [(kind, f"{b}.{n}") for n, kind in enumerate(kinds)]
                found = await outcomes(writer, [KINDS[kind](name) for kind, name in named])
                assert [plain(outcome) for outcome in found] == [EXPECTED[kind](name) for kind, name in named]
                passed += [name for kind, name in named if kind == "good"]
        assert stored(url) == list(enumerate(passed, 1))
        assert stored(url, "SELECT call FROM outputs ORDER BY call") == [(name,) for name in sorted(passed)]
    assert [row for batch in shown(published) for row in batch] == list(enumerate(passed, 1))


async def test_closing_writes_everything_that_was_handed_over(url: URL) -> None:
    writer = Writer(url, lambda told: None)
    futures = [writer.submit(telling(f"call_{n:04}")) for n in range(MAX_BATCH + 10)]

    async with asyncio.timeout(30):
        await writer.close()

    assert [future.result() for future in futures] == [name for _, name in stored(url)]


async def test_after_closing_nothing_is_taken_any_more(url: URL) -> None:
    writer = Writer(url, lambda told: None)
    await writer.close()
    await writer.close()

    with pytest.raises(StoreUnavailable, match=r"^The service is stopping and stores nothing more\.$"):
        await writer.submit(telling("a"))
    assert stored(url) == []


async def test_the_writer_commits_to_the_disk_before_it_tells(
    connections: list[sqlite3.Connection], writer: Writer
) -> None:
    full = 2

    assert connections[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connections[0].execute("PRAGMA synchronous").fetchone() == (full,)
