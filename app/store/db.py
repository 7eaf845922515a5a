"""The SQLite database: where it is and how it is opened."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiosqlite
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.core.errors import StoreUnavailable

FILE_NAME = "toolcrib.db"
BUSY_SECONDS = 5.0
READERS = 4
MAX_WAL_BYTES = 64 * 1024 * 1024  # a write-ahead log that readers let grow larger is cut when it is reset
PRAGMAS: tuple[str, ...] = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "cache_size=-32768",
    "wal_autocheckpoint=4000",
    f"journal_size_limit={MAX_WAL_BYTES}",
)


def database_url(data_dir: Path, configured: str | None) -> URL:
    """The configured database, or the file in the data directory. Only SQLite is supported."""
    if not configured:
        return URL.create("sqlite+aiosqlite", database=str(data_dir / FILE_NAME))
    try:
        url = make_url(configured)
    except (ArgumentError, ValueError):
        raise _unsupported("no database") from None
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith((":memory:", "file:")):
        raise _unsupported(repr(url.get_backend_name()))
    return url.set(drivername="sqlite+aiosqlite")


def _unsupported(named: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"TOOLCRIB_DATABASE_URL names {named}; only a SQLite file is supported, "
        "such as sqlite:////var/lib/toolcrib/toolcrib.db."
    )


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Turn errors of SQLite and SQLAlchemy into `StoreUnavailable`."""
    try:
        yield
    except (sqlite3.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreUnavailable(f"The database {url.database} cannot be used: {cause}.") from error


def connect_writer(url: URL) -> sqlite3.Connection:
    """The one connection that writes, in WAL mode, with an fsync for each commit."""
    with translated_errors(url):
        db = sqlite3.connect(
            str(url.database),
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        for pragma in PRAGMAS:
            db.execute(f"PRAGMA {pragma}").close()
    return db


def open_readers(url: URL) -> AsyncEngine:
    """The engine for all reads. Its connections cannot write."""

    async def connect() -> aiosqlite.Connection:
        db = await aiosqlite.connect(str(url.database), timeout=BUSY_SECONDS)
        try:
            await db.execute("PRAGMA query_only=1")
        except BaseException:  # the task may be canceled here
            await db.close()
            raise
        return db

    return create_async_engine(url, async_creator=connect, pool_size=READERS, max_overflow=READERS)
