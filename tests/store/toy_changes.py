"""Toy changes for the writer, and what came of them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

from sqlalchemy import URL

from app.core.calls import Call
from app.core.events import Event, EventType
from app.store import calls, outputs
from app.store.writer import Batch, CommittedEvent, Publish, Writer

Change = Callable[[Batch], Any]


class Broken(Exception):
    """What a bad change raises."""


def event(about: str | None = None) -> Event:
    return Event(0, EventType.CALL_PROGRESS, about, "ada", "default", 0)


def telling(about: str) -> Change:
    """A change that stores one byte, tells one event and answers with its name."""

    def change(batch: Batch) -> str:
        outputs.add(batch, about, 0, "stdout", b"x")
        batch.publish(event(about))
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
            batch.publish(event(about))
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


def shown(published: list[list[CommittedEvent]]) -> list[list[tuple[int, str | None]]]:
    return [[(event.seq, event.call) for event, _ in told] for told in published]


@asynccontextmanager
async def opened(url: URL, publish: Publish = lambda told: None) -> AsyncIterator[Writer]:
    made = Writer(url, publish)
    try:
        yield made
    finally:
        await made.close()


def transactions(said: list[str]) -> list[str]:
    return [statement for statement in said if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT"))]
