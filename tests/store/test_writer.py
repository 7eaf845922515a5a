import asyncio
import resource
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.events import Event, EventType
from app.store import calls, db, events, outputs, writer
from app.store.db import connect_writer, database_url
from app.store.events import EventFilter
from app.store.writer import BATCH_LIMIT, Batch, Told, Writer

Change = Callable[[Batch], Any]

EVERYTHING = EventFilter(principal=None)


class Broken(Exception):
    """What a bad change raises."""


def event(about: str | None = None) -> Event:
    return Event(0, EventType.CALL_PROGRESS, about, "ada", "default", 0)


def telling(about: str) -> Change:
    """A change that stores one byte, tells one event and answers with its name."""

    def change(batch: Batch) -> str:
        outputs.add(batch, about, 0, "stdout", b"x")
        batch.tell(event(about))
        return about

    return change


def printing(about: str, size: int) -> Change:
    return lambda batch: outputs.add(batch, about, 0, "stdout", b"x" * size)


def breaking(about: str) -> Change:
    """A change that breaks after it wrote and told."""

    def change(batch: Batch) -> None:
        telling(about)(batch)
        raise Broken(about)

    return change


def losing(about: str) -> Change:
    """A compare-and-set on a call that is not there; it tells only when it wins."""

    def change(batch: Batch) -> bool:
        won = calls.start(batch, Call(about, "ada", "toy", 0), "owner", 0)
        if won:
            batch.tell(event(about))
        return won

    return change


async def outcomes(made: Writer, changes: list[Change]) -> list[Any]:
    """All changes handed over in one tick."""
    async with asyncio.timeout(30):
        return await asyncio.gather(*(made.submit(change) for change in changes), return_exceptions=True)


def plain(outcome: Any) -> Any:
    return ("broken", str(outcome)) if isinstance(outcome, Broken) else outcome


def stored(url: URL, query: str = "SELECT seq, call FROM events ORDER BY seq") -> list[Any]:
    """What a connection of somebody else sees."""
    with closing(sqlite3.connect(str(url.database))) as other:
        return other.execute(query).fetchall()


def shown(published: list[list[Told]]) -> list[list[tuple[int, str | None]]]:
    return [[(event.seq, event.call) for event, _ in told] for told in published]


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
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{url.database}-wal").stat().st_size, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@asynccontextmanager
async def opened(url: URL, publish: writer.Publish = lambda told: None) -> AsyncIterator[Writer]:
    made = Writer(url, publish)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The real connections that writers open from now on."""
    made: list[sqlite3.Connection] = []

    def connect(url: URL) -> sqlite3.Connection:
        made.append(connect_writer(url))
        return made[-1]

    monkeypatch.setattr(writer, "connect_writer", connect)
    return made


@pytest.fixture
def said(connections: list[sqlite3.Connection], writer: Writer) -> list[str]:
    """The statements that the writer's connection was told."""
    said: list[str] = []
    connections[0].set_trace_callback(said.append)
    return said


