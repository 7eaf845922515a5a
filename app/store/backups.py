"""Backups: a consistent copy of the database in one file, and such a file put in its place."""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.core.errors import SchemaTooNew, StoreUnavailable
from app.store import atomic_write, migrate
from app.store.integrity import SIDE_FILES, beside, connect, faults_of, looking, revision_of

MAGIC = b"SQLite format 3\0"
IN_WAL_MODE = b"\2\2"
KEPT = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a copy holds."""

    revision: str
    calls: int
    events: int
    bytes: int


def copy(database: Path, target: Path) -> None:
    """A compact copy of a database in use, as it is at one moment. Nobody waits for it.

    `target` is an empty file. The connection may write, because only such a one
    is safe beside a service that starts or stops meanwhile; it does not.
    """
    try:
        with closing(connect(database, "mode=rw")) as db:
            _vacuum(db, target)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The database {database} cannot be copied to {target.parent}: {error}.") from error


def stage(backup: Path, target: Path) -> Contents:
    """A copy of a backup that is known to be sound and of a schema we know. The backup itself is not touched."""
    with looking(backup) as db:
        _vacuum(db, target)
    found = contents(target)
    if found.revision not in migrate.revisions():
        raise SchemaTooNew(
            f"{backup} has schema {found.revision}, which this Toolcrib does not know "
            f"(it knows up to {migrate.revisions()[-1]}). Restore it with the Toolcrib that wrote it, or a newer one."
        )
    return found


def contents(path: Path) -> Contents:
    """What a copy holds, after every page of it was checked."""
    with looking(path) as db:
        if faults := faults_of(db, "integrity_check"):
            raise StoreUnavailable(f"The copy {path} is damaged: {'; '.join(faults)}.")
        revision = revision_of(db)
        if revision is None:
            raise StoreUnavailable("This is a database, but none of Toolcrib's.")
        calls, events = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("calls", "events"))
    return Contents(revision, calls, events, path.stat().st_size)


def put_in_place(staged: Path, database: Path) -> Path | None:
    """Let a staged copy be the database; the answer is where the present one is kept, if there is one.

    Until the one rename the present database stays in place, whole: what was in
    its WAL is in it by then, so the new one can never meet an old WAL.
    """
    if beside(staged, "-wal").exists():
        raise StoreUnavailable(f"The copy {staged} is not whole yet: it has a WAL.")
    if not database.exists():
        _clear(database)
        staged.rename(database)
        atomic_write.sync(database.parent)
        return None
    _checkpoint(database)
    kept = beside(database, f".before-restore-{datetime.now(UTC).strftime(KEPT)}")
    _keep(database, kept)
    moved: list[str] = []
    try:
        for suffix in ("-wal", "-journal"):
            if (side := beside(database, suffix)).exists() and side.stat().st_size:
                side.rename(beside(kept, suffix))  # of a database too broken to take it in
                moved.append(suffix)
        _clear(database)
        staged.replace(database)
    except OSError:
        for suffix in moved:
            beside(kept, suffix).rename(beside(database, suffix))
        kept.unlink()
        raise
    atomic_write.sync(database.parent)
    return kept


def _vacuum(db: sqlite3.Connection, target: Path) -> None:
    db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # damage here, VACUUM would blame on the target
    db.execute("VACUUM INTO ?", (str(target),))


def _checkpoint(database: Path) -> None:
    """Take the WAL into the file. What has lost its head is not even opened: SQLite would throw its WAL away."""
    with database.open("rb") as file:
        head = file.read(20)
    if not head.startswith(MAGIC) or head[18:] != IN_WAL_MODE:
        return
    try:
        with closing(connect(database, "mode=rw")) as db:
            [busy, _, _] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"The present database {database} cannot be set aside: {error}.") from error
    except sqlite3.DatabaseError:
        return  # too broken to take it in; it is kept beside
    if busy:
        raise StoreUnavailable(f"Somebody else is reading {database}. Try again when that has ended.")


def _keep(database: Path, kept: Path) -> None:
    """A second name for the present database, or a second copy where there are no second names."""
    try:
        os.link(database, kept)
    except OSError:
        shutil.copy2(database, kept)
        atomic_write.sync(kept)
    atomic_write.sync(kept.parent)


def _clear(database: Path) -> None:
    for suffix in SIDE_FILES:
        beside(database, suffix).unlink(missing_ok=True)
