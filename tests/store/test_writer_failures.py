import asyncio
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import URL

from app.core.errors import StoreUnavailable
from app.core.events import Event, EventType
from app.store import db, outputs
from app.store.writer import Batch, CommittedEvent, Writer
from tests.store.toy_changes import (
    Broken,
    breaking,
    event,
    losing,
    opened,
    outcomes,
    plain,
    printing,
    shown,
    stored,
    telling,
    transactions,
)


@contextmanager
def locked(url: URL) -> Iterator[None]:
    """Somebody else holds the database."""
    with closing(sqlite3.connect(str(url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def no_growth(url: URL) -> Iterator[None]:
    """The disk refuses to let the write-ahead log grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_size(url), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def log_size(url: URL) -> int:
    return Path(f"{url.database}-wal").stat().st_size


async def test_a_subscriber_that_breaks_does_not_leave_callers_waiting(url: URL) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["exception"]))

    def publish(told: list[CommittedEvent]) -> None:
        raise Broken("subscriber")

    async with opened(url, publish) as writer:
        assert await outcomes(writer, [telling("a"), telling("b")]) == ["a", "b"]

    assert [plain(complaint) for complaint in complaints] == [("broken", "subscriber")]


async def test_a_broken_change_fails_alone_and_leaves_neither_rows_nor_a_gap(
    writer: Writer, url: URL, published: list[list[CommittedEvent]]
) -> None:
    first, broken, last = await outcomes(writer, [telling("a"), breaking("b"), telling("c")])

    assert (first, type(broken), str(broken), last) == ("a", Broken, "b", "c")
    assert stored(url) == [(1, "a"), (2, "c")]
    assert stored(url, "SELECT call FROM outputs ORDER BY call") == [("a",), ("c",)]
    assert shown(published) == [[(1, "a"), (2, "c")]]


@pytest.mark.parametrize(
    ("start", "data", "error"),
    [
        pytest.param(0, b"x", sqlite3.IntegrityError, id="a taken key"),
        pytest.param(1, "\ud800", UnicodeEncodeError, id="a lone surrogate"),
        pytest.param(1, 2**70, OverflowError, id="a huge integer"),
        pytest.param(1, object(), sqlite3.ProgrammingError, id="a value of no column's kind"),
    ],
)
async def test_what_the_database_does_not_take_fails_its_own_change_only(
    writer: Writer, url: URL, start: int, data: Any, error: type[Exception]
) -> None:
    row = {"call": "a", "start": start, "stop": start + 1, "stream": "stdout", "data": data}

    first, bad, last = await outcomes(
        writer, [telling("a"), lambda batch: batch.execute(outputs.ADD, row), telling("c")]
    )

    assert (first, type(bad), last) == ("a", error, "c")
    assert stored(url) == [(1, "a"), (2, "c")]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(Event(0, EventType.PLAN_UPDATED, None, "ada", "default", 0, "\ud800"), id="a lone surrogate"),
        pytest.param(Event(0, EventType.PLAN_UPDATED, None, "ada", "default", 2**70), id="a huge integer"),
        pytest.param(Event(0, EventType.PLAN_UPDATED, None, cast(str, None), "default", 0), id="a missing value"),
    ],
)
async def test_an_event_the_database_does_not_take_fails_its_own_change_only(
    writer: Writer, url: URL, published: list[list[CommittedEvent]], odd: Event
) -> None:
    def bad(batch: Batch) -> None:
        outputs.add(batch, "b", 0, "stdout", b"x")
        batch.publish(event("b"))
        batch.publish(odd)

    first, refused, last = await outcomes(writer, [telling("a"), bad, telling("c")])

    assert (first, last) == ("a", "c")
    assert isinstance(refused, Exception)
    assert stored(url) == [(1, "a"), (2, "c")]
    assert stored(url, "SELECT call FROM outputs ORDER BY call") == [("a",), ("c",)]
    assert stored(url, "SELECT value FROM counters WHERE name = 'event_seq'") == [(2,)]
    assert shown(published) == [[(1, "a"), (2, "c")]]


async def test_a_text_with_a_nul_is_kept_whole(writer: Writer, url: URL) -> None:
    told = Event(0, EventType.PLAN_UPDATED, "a\0b", "ada", "default", 0, "c\0d")

    await writer.submit(lambda batch: batch.publish(told))

    assert stored(url, "SELECT call, data FROM events") == [("a\0b", "c\0d")]


async def test_after_a_broken_batch_the_next_one_goes_the_fast_way_again(said: list[str], writer: Writer) -> None:
    await outcomes(writer, [breaking("a")])
    said.clear()

    await outcomes(writer, [telling("b"), telling("c")])

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"]


async def test_a_locked_database_is_unavailable_to_all_and_usable_again_afterwards(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    published: list[list[CommittedEvent]] = []

    async with opened(url, published.append) as writer:
        with locked(url):
            refused = await outcomes(writer, [telling("a"), losing("b"), telling("c")])
        passed = await outcomes(writer, [telling("d")])

    assert [type(outcome) for outcome in refused] == [StoreUnavailable] * 3
    assert {str(outcome) for outcome in refused} == {"The database cannot be written: database is locked."}
    assert passed == ["d"]
    assert stored(url) == [(1, "d")]
    assert shown(published) == [[(1, "d")]]


async def test_a_locked_database_is_waited_for_once_and_not_twice(
    connections: list[sqlite3.Connection], url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    said: list[str] = []

    async with opened(url) as writer:
        connections[0].set_trace_callback(said.append)
        with locked(url):
            await outcomes(writer, [telling("a"), telling("b")])
        connections[0].set_trace_callback(None)

    assert transactions(said) == ["BEGIN IMMEDIATE"]


async def test_a_full_disk_makes_the_log_give_back_its_space(
    connections: list[sqlite3.Connection], writer: Writer, url: URL
) -> None:
    await writer.submit(telling("a"))
    (pages,) = connections[0].execute("PRAGMA page_count").fetchone()
    connections[0].execute(f"PRAGMA max_page_count={pages + 3}").close()
    assert log_size(url) > 0

    await outcomes(writer, [printing("b", 1_000_000)])

    assert log_size(url) == 0
    assert connections[0].execute("PRAGMA busy_timeout").fetchone() == (int(db.BUSY_SECONDS * 1000),)
    assert stored(url) == [(1, "a")]


async def test_a_connection_that_is_not_usable_any_more_is_opened_anew(
    connections: list[sqlite3.Connection], writer: Writer, url: URL, published: list[list[CommittedEvent]]
) -> None:
    await writer.submit(telling("a"))
    connections[0].close()

    first, broken, last = await outcomes(writer, [telling("b"), breaking("c"), telling("d")])

    assert (first, plain(broken), last) == ("b", ("broken", "c"), "d")
    assert len(connections) == 2
    assert stored(url) == [(1, "a"), (2, "b"), (3, "d")]
    assert shown(published) == [[(1, "a")], [(2, "b"), (3, "d")]]


async def test_a_full_database_is_unavailable_to_all_and_usable_again_afterwards(
    connections: list[sqlite3.Connection], writer: Writer, url: URL
) -> None:
    (pages,) = connections[0].execute("PRAGMA page_count").fetchone()
    connections[0].execute(f"PRAGMA max_page_count={pages + 3}").close()

    refused = await outcomes(writer, [telling("a"), printing("b", 1_000_000), telling("c")])
    passed = await outcomes(writer, [telling("d")])

    assert [type(outcome) for outcome in refused] == [StoreUnavailable] * 3
    assert {str(outcome) for outcome in refused} == {"The database cannot be written: database or disk is full."}
    assert passed == ["d"]
    assert stored(url) == [(1, "d")]


async def test_a_disk_that_fails_is_unavailable_to_all_and_usable_again_afterwards(
    writer: Writer, url: URL, published: list[list[CommittedEvent]]
) -> None:
    await writer.submit(telling("a"))

    with no_growth(url):
        refused = await outcomes(writer, [telling("b"), printing("c", 1_000_000)])
    passed = await outcomes(writer, [telling("d")])

    assert [type(outcome) for outcome in refused] == [StoreUnavailable] * 2
    assert passed == ["d"]
    assert stored(url) == [(1, "a"), (2, "d")]
    assert shown(published) == [[(1, "a")], [(2, "d")]]


async def test_a_caller_that_went_away_does_not_disturb_its_neighbours(writer: Writer, url: URL) -> None:
    gone, neighbour = writer.submit(telling("a")), writer.submit(telling("b"))

    gone.cancel()

    assert await neighbour == "b"
    assert stored(url) == [(1, "a"), (2, "b")]


async def test_a_writer_can_be_closed_while_the_database_is_locked(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    writer = Writer(url, lambda told: None)

    with locked(url):
        refused = writer.submit(telling("a"))
        async with asyncio.timeout(30):
            await writer.close()

    assert isinstance(refused.exception(), StoreUnavailable)
    assert not writer._thread.is_alive()


async def test_a_writer_says_why_its_last_batch_failed_until_one_is_written(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)

    async with opened(url) as writer:
        with locked(url):
            await outcomes(writer, [telling("a"), telling("b")])
            failing, failures = writer.failing, writer.failures
        commits = writer.commit_seconds.count
        await outcomes(writer, [telling("c")])

        assert (failing, failures) == ("The database cannot be written: database is locked.", 1)
        assert (writer.failing, writer.failures) == (None, 1)
        assert (commits, writer.commit_seconds.count, writer.batch_sizes.sum) == (0, 1, 1)


async def test_a_change_that_is_broken_itself_is_no_failure_of_the_database(writer: Writer) -> None:
    await outcomes(writer, [telling("a"), breaking("b")])

    assert (writer.failing, writer.failures, writer.batch_sizes.sum) == (None, 0, 2)


async def test_a_probe_finds_out_whether_the_disk_takes_anything(writer: Writer, url: URL) -> None:
    await writer.submit(telling("a"))

    with no_growth(url):
        [refused] = await outcomes(writer, [printing("b", 1_000_000)])
        probed = await asyncio.gather(writer.probe(), return_exceptions=True)
        failing = writer.failing
    await writer.probe()

    assert isinstance(refused, StoreUnavailable)
    assert [type(outcome) for outcome in probed] == [StoreUnavailable]
    assert failing is not None
    assert writer.failing is None
    assert stored(url) == [(1, "a")]
    assert stored(url, "SELECT value FROM counters WHERE name = 'event_seq'") == [(1,)]


async def test_what_is_handed_over_is_in_the_queue_until_it_is_committed(writer: Writer) -> None:
    handed = [writer.submit(telling(name)) for name in "abc"]
    before = writer.queue

    await asyncio.gather(*handed)

    assert (before, writer.queue) == (3, 0)
    assert (writer.batch_sizes.count, writer.batch_sizes.sum) == (1, 3)
