"""A real database per test, copied from one that was migrated once, and the real writer on it."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import migrate
from app.store.db import connect_writer, database_url, open_readers
from app.store.writer import CommittedEvent, Writer


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest schema, to copy from."""
    url = database_url(tmp_path_factory.mktemp("migrated"), None)
    migrate.upgrade(url)
    return Path(str(url.database))


@pytest.fixture
def url(migrated: Path, tmp_path: Path) -> URL:
    url = database_url(tmp_path, None)
    shutil.copy(migrated, str(url.database))
    return url


@pytest.fixture
async def engine(url: URL) -> AsyncIterator[AsyncEngine]:
    engine = open_readers(url)
    yield engine
    await engine.dispose()


@pytest.fixture
def published() -> list[list[CommittedEvent]]:
    """What the writer published: one list for each commit that had events."""
    return []


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The real connections that writers open from now on."""
    made: list[sqlite3.Connection] = []

    def connect(url: URL) -> sqlite3.Connection:
        made.append(connect_writer(url))
        return made[-1]

    monkeypatch.setattr("app.store.writer.connect_writer", connect)
    return made


@pytest.fixture
async def writer(url: URL, published: list[list[CommittedEvent]]) -> AsyncIterator[Writer]:
    writer = Writer(url, published.append)
    yield writer
    await writer.close()


@pytest.fixture
def said(connections: list[sqlite3.Connection], writer: Writer) -> list[str]:
    """The statements that the writer's connection was told."""
    said: list[str] = []
    connections[0].set_trace_callback(said.append)
    return said
