"""Backup and restore for the command line: the checks before, the lock, and what is ended on the way."""

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
WAITED = (
    "The records were restored from a backup in which this call was still waiting. "
    "Whether it has run since is not known, so it is not run."
)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    contents: Contents
    kept: Path | None
    was_upgraded: bool
    ended: int


def backup(settings: Settings, file: Path, *, force: bool) -> Contents:
    """Write a checked copy of the records to a file, whether the service runs or not."""
    database = _database(settings)
    if not database.exists():
        raise StoreUnavailable(f"There is no database {database} to back up.")
    _refuse_own(file, database)
    if file.is_dir() or not file.parent.is_dir():
        raise StoreUnavailable(f"{file} is no file name in a folder that exists.")
    if file.exists() and not force:
        raise StoreUnavailable(f"{file} exists. Give another name, or --force to overwrite it.")
    with atomic_write.atomic_file(file, replace=force) as part:
        backups.copy(database, part)
        return backups.contents(part)


def restore(settings: Settings, file: Path, agree: Callable[[Contents], bool]) -> Restored | None:
    """Put a backup in the place of the records, unless it is not agreed to: then None.

    All that can fail is done with a copy; until the last step the records are as they were.
    """
    data_dir, database = settings.data_dir.absolute(), _database(settings)
    if not file.is_file():
        raise StoreUnavailable(f"There is no backup {file}.")
    _refuse_own(file, database)
    for folder in (data_dir, database.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = lock.DataDirLock(data_dir)
    try:
        with _staging(database) as part:
            found = backups.stage(file, part)
            if not agree(found):
                return None
            url = _url(settings).set(database=str(part))
            upgraded = migrate.upgrade(url)
            ended = asyncio.run(_end_waiting(url))
            _give_to_owner(part, database if database.exists() else database.parent)
            atomic_write.sync(part)
            return Restored(found, backups.put_in_place(part, database), upgraded, ended)
    finally:
        held.release()


async def _end_waiting(url: URL) -> int:
    """A call that waited when the backup was made may have run since; running it again could do it twice."""
    engine, writer = db.open_readers(url), Writer(url, lambda told: None)
    try:
        waiting = [call for call in await calls.unfinished(engine) if call.status is Status.PENDING]
        for call in waiting:
            await writer.submit(partial(_end, call))
    finally:
        await engine.dispose()
        await writer.close()
    return len(waiting)


def _end(call: Call, batch: Batch) -> None:
    at = max(SystemClock().now(), call.created_at)
    error = dumps(Interrupted(WAITED).as_dict()).decode()
    end = replace(call, status=Status.ERROR, waiting=None, error=error, ended_at=at)
    if calls.adopt(batch, call, OWNER) and calls.close(batch, end, Status.PENDING, OWNER):
        batch.publish(Event(0, EventType.CALL_ERROR, call.id, call.principal, call.session, at, None), end)


@contextmanager
def _staging(database: Path) -> Iterator[Path]:
    """A temporary file beside the database for the new one."""
    part = atomic_write.temporary_file(database)
    try:
        yield part
    finally:
        for suffix in ("", *SIDE_FILES):
            side_file(part, suffix).unlink(missing_ok=True)


def _refuse_own(file: Path, database: Path) -> None:
    if file.resolve() in {side_file(database, suffix) for suffix in ("", *SIDE_FILES)}:
        raise StoreUnavailable(f"{file} is the database itself. Give another file.")


def _give_to_owner(part: Path, like: Path) -> None:
    """Whoever restores, as root perhaps, the service must be able to open it."""
    if os.geteuid() == 0:
        os.chown(part, like.stat().st_uid, like.stat().st_gid)


def _database(settings: Settings) -> Path:
    """The file itself: SQLite creates its WAL beside the file, not beside a link to it."""
    return Path(str(_url(settings).database)).resolve()


def _url(settings: Settings) -> URL:
    return db.database_url(settings.data_dir.absolute(), settings.database_url)
