"""The writer: one thread, one connection, one transaction for everything a loop tick gathered.

A change is a function that gets the open transaction. It returns its outcome
and tells the events that belong to it; the events get their numbers at the end
of the batch from a counter row in the same transaction, so the sequence is
dense and in commit order. After the commit, back on the loop, the events are
published first and the futures are resolved then.

A batch is first tried as one piece. When a change in it breaks, all is rolled
back and done again with a savepoint around each change and its events, so that
a bad one fails alone; changes must therefore be repeatable. A database that is
locked is not tried again: its busy time has passed already.

An error is never a lie. SQLite rolls back by itself what it could not commit,
and no reader sees it; but when only the fsync failed, the frames of the
transaction stand whole in the write-ahead log, and a start after a crash would
find them and take them for committed. So something harmless is written over
them before the failure is told. What was acknowledged had its fsync, and the
next commit writes the same blocks anew, so nothing rests on a page that the
kernel dropped; only a power failure before that can bring back what was
refused.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, bindparam, insert, update

from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.events import Event
from app.core.util.histogram import Histogram
from app.store import db
from app.store.db import Statement, connect_writer
from app.store.tables import counters, events

log = logging.getLogger(__name__)

T = TypeVar("T")
Told = tuple[Event, Call | None]
Publish = Callable[[list[Told]], None]

BATCH_LIMIT = 1024
GATHER_TICKS = 8  # fewer and larger commits under load; bench/RESULTS.md has what that was seen to save
EVENT_COUNTER = "event_seq"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, BATCH_LIMIT)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
EVENT_COLUMNS = ("seq", "type", "call", "principal", "session", "at", "data")
COVER = "PRAGMA user_version=0"  # nobody reads it, and SQLite writes it though it is 0 already
UNSURE = (
    "The disk failed in the middle of a commit, so it is not sure whether this was recorded: "
    "read it back, or repeat it with the same Idempotency-Key."
)

ADVANCE = Statement(
    "events.advance",
    update(counters)
    .where(counters.c.name == bindparam("b_name"))
    .values(value=counters.c.value + bindparam("count"))
    .returning(counters.c.value),
)
ADD_EVENT = Statement("events.add", insert(events).values({name: bindparam(name) for name in EVENT_COLUMNS}))


class Batch:
    """One transaction under way, as a change sees it."""

    __slots__ = ("_cursor", "told")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.told: list[Told] = []

    def execute(self, statement: Statement, params: Mapping[str, Any]) -> int:
        """Run a statement; the answer is how many rows it touched."""
        return self._cursor.execute(statement.sql, statement.bind(params)).rowcount

    def fetch(self, statement: Statement, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run a statement that answers with at most one row."""
        rows: list[tuple[Any, ...]] = self._cursor.execute(statement.sql, statement.bind(params)).fetchall()
        return rows[0] if rows else None

    def tell(self, event: Event, call: Call | None = None) -> None:
        """Let this event be stored and published with the transaction."""
        self.told.append((event, call))


class _Item(Generic[T]):
    __slots__ = ("change", "future", "outcome")

    def __init__(self, change: Callable[[Batch], T], future: "asyncio.Future[T]") -> None:
        self.change = change
        self.future = future
        self.outcome: T | BaseException | None = None


