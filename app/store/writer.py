"""The writer: one thread, one connection, one transaction for everything a loop tick gathered.

A change is a function that gets the open transaction. It returns its outcome
and tells the events that belong to it; the events get their numbers at the end
of the batch from a counter row in the same transaction, so the sequence is
dense and in commit order. After the commit, back on the loop, the events are
published first and the futures are resolved then.

A batch is first tried as one piece. When a change in it breaks, all is rolled
back and done again with a savepoint around each change, so that a bad one
fails alone; changes must therefore be repeatable.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, bindparam, insert, update

from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.events import Event
from app.store.db import Statement, connect_writer
from app.store.tables import counters, events

log = logging.getLogger(__name__)

T = TypeVar("T")
Told = tuple[Event, Call | None]
Publish = Callable[[list[Told]], None]

BATCH_LIMIT = 1024
GATHER_TICKS = 8  # fewer and larger commits under load; bench/RESULTS.md has what that was seen to save
EVENT_COUNTER = "event_seq"
EVENT_COLUMNS = ("seq", "type", "call", "principal", "session", "at", "data")

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
    """Everything that is written goes through `submit`."""

    def __init__(self, url: URL, publish: Publish) -> None:
        self._url = url
        self._publish = publish
        self._gathered: list[_Item[Any]] = []
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
        self._batches.put(batch)

    def _work(self) -> None:
        while (items := self._batches.get()) is not None:
            told = self._commit(items)
            self._loop.call_soon_threadsafe(self._finish, items, told)

    def _finish(self, items: list[_Item[Any]], told: list[Told]) -> None:
        """Tell, then resolve, then gather for the next."""
        try:
            if told:
                self._publish(told)
        finally:
            self._resolve(items)
            self._gather(GATHER_TICKS)

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
            return self._transact(items, _apply)
        except Exception:  # noqa: BLE001 - one change broke: find out which, and let the others pass
            self._roll_back()
        try:
            return self._transact(items, _apply_alone)
        except Exception as error:
            self._roll_back()
            log.exception("the database refused a batch of %d changes", len(items))
            for item in items:
                item.outcome = StoreUnavailable(f"The database cannot be written: {error}.")
            return []

    def _transact(
        self, items: list[_Item[Any]], apply: "Callable[[_Item[Any], Batch, sqlite3.Cursor], None]"
    ) -> list[Told]:
        cursor = self._cursor
        batch = Batch(cursor)
        cursor.execute("BEGIN IMMEDIATE")
        for item in items:
            apply(item, batch, cursor)
        if batch.told:
            self._number(batch)
        cursor.execute("COMMIT")
        return batch.told

    def _number(self, batch: Batch) -> None:
        row = batch.fetch(ADVANCE, {"b_name": EVENT_COUNTER, "count": len(batch.told)})
        assert row is not None, "the migration makes the counter row"
        for seq, (event, _) in enumerate(batch.told, row[0] - len(batch.told) + 1):
            event.seq = seq
        self._cursor.executemany(ADD_EVENT.sql, [_row(event) for event, _ in batch.told])

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.rollback()


def _apply(item: _Item[Any], batch: Batch, cursor: sqlite3.Cursor) -> None:
    item.outcome = item.change(batch)


def _apply_alone(item: _Item[Any], batch: Batch, cursor: sqlite3.Cursor) -> None:
    """With a savepoint of its own; its events go with it when it fails."""
    told = len(batch.told)
    cursor.execute("SAVEPOINT change")
    try:
        item.outcome = item.change(batch)
    except Exception as error:
        if not cursor.connection.in_transaction:
            raise  # a full disk ends the whole transaction, and nobody's change is written
        cursor.execute("ROLLBACK TO change")
        del batch.told[told:]
        item.outcome = _translated(error)
    cursor.execute("RELEASE change")


def _translated(error: Exception) -> Exception:
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"The database cannot be written: {error}.")
    return error


def _row(event: Event) -> tuple[Any, ...]:
    return (event.seq, event.type.value, event.call, event.principal, event.session, event.at, event.data)
