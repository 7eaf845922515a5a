"""The records of a service that does not run; the lock keeps it from starting meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from app.config import Settings
from app.store import db, migrate
from app.store.lock import DataDirLock
from app.store.writer import Writer


@asynccontextmanager
async def records(settings: Settings) -> AsyncIterator[tuple[AsyncEngine, Writer]]:
    data_dir = settings.data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = DataDirLock(data_dir)
    url = db.database_url(data_dir, settings.database_url)
    await asyncio.to_thread(migrate.upgrade, url)
    engine, writer = db.open_readers(url), Writer(url, lambda told: None)
    try:
        yield engine, writer
    finally:
        await writer.close()
        await engine.dispose()
        held.release()