def transactions(said: list[str]) -> list[str]:
    return [statement for statement in said if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT"))]


async def test_all_changes_of_one_tick_are_one_transaction(
    said: list[str], writer: Writer, published: list[list[Told]]
) -> None:
    names = [f"call_{n}" for n in range(100)]

    assert await outcomes(writer, [telling(name) for name in names]) == names

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"]
    assert shown(published) == [list(enumerate(names, 1))]


async def test_what_comes_while_a_batch_is_written_gathers_for_the_next_one(
    said: list[str], writer: Writer, published: list[list[Told]]
) -> None:
    later: list[asyncio.Future[Any]] = []

    def first(batch: Batch) -> None:
        writer._loop.call_soon_threadsafe(lambda: later.extend(writer.submit(telling(name)) for name in "abc"))
        batch.tell(event("first"))

    async with asyncio.timeout(30):
        await writer.submit(first)
        assert await asyncio.gather(*later) == ["a", "b", "c"]

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"] * 2
    assert shown(published) == [[(1, "first")], [(2, "a"), (3, "b"), (4, "c")]]


async def test_a_tick_of_more_than_a_batch_is_written_in_order_in_several(
    said: list[str], writer: Writer, published: list[list[Told]]
) -> None:
    names = [f"call_{n}" for n in range(2 * BATCH_LIMIT + 1)]

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
            batch.tell(event(name))

    await outcomes(writer, [telling("before"), change, telling("after")])

    assert stored(url) == [(1, "before"), (2, "a"), (3, "b"), (4, "c"), (5, "after")]


async def test_an_event_is_stored_as_it_was_told(writer: Writer, engine: AsyncEngine) -> None:
    told = Event(0, EventType.PLAN_UPDATED, None, "ada", "blue", 123, '{"plan":"é"}')

    await writer.submit(lambda batch: batch.tell(told))

    found = await events.page(engine, EVERYTHING, 0, None, 10)
    assert found == [(Event(1, EventType.PLAN_UPDATED, None, "ada", "blue", 123, '{"plan":"é"}'), None)]


async def test_events_are_published_after_their_commit_and_before_the_future_resolves(url: URL) -> None:
    order: list[tuple[str, list[Any], bool]] = []

    def publish(told: list[Told]) -> None:
        order.append(("published", stored(url), future.done()))

    async with opened(url, publish) as writer:
        future = writer.submit(telling("a"))
        await future
        order.append(("resolved", stored(url), future.done()))

    assert order == [("published", [(1, "a")], False), ("resolved", [(1, "a")], True)]


async def test_a_subscriber_that_breaks_does_not_leave_callers_waiting(url: URL) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["exception"]))

    def publish(told: list[Told]) -> None:
        raise Broken("subscriber")

    async with opened(url, publish) as writer:
        assert await outcomes(writer, [telling("a"), telling("b")]) == ["a", "b"]

    assert [plain(complaint) for complaint in complaints] == [("broken", "subscriber")]


async def test_a_change_without_events_publishes_nothing(writer: Writer, published: list[list[Told]]) -> None:
    assert await writer.submit(lambda batch: "done") == "done"

    assert published == []


async def test_a_broken_change_fails_alone_and_leaves_neither_rows_nor_a_gap(
    writer: Writer, url: URL, published: list[list[Told]]
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


async def test_after_a_broken_batch_the_next_one_goes_the_fast_way_again(said: list[str], writer: Writer) -> None:
    await outcomes(writer, [breaking("a")])
    said.clear()

    await outcomes(writer, [telling("b"), telling("c")])

    assert transactions(said) == ["BEGIN IMMEDIATE", "COMMIT"]


async def test_a_lost_compare_and_set_tells_its_caller_and_writes_no_event(
    writer: Writer, url: URL, published: list[list[Told]]
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
    published: list[list[Told]] = []
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


async def test_a_locked_database_is_unavailable_to_all_and_usable_again_afterwards(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    published: list[list[Told]] = []

    async with opened(url, published.append) as writer:
        with locked(url):
            refused = await outcomes(writer, [telling("a"), losing("b"), telling("c")])
        passed = await outcomes(writer, [telling("d")])

    assert [type(outcome) for outcome in refused] == [StoreUnavailable] * 3
    assert {str(outcome) for outcome in refused} == {"The database cannot be written: database is locked."}
    assert passed == ["d"]
    assert stored(url) == [(1, "d")]
    assert shown(published) == [[(1, "d")]]


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
    writer: Writer, url: URL, published: list[list[Told]]
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


async def test_closing_writes_everything_that_was_handed_over(url: URL) -> None:
    writer = Writer(url, lambda told: None)
    futures = [writer.submit(telling(f"call_{n:04}")) for n in range(BATCH_LIMIT + 10)]

    async with asyncio.timeout(30):
        await writer.close()

    assert [future.result() for future in futures] == [name for _, name in stored(url)]


async def test_after_closing_nothing_is_taken_any_more(url: URL) -> None:
    writer = Writer(url, lambda told: None)
    await writer.close()
    await writer.close()

    with pytest.raises(StoreUnavailable, match=r"^The service is stopping and takes no more records\.$"):
        await writer.submit(telling("a"))
    assert stored(url) == []


async def test_a_writer_can_be_closed_while_the_database_is_locked(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    writer = Writer(url, lambda told: None)

    with locked(url):
        refused = writer.submit(telling("a"))
        async with asyncio.timeout(30):
            await writer.close()

    assert isinstance(refused.exception(), StoreUnavailable)
    assert not writer._thread.is_alive()


async def test_the_writer_commits_to_the_disk_before_it_tells(
    connections: list[sqlite3.Connection], writer: Writer
) -> None:
    full = 2

    assert connections[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connections[0].execute("PRAGMA synchronous").fetchone() == (full,)
