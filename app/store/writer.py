"""The writer: one thread, one connection, one transaction for all changes gathered in a tick of the event loop.

A change is a function that gets the open transaction. It returns a result and
publishes events. Events get their sequence numbers at the end of the batch from
a counter row in the same transaction, so the sequence has no gaps and follows
the order of commits. After the commit, back on the event loop, the events are
published first; then the futures are resolved.

A batch is tried as a whole first. When a change in it fails, the transaction is
rolled back and repeated with a savepoint around each change and its events, so
that only the faulty change fails; changes must therefore be repeatable. A locked
database is not tried again: the busy timeout has passed already.

An error means: not stored. SQLite rolls back what it could not commit, and no
reader sees it. But when only the fsync failed, the frames of the transaction are
complete in the write-ahead log, and recovery after a crash would treat them as
committed. So a harmless frame is written over them before the failure is
reported. Acknowledged transactions had their fsync, and the next commit writes
the same blocks again, so nothing depends on a page that the kernel dropped. Only
a power failure before that can bring back what was refused.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import URL, ClauseElement, Table, bindparam, insert, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.compiler import SQLCompiler

from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.events import Event
from app.core.util.histogram import Histogram
from app.store import db
from app.store.db import connect_writer
from app.store.tables import counters, events

log = logging.getLogger(__name__)

T = TypeVar("T")
CommittedEvent = tuple[Event, Call | None]
"""An event, and the call it is a view of."""
Publish = Callable[[list[CommittedEvent]], None]

MAX_BATCH = 1024
GATHER_TICKS = 8  # fewer and larger commits under load; docs/decisions.md has the gain
EVENT_COUNTER = "event_seq"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, MAX_BATCH)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WRITE_HARMLESS_FRAME = "PRAGMA user_version=0"  # no code reads it, and SQLite writes it although it is 0 already
IN_DOUBT = (
    "The disk failed during a commit, so it is unknown whether this was stored: "
    "read it back, or repeat it with the same Idempotency-Key."
)

STATEMENTS: dict[str, ClauseElement] = {}
"""Every writing statement by name, so that a test can compile them all for both databases."""

_dialect = sqlite.dialect(paramstyle="qmark")


class Statement:
    """An SQLAlchemy Core statement, compiled once for the raw SQLite connection. All values are bind parameters.

    Parameters are named by the caller and bound by position, which is faster than by name.
    """

    __slots__ = ("bind", "sql")

    def __init__(self, name: str, clause: ClauseElement) -> None:
        STATEMENTS[name] = clause
        compiled = clause.compile(dialect=_dialect)
        names = cast(SQLCompiler, compiled).positiontup or []
        self.sql = str(compiled)
        self.bind: Callable[[Mapping[str, Any]], tuple[Any, ...]] = (
            (lambda params: (params[names[0]],)) if len(names) == 1 else itemgetter(*names)
        )


def parameters(table: Table) -> dict[str, Any]:
    """A bind parameter for each column, for an INSERT."""
    return {column.name: bindparam(column.name) for column in table.columns}


def put_statement(name: str, table: Table, *updated: str) -> Statement:
    """Insert a row, or update these columns of the row with the same primary key."""
    new = upsert(table).values(parameters(table))
    values = {column: new.excluded[column] for column in updated}
    return Statement(name, new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=values))


def row_of(item: object, table: Table, **computed: Any) -> dict[str, Any]:
    """A row with the attributes of `item` that are named like the columns; `computed` has the other columns."""
    names = (column.name for column in table.columns)
    return {name: computed[name] if name in computed else getattr(item, name) for name in names}


ADVANCE = Statement(
    "events.advance",
    update(counters)
    .where(counters.c.name == bindparam("b_name"))
    .values(value=counters.c.value + bindparam("count"))
    .returning(counters.c.value),
)
ADD_EVENT = Statement("events.add", insert(events).values(parameters(events)))


class Batch:
    """The open transaction, as a change sees it."""

    __slots__ = ("_cursor", "events")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.events: list[CommittedEvent] = []

    def execute(self, statement: Statement, params: Mapping[str, Any]) -> int:
        """Run a statement; returns the number of affected rows."""
        return self._cursor.execute(statement.sql, statement.bind(params)).rowcount

    def insert(self, statement: Statement, values: tuple[Any, ...]) -> None:
        """Run a statement with values in the order of its parameters; the fastest way."""
        self._cursor.execute(statement.sql, values)

    def fetch(self, statement: Statement, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run a statement that returns at most one row."""
        rows: list[tuple[Any, ...]] = self._cursor.execute(statement.sql, statement.bind(params)).fetchall()
        return rows[0] if rows else None

    def publish(self, event: Event, call: Call | None = None) -> None:
        """Store this event with the transaction, and publish it after the commit."""
        self.events.append((event, call))