class Writer:
    """Everything that is written goes through `submit`.

    `failing` is why the last batch could not be written, None when it was.
    """

    def __init__(self, url: URL, publish: Publish) -> None:
        self.failing: str | None = None
        self.failures = 0
        self.batch_sizes = Histogram(SIZES)
        self.commit_seconds = Histogram(SECONDS)
        self._url = url
        self._publish = publish
        self._gathered: list[_Item[Any]] = []
        self._handed = 0
        self._is_busy = False
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._batches: queue.SimpleQueue[list[_Item[Any]] | None] = queue.SimpleQueue()
        self._db = connect_writer(url)
        self._cursor = self._db.cursor()
        self._thread = threading.Thread(target=self._work, name="toolcrib-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[Batch], T]) -> "asyncio.Future[T]":
        """Hand a change over. The future is resolved after the commit that holds it."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(StoreUnavailable("The service is stopping and takes no more records."))
            return future
        self._gathered.append(_Item(change, future))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._hand_over)
        return future

    def probe(self) -> "asyncio.Future[None]":
        """Write nothing, but really: nothing is changed, and the disk has to take it all the same."""
        return self.submit(_touch)

    @property
    def queue(self) -> int:
        """How many changes were handed over and are not committed yet."""
        return len(self._gathered) + self._handed

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Write what was handed over, then end the thread."""
        if self._is_closed:
            return
        flushed = self.submit(lambda batch: None)
        self._is_closed = True
        with suppress(StoreUnavailable):  # each change's own future tells whether it was written
            await flushed
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()

    def _gather(self, ticks: int) -> None:
        """Let the loop go round a few times, so that those just woken and those just read are in the next batch."""
        if ticks:
            self._loop.call_soon(self._gather, ticks - 1)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        """At most one batch is in the thread; what comes meanwhile gathers for the next."""
        if not self._gathered:
            self._is_busy = False
            return
        batch, self._gathered = self._gathered[:BATCH_LIMIT], self._gathered[BATCH_LIMIT:]
        self._handed = len(batch)
        self._batches.put(batch)

    def _work(self) -> None:
        while (items := self._batches.get()) is not None:
            started = time.monotonic()
            told = self._commit(items)
            self._measure(items, time.monotonic() - started)
            self._loop.call_soon_threadsafe(self._finish, items, told)

    def _measure(self, items: list[_Item[Any]], seconds: float) -> None:
        """Note how the batch went. Only this thread notes, so nothing is counted twice or lost."""
        trouble = next((item.outcome for item in items if isinstance(item.outcome, StoreUnavailable)), None)
        self.failing = None if trouble is None else str(trouble)
        if trouble is not None:
            self.failures += 1
            return
        self.batch_sizes.note(len(items))
        self.commit_seconds.note(seconds)

    def _finish(self, items: list[_Item[Any]], told: list[Told]) -> None:
        """Tell, then resolve, then gather for the next."""
        self._handed = 0
        try:
            if told:
                self._publish(told)
        finally:
            self._resolve(items)
            is_alone = len(items) == 1 and not self._gathered  # and has nobody to wait for
            self._gather(0 if is_alone else GATHER_TICKS)

    def _resolve(self, items: list[_Item[Any]]) -> None:
        for item in items:
            if item.future.done():
                continue
            if isinstance(item.outcome, BaseException):
                item.future.set_exception(item.outcome)
            else:
                item.future.set_result(item.outcome)

    def _commit(self, items: list[_Item[Any]]) -> list[Told]:
        try:
            return self._transact(items, self._apply)
        except Exception as error:  # noqa: BLE001 - one change broke: find out which, and let the others pass
            in_doubt = self._clear_up(error, in_doubt=False)
            if _code_of(error) & 0xFF == sqlite3.SQLITE_BUSY:
                return _refuse(items, error, in_doubt)
        try:
            return self._transact(items, self._apply_alone)
        except Exception as error:  # noqa: BLE001 - it is told to everybody whose change was in the batch
            return _refuse(items, error, self._clear_up(error, in_doubt))

    def _transact(self, items: list[_Item[Any]], apply: Callable[[list[_Item[Any]], Batch], None]) -> list[Told]:
        cursor = self._cursor
        batch = Batch(cursor)
        cursor.execute("BEGIN IMMEDIATE")
        apply(items, batch)
        cursor.execute("COMMIT")
        return batch.told

    def _apply(self, items: list[_Item[Any]], batch: Batch) -> None:
        for item in items:
            item.outcome = item.change(batch)
        if batch.told:
            self._number(batch, batch.told)

    def _apply_alone(self, items: list[_Item[Any]], batch: Batch) -> None:
        """Each with a savepoint of its own; its events go with it when it fails."""
        cursor = self._cursor
        for item in items:
            told = len(batch.told)
            cursor.execute("SAVEPOINT change")
            try:
                item.outcome = item.change(batch)
                if fresh := batch.told[told:]:
                    self._number(batch, fresh)
            except Exception as error:
                if not self._db.in_transaction:
                    raise  # a full disk ends the whole transaction, and nobody's change is written
                cursor.execute("ROLLBACK TO change")
                del batch.told[told:]
                item.outcome = _translated(error)
            cursor.execute("RELEASE change")

    def _number(self, batch: Batch, told: list[Told]) -> None:
        row = batch.fetch(ADVANCE, {"b_name": EVENT_COUNTER, "count": len(told)})
        assert row is not None, "the migration makes the counter row"
        for seq, (event, _) in enumerate(told, row[0] - len(told) + 1):
            event.seq = seq
        self._cursor.executemany(ADD_EVENT.sql, [_row(event) for event, _ in told])

    def _clear_up(self, error: Exception, in_doubt: bool) -> bool:
        """Leave nothing of a failed transaction behind; the answer is whether that is in doubt."""
        self._roll_back()
        if _code_of(error) == sqlite3.SQLITE_FULL:
            self._make_room()
        return (in_doubt or _code_of(error) == sqlite3.SQLITE_IOERR_FSYNC) and not self._cover()

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.rollback()
        except sqlite3.Error:
            log.exception("the writer's connection is not usable any more and is opened anew")
            self._reopen()

    def _reopen(self) -> None:
        """The new one is open before the old one closes: the last to close would let the log be read anew."""
        with suppress(StoreUnavailable):
            old, self._db = self._db, connect_writer(self._url)
            self._cursor = self._db.cursor()
            old.close()

    def _make_room(self) -> None:
        """What is in the write-ahead log may need less space in the database. Nobody is waited for."""
        for pragma in ("busy_timeout=0", "wal_checkpoint(TRUNCATE)", f"busy_timeout={int(db.BUSY_SECONDS * 1000)}"):
            with suppress(sqlite3.Error):
                self._db.execute(f"PRAGMA {pragma}").close()

    def _cover(self) -> bool:
        """Write over what a failed fsync left in the log. If this one's fsync fails too, it stands there instead."""
        try:
            self._db.execute(COVER).close()
        except sqlite3.Error as error:
            return _code_of(error) == sqlite3.SQLITE_IOERR_FSYNC
        return True


def _refuse(items: list[_Item[Any]], error: Exception, in_doubt: bool) -> list[Told]:
    bug = None if isinstance(error, sqlite3.Error) else error
    log.error("the database refused a batch of %d changes: %s", len(items), error, exc_info=bug)
    for item in items:
        item.outcome = StoreUnavailable(UNSURE if in_doubt else f"The database cannot be written: {error}.")
    return []


def _code_of(error: Exception) -> int:
    """SQLite's own extended code; 0 for what is no error of SQLite's."""
    return getattr(error, "sqlite_errorcode", 0)


def _touch(batch: Batch) -> None:
    """Up and down again, because a page that never differed is not written."""
    for count in (1, -1):
        batch.fetch(ADVANCE, {"b_name": EVENT_COUNTER, "count": count})


def _translated(error: Exception) -> Exception:
    if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
        return StoreUnavailable(f"The database cannot be written: {error}.")
    return error


def _row(event: Event) -> tuple[Any, ...]:
    return (event.seq, event.type.value, event.call, event.principal, event.session, event.at, event.data)
