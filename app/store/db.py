"""The database: where it is, how it is opened, and statements compiled once."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import aiosqlite
from sqlalchemy import URL, ClauseElement, make_url
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.sql.compiler import SQLCompiler

from app.core.errors import StoreUnavailable

Params = dict[str, Any]

FILE_NAME = "toolcrib.db"
BUSY_SECONDS = 5.0
READERS = 4
LOG_BYTES = 64 * 1024 * 1024  # what readers let the write-ahead log grow beyond is given back when it starts anew
PRAGMAS: tuple[str, ...] = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "cache_size=-32768",
    "wal_autocheckpoint=4000",
    f"journal_size_limit={LOG_BYTES}",
)

STATEMENTS: dict[str, ClauseElement] = {}
"""Every writing statement by name, so that a test can compile them all for both databases."""

_dialect = sqlite.dialect(paramstyle="qmark")


class Statement:
    """One statement said in SQLAlchemy Core, ready for the raw SQLite connection. All values are bind parameters.

    Parameters are given by name and bound by place, which is the faster way.
    """

    __slots__ = ("bind", "sql")

    def __init__(self, name: str, said: ClauseElement) -> None:
        STATEMENTS[name] = said
        compiled = said.compile(dialect=_dialect)
        self.sql = str(compiled)
        self.bind = _in_order(cast(SQLCompiler, compiled).positiontup or [])


def _in_order(names: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) == 1:
        return lambda params: (params[names[0]],)
    return itemgetter(*names)


def database_url(data_dir: Path, configured: str | None) -> URL:
    """The configured database, or a file in the data directory. Only SQLite for now."""
    if not configured:
        return URL.create("sqlite+aiosqlite", database=str(data_dir / FILE_NAME))
    try:
        url = make_url(configured)
    except (ArgumentError, ValueError):
        raise _refused("no database") from None
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith((":memory:", "file:")):
        raise _refused(repr(url.get_backend_name()))
    return url.set(drivername="sqlite+aiosqlite")


def _refused(named: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"TOOLCRIB_DATABASE_URL names {named}; this version keeps its records in a SQLite file only, "
        "as in sqlite:////var/lib/toolcrib/toolcrib.db."
    )


@contextmanager
def usable(url: URL) -> Iterator[None]:
    """A file that is no database, or one that cannot be read or written, is said in one sentence."""
    try:
        yield
    except (sqlite3.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreUnavailable(f"The database {url.database} cannot be used: {cause}.") from error


def connect_writer(url: URL) -> sqlite3.Connection:
    """The one connection that writes: WAL, and each commit on the disk before it is told."""
    with usable(url):
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
        except BaseException:  # whoever asked may have gone in the middle
            await db.close()
            raise
        return db

    return create_async_engine(url, async_creator=connect, pool_size=READERS, max_overflow=READERS)
