import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import URL, ClauseElement, make_url, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Status
from app.core.errors import StoreUnavailable
from app.core.events import EventType
from app.store import (
    asks,
    calls,
    events,
    mcp,
    outputs,
    principals,
    retention,
    rules,
    runs,
    secrets,
    sessions,
    tools,
    writer,
)
from app.store.calls import CallFilter
from app.store.db import connect_writer, database_url, open_readers
from app.store.events import EventFilter
from app.store.visibility import SessionFilter
from app.store.writer import STATEMENTS, Statement

MODULES = [
    *(asks, calls, events, mcp, outputs, principals, retention),
    *(rules, runs, secrets, sessions, tools, writer),
]
SESSION_FILTER = SessionFilter(sessions=("ci-*", "a?"), workspaces=("/srv", "/w"), sees_default_workspace=True)
CALL_BOUNDS = {
    "session": "blue",
    "status": Status.ERROR,
    "tool": "toy",
    "message_id": "m1",
    "since": "call_1",
    "until": "call_3",
    "before": "call_2",
    "session_filter": SESSION_FILTER,
}
EVENT_BOUNDS = {"session": "blue", "call": "call_1", "types": frozenset(EventType), "session_filter": SESSION_FILTER}


def some_of(bounds: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of filters, for one principal and for all."""
    subsets = chain.from_iterable(combinations(bounds.items(), n) for n in range(len(bounds) + 1))
    for subset in subsets:
        yield {"principal": None} | dict(subset)
        yield {"principal": "ada"} | dict(subset)


def queries() -> Iterator[ClauseElement]:
    for wanted in some_of(CALL_BOUNDS):
        yield calls.page_query(CallFilter(**wanted), 10)
    for wanted in some_of(EVENT_BOUNDS):
        yield events.page_query(EventFilter(**wanted), 5, None, 10)
        yield events.page_query(EventFilter(**wanted), 5, 7, 10)
        yield events.span_query(EventFilter(**wanted), 5, 7, 10)
    for principal, after, session_filter in product((None, "ada"), (None, ("ada", "blue")), (None, SESSION_FILTER)):
        yield sessions.page_query(principal, after, 10, session_filter)


def test_every_statement_has_a_name_of_its_own() -> None:
    values = [value for module in MODULES for value in vars(module).values()]
    values += [item for value in values if isinstance(value, tuple) for item in value]

    assert len({id(value) for value in values if isinstance(value, Statement)}) == len(STATEMENTS)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_every_statement_and_query_compiles_for_both_databases(dialect: str) -> None:
    made = make_url(f"{dialect}://").get_dialect()()

    for said in [*STATEMENTS.values(), *queries()]:
        assert str(said.compile(dialect=made, compile_kwargs={"render_postcompile": True}))


def test_every_statement_is_one_that_sqlite_takes(url: URL) -> None:
    said = [value for room in MODULES for value in vars(room).values() if isinstance(value, Statement)]

    with closing(connect_writer(url)) as db:
        for statement in said:
            db.execute(f"EXPLAIN {statement.sql}", [None] * statement.sql.count("?")).close()


def test_the_database_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    assert database_url(tmp_path, None) == URL.create("sqlite+aiosqlite", database=str(tmp_path / "toolcrib.db"))
    assert database_url(tmp_path, "") == database_url(tmp_path, None)


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite", "sqlite+pysqlite"])
def test_another_file_can_be_configured(tmp_path: Path, driver: str) -> None:
    assert database_url(tmp_path, f"{driver}:////srv/x.db") == URL.create("sqlite+aiosqlite", database="/srv/x.db")


@pytest.mark.parametrize(
    "configured",
    [
        "postgresql://ada:hunter2@db/toolcrib",
        "postgresql+asyncpg://ada:hunter2@db/toolcrib",
        "mysql://db/toolcrib",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "toolcrib.db",
        "no url at all",
        "postgresql://db:port/toolcrib",
    ],
)
def test_anything_but_a_sqlite_file_is_refused_with_one_sentence_and_no_password(
    tmp_path: Path, configured: str
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        database_url(tmp_path, configured)

    sentence = str(caught.value)
    assert sentence.startswith("TOOLCRIB_DATABASE_URL names ")
    assert sentence.endswith(" only a SQLite file is supported, such as sqlite:////var/lib/toolcrib/toolcrib.db.")
    assert "hunter2" not in sentence


def test_the_writing_connection_waits_for_the_disk_at_each_commit(url: URL) -> None:
    full = 2

    with closing(connect_writer(url)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (full,)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO counters VALUES ('x', 1)",
        "UPDATE counters SET value = 7",
        "DELETE FROM counters",
        "CREATE TABLE x (y)",
        "DROP TABLE counters",
    ],
)
async def test_a_reading_connection_cannot_write(engine: AsyncEngine, statement: str) -> None:
    async with engine.connect() as db:
        with pytest.raises(OperationalError, match="attempt to write a readonly database"):
            await db.execute(text(statement))


async def test_every_pooled_reader_sees_the_latest_commit(engine: AsyncEngine, url: URL) -> None:
    async with engine.connect() as one, engine.connect() as other:
        readers = [one, other]
        with closing(connect_writer(url)) as db:
            db.execute("UPDATE counters SET value = 7")

        assert [await reader.scalar(text("SELECT value FROM counters")) for reader in readers] == [7, 7]


LISTED = [
    {"principal": "ada"},
    {"principal": "ada", "session": "s"},
    {"principal": None, "tool": "echo"},
    {"principal": None, "message_id": "m"},
    *({"principal": None, "status": status} for status in (Status.PENDING, Status.RUNNING, Status.ERROR)),
    {"principal": None, "since": "call_1", "until": "call_2"},
    {"principal": None, "before": "call_2"},
]


@pytest.mark.parametrize("wanted", LISTED, ids=str)
def test_a_list_is_found_by_an_index_and_read_in_its_order(url: URL, wanted: dict[str, Any]) -> None:
    query = calls.page_query(CallFilter(**wanted), 10)
    said = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))

    with closing(sqlite3.connect(str(url.database))) as db:
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {said}"))

    assert "SEARCH" in plan or "USING INDEX calls_failed" in plan
    assert "TEMP B-TREE" not in plan


def test_what_was_left_open_is_found_without_reading_the_rest(url: URL) -> None:
    said = str(calls.unfinished_query().compile(dialect=sqlite.dialect()))

    with closing(sqlite3.connect(str(url.database))) as db:
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {said}"))

    assert "calls_open" in plan


async def test_a_reader_that_goes_while_it_is_let_in_leaves_no_connection_behind(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def never(*args: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(aiosqlite.Connection, "execute", never)
    threads = threading.active_count()
    engine = open_readers(url)
    reading = asyncio.ensure_future(read_once(engine))

    async with asyncio.timeout(20):
        await reached.wait()
        reading.cancel()
        await asyncio.wait([reading])
        await engine.dispose()
        while threading.active_count() > threads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_once(engine: AsyncEngine) -> None:
    async with engine.connect() as db:
        await db.execute(text("SELECT 1"))