class _Item(Generic[T]):
    __slots__ = ("change", "future", "outcome")

    def __init__(self, change: Callable[[Batch], T], future: "asyncio.Future[T]") -> None:
        self.change = change
        self.future = future
        self.outcome: T | BaseException | None = None


class Writer:
    """All writes go through `submit`. `failing` is the error of the last batch, None when it was written."""

    def __init__(self, url: URL, publish: Publish) -> None:
        self.failing: str | None = None
        self.failures = 0
        self.batch_sizes = Histogram(BATCH_SIZES)
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self._url = url
        self._publish = publish
        self._gathered: list[_Item[Any]] = []
        self._committing = 0
        self._is_busy = False
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._batches: queue.SimpleQueue[list[_Item[Any]] | None] = queue.SimpleQueue()
        self._db = connect_writer(url)
        self._cursor = self._db.cursor()
        self._thread = threading.Thread(target=self._run_thread, name="toolcrib-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[Batch], T]) -> "asyncio.Future[T]":
        """Queue a change. The future is resolved after the commit that holds it."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(StoreUnavailable("The service is stopping and stores nothing more."))
            return future
        self._gathered.append(_Item(change, future))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._start_batch)
        return future

    async def commit_and_apply(self, change: Callable[[Batch], T], apply: Callable[[T], None]) -> T:
        """Store a change, then apply its result to memory: in the order of the commits, and even if the waiting task
        is canceled, because a submitted change is committed all the same."""
        future = self.submit(change)
        future.add_done_callback(lambda done: None if done.cancelled() or done.exception() else apply(done.result()))
        return await asyncio.shield(future)

    def probe(self) -> "asyncio.Future[None]":
        """Write to the disk without changing any value."""
        return self.submit(_touch)

    @property
    def queue(self) -> int:
        """How many changes are not committed yet."""
        return len(self._gathered) + self._committing

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Write the queued changes, then end the thread."""
        if self._is_closed:
            return
        flushed = self.submit(lambda batch: None)
        self._is_closed = True
        with suppress(StoreUnavailable):  # the future of each change has its own error
            await flushed
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()

    def _gather(self, ticks: int) -> None:
        """Wait some ticks, so that tasks just resumed and requests just read get into the next batch."""
        if ticks:
            self._loop.call_soon(self._gather, ticks - 1)
        else:
            self._start_batch()

    def _start_batch(self) -> None:
        """At most one batch is in the thread; changes submitted meanwhile go into the next."""
        if not self._gathered:
            self._is_busy = False
            return
        batch, self._gathered = self._gathered[:MAX_BATCH], self._gathered[MAX_BATCH:]
        self._committing = len(batch)
        self._batches.put(batch)

    def _run_thread(self) -> None:
        while (items := self._batches.get()) is not None:
            started = time.monotonic()
            committed = self._commit(items)
            self._measure(items, time.monotonic() - started)
            self._loop.call_soon_threadsafe(self._finish, items, committed)

    def _measure(self, items: list[_Item[Any]], seconds: float) -> None:
        """Update the metrics; only the writer's thread does."""
        error = next((item.outcome for item in items if isinstance(item.outcome, StoreUnavailable)), None)
        self.failing = None if error is None else str(error)
        if error is not None:
            self.failures += 1
            return
        self.batch_sizes.record(len(items))
        self.commit_seconds.record(seconds)

    def _finish(self, items: list[_Item[Any]], committed: list[CommittedEvent]) -> None:
        """Publish the events, resolve the futures, gather the next batch."""
        self._committing = 0
        try:
            if committed:
                self._publish(committed)
        finally:
            self._resolve(items)
            is_idle = len(items) == 1 and not self._gathered  # no other change to wait for
            self._gather(0 if is_idle else GATHER_TICKS)

    def _resolve(self, items: list[_Item[Any]]) -> None:
        for item in items:
            if item.future.done():
                continue
            if isinstance(item.outcome, BaseException):
                item.future.set_exception(item.outcome)
            else:
                item.future.set_result(item.outcome)

    def _commit(self, items: list[_Item[Any]]) -> list[CommittedEvent]:
        try:
            return self._transact(items, self._apply)
        except Exception as error:  # noqa: BLE001 - a change failed: find out which one, and commit the others
            in_doubt = self._roll_back_failed(error, in_doubt=False)
            if _code_of(error) & 0xFF == sqlite3.SQLITE_BUSY:
                return _refuse(items, error, in_doubt)
        try:
            return self._transact(items, self._apply_each)
        except Exception as error:  # noqa: BLE001 - it becomes the error of every change in the batch
            return _refuse(items, error, self._roll_back_failed(error, in_doubt))

    def _transact(
        self, items: list[_Item[Any]], apply: Callable[[list[_Item[Any]], Batch], None]
    ) -> list[CommittedEvent]:
        cursor = self._cursor
        batch = Batch(cursor)
        cursor.execute("BEGIN IMMEDIATE")
        apply(items, batch)
        cursor.execute("COMMIT")
        return batch.events

    def _apply(self, items: list[_Item[Any]], batch: Batch) -> None:
        for item in items:
            item.outcome = item.change(batch)
        if batch.events:
            self._number(batch, batch.events)

    def _apply_each(self, items: list[_Item[Any]], batch: Batch) -> None:
        """Each change in its own savepoint; its events are dropped with it when it fails."""
        cursor = self._cursor
        for item in items:
            count = len(batch.events)
            cursor.execute("SAVEPOINT change")
            try:
                item.outcome = item.change(batch)
                if new := batch.events[count:]:
                    self._number(batch, new)
            except Exception as error:
                if not self._db.in_transaction:
                    raise  # a full disk ends the whole transaction: no change is written
                cursor.execute("ROLLBACK TO change")
                del batch.events[count:]
                item.outcome = error
                if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
                    item.outcome = _unavailable(error)
            cursor.execute("RELEASE change")

    def _number(self, batch: Batch, new: list[CommittedEvent]) -> None:
        row = batch.fetch(ADVANCE, {"b_name": EVENT_COUNTER, "count": len(new)})
        assert row is not None, "the migration inserts the counter row"
        for seq, (event, _) in enumerate(new, row[0] - len(new) + 1):
            event.seq = seq
        self._cursor.executemany(
            ADD_EVENT.sql, [(e.seq, e.type.value, e.call, e.principal, e.session, e.at, e.data) for e, _ in new]
        )

    def _roll_back_failed(self, error: Exception, in_doubt: bool) -> bool:
        """Roll a failed transaction back; returns whether it could still be committed by a crash recovery."""
        try:
            if self._db.in_transaction:
                self._db.rollback()
        except sqlite3.Error:
            log.exception("the writer's connection is broken and is opened again")
            self._reopen()
        if _code_of(error) == sqlite3.SQLITE_FULL:
            self._checkpoint()
        return (in_doubt or _code_of(error) == sqlite3.SQLITE_IOERR_FSYNC) and not self._overwrite_wal_tail()

    def _reopen(self) -> None:
        """Open the new connection before closing the old one: the last one to close would recover the log."""
        with suppress(StoreUnavailable):
            old, self._db = self._db, connect_writer(self._url)
            self._cursor = self._db.cursor()
            old.close()

    def _checkpoint(self) -> None:
        """Move the write-ahead log into the database, where it may need less space; does not wait for readers."""
        for pragma in ("busy_timeout=0", "wal_checkpoint(TRUNCATE)", f"busy_timeout={int(db.BUSY_SECONDS * 1000)}"):
            with suppress(sqlite3.Error):
                self._db.execute(f"PRAGMA {pragma}").close()

    def _overwrite_wal_tail(self) -> bool:
        """Write over the frames of the failed commit. A failed fsync is fine here: this frame replaced them anyway."""
        try:
            self._db.execute(WRITE_HARMLESS_FRAME).close()
        except sqlite3.Error as error:
            return _code_of(error) == sqlite3.SQLITE_IOERR_FSYNC
        return True


def _refuse(items: list[_Item[Any]], error: Exception, in_doubt: bool) -> list[CommittedEvent]:
    bug = None if isinstance(error, sqlite3.Error) else error
    log.error("the database refused a batch of %d changes: %s", len(items), error, exc_info=bug)
    for item in items:
        item.outcome = StoreUnavailable(IN_DOUBT) if in_doubt else _unavailable(error)
    return []


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"The database cannot be written: {error}.")


def _code_of(error: Exception) -> int:
    """SQLite's extended error code; 0 for other exceptions."""
    return getattr(error, "sqlite_errorcode", 0)


def _touch(batch: Batch) -> None:
    """Count up and down again, because SQLite does not write an unchanged page."""
    for count in (1, -1):
        batch.fetch(ADVANCE, {"b_name": EVENT_COUNTER, "count": count})
