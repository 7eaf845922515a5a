"""Backup and restore of the database: checks, lock, and the end of calls that were waiting."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sqlalchemy import URL

from app.config import Settings
from app.core.calls import Call, Status
from app.core.errors import Interrupted, StoreUnavailable
from app.core.events import Event, EventType
from app.core.util.clocks import SystemClock
from app.core.util.json_codec import dumps
from app.store import atomic_write, backups, calls, db, lock, migrate
from app.store.backups import Contents
from app.store.integrity import SIDE_FILES, side_file
from app.store.writer import Batch, Writer

OWNER = "restore"
WAITING_IN_BACKUP = (
    "The database was restored from a backup in which this call was still waiting. "
    "It is unknown whether it has run since, so it is not run."
)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    contents: Contents
    saved: Path | None
    was_upgraded: bool
    ended: int


def backup(settings: Settings, file: Path, *, force: bool) -> Contents:
    """Write a checked copy of the database, whether the service runs or not."""
    database = _database(settings)
    if not database.exists():
        raise StoreUnavailable(f"There is no database {database} to back up.")
    _refuse_database(file, database)
    if file.is_dir() or not file.parent.is_dir():
        raise StoreUnavailable(f"{file} is not a file in an existing directory.")
    if file.exists() and not force:
        raise StoreUnavailable(f"{file} exists. Use another name, or --force to overwrite it.")
    with atomic_write.atomic_file(file, replace=force) as part:
        backups.copy(database, part)
        return backups.contents(part)


def restore(settings: Settings, file: Path, agree: Callable[[Contents], bool]) -> Restored | None:
    """Replace the database by a backup; None if `agree` returns False.

    Everything that can fail is done on a copy; until the last step the database is unchanged.
    """
    data_dir, database = settings.data_dir.absolute(), _database(settings)
    if not file.is_file():
        raise StoreUnavailable(f"There is no backup {file}.")
    _refuse_database(file, database)
    for folder in (data_dir, database.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    data_dir_lock = lock.DataDirLock(data_dir)
    try:
        with _temporary_database(database) as part:
            contents = backups.stage(file, part)
            if not agree(contents):
                return None
            url = _url(settings).set(database=str(part))
            upgraded = migrate.upgrade(url)
            ended = asyncio.run(_end_waiting(url))
            if os.geteuid() == 0:  # the service must be able to open a database that root restored
                owner = (database if database.exists() else database.parent).stat()
                os.chown(part, owner.st_uid, owner.st_gid)
            atomic_write.sync(part)
            return Restored(contents, backups.put_in_place(part, database), upgraded, ended)
    finally:
        data_dir_lock.release()


async def _end_waiting(url: URL) -> int:
    """End the pending calls of a backup: they may have run since, and must not run twice."""
    engine, writer = db.open_readers(url), Writer(url, lambda events: None)
    try:
        waiting = [call for call in await calls.unfinished(engine) if call.status is Status.PENDING]
        for call in waiting:
            await writer.submit(partial(_end_call, call))
    finally:
        await engine.dispose()
        await writer.close()
    return len(waiting)


def _end_call(call: Call, batch: Batch) -> None:
    at = max(SystemClock().now(), call.created_at)
    error = dumps(Interrupted(WAITING_IN_BACKUP).as_dict()).decode()
    end = replace(call, status=Status.ERROR, waiting=None, error=error, ended_at=at)
    if calls.adopt(batch, call, OWNER) and calls.close(batch, end, Status.PENDING, OWNER):
        batch.publish(Event(0, EventType.CALL_ERROR, call.id, call.principal, call.session, at, None), end)


@contextmanager
def _temporary_database(database: Path) -> Iterator[Path]:
    part = atomic_write.temporary_file(database)
    try:
        yield part
    finally:
        for suffix in ("", *SIDE_FILES):
            side_file(part, suffix).unlink(missing_ok=True)


def _refuse_database(file: Path, database: Path) -> None:
    if file.resolve() in {side_file(database, suffix) for suffix in ("", *SIDE_FILES)}:
        raise StoreUnavailable(f"{file} is the database itself. Use another file.")


def _database(settings: Settings) -> Path:
    """The file itself: SQLite creates its WAL beside the file, not beside a link to it."""
    return Path(str(_url(settings).database)).resolve()


def _url(settings: Settings) -> URL:
    return db.database_url(settings.data_dir.absolute(), settings.database_url)
