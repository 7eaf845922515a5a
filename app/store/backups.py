"""Copies the database into one consistent file, and replaces the database by such a file."""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.core.errors import SchemaTooNew, StoreUnavailable
from app.store import atomic_write, migrate
from app.store.integrity import SIDE_FILES, connect, faults_of, open_read_only, side_file

MAGIC = b"SQLite format 3\0"
IN_WAL_MODE = b"\2\2"
BACKUP_TIME = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a copy contains."""

    revision: str
    calls: int
    events: int
    bytes: int


def copy(database: Path, target: Path) -> None:
    """Write a compact, consistent copy of a database in use into the empty file `target`, without blocking writers.

    The connection is opened for writing but does not write: a read-only one is not
    safe beside a service that starts or stops meanwhile.
    """
    try:
        with closing(connect(database, "mode=rw")) as db:
            _vacuum(db, target)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The database {database} cannot be copied to {target.parent}: {error}.") from error


def stage(backup: Path, target: Path) -> Contents:
    """Copy a backup and check the copy and its schema. The backup is not changed."""
    with open_read_only(backup) as db:
        _vacuum(db, target)
    copied = contents(target)
    if copied.revision not in migrate.revisions():
        raise SchemaTooNew(
            f"{backup} has schema {copied.revision}, which this Toolcrib does not know "
            f"(it knows up to {migrate.revisions()[-1]}). Restore it with the Toolcrib that wrote it, or a newer one."
        )
    return copied


def contents(path: Path) -> Contents:
    """Check every page of a copy and return what it contains."""
    with open_read_only(path) as db:
        if faults := faults_of(db, "integrity_check"):
            raise StoreUnavailable(f"The copy {path} is damaged: {'; '.join(faults)}.")
        revision = migrate.revision_of(db)
        if revision is None:
            raise StoreUnavailable("This is a database, but not one of Toolcrib.")
        calls, events = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("calls", "events"))
    return Contents(revision, calls, events, path.stat().st_size)


def put_in_place(staged: Path, database: Path) -> Path | None:
    """Make a staged copy the database; returns where the present one is saved, if there is one.

    The present database stays in place until one rename. Its WAL is checkpointed
    before that, so the new database can never meet an old WAL.
    """
    if side_file(staged, "-wal").exists():
        raise StoreUnavailable(f"The copy {staged} is incomplete: it has a WAL.")
    if not database.exists():
        _clear(database)
        staged.rename(database)
        atomic_write.sync(database.parent)
        return None
    _checkpoint(database)
    saved = side_file(database, f".before-restore-{datetime.now(UTC).strftime(BACKUP_TIME)}")
    _save(database, saved)
    moved: list[str] = []
    try:
        for suffix in ("-wal", "-journal"):
            if (side := side_file(database, suffix)).exists() and side.stat().st_size:
                side.rename(side_file(saved, suffix))  # of a database too damaged for a checkpoint
                moved.append(suffix)
        _clear(database)
        staged.replace(database)
    except OSError:
        for suffix in moved:
            side_file(saved, suffix).rename(side_file(database, suffix))
        saved.unlink()
        raise
    atomic_write.sync(database.parent)
    return saved


def _vacuum(db: sqlite3.Connection, target: Path) -> None:
    db.execute(
        "SELECT count(*) FROM sqlite_schema"
    ).fetchone()  # VACUUM would report damage here as an error of the target
    db.execute("VACUUM INTO ?", (str(target),))


def _checkpoint(database: Path) -> None:
    """Move the WAL into the file. A file without a valid header is not opened: SQLite would delete its WAL."""
    with database.open("rb") as file:
        header = file.read(20)
    if not header.startswith(MAGIC) or header[18:] != IN_WAL_MODE:
        return
    try:
        with closing(connect(database, "mode=rw")) as db:
            [busy, _, _] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"The present database {database} cannot be saved: {error}.") from error
    except sqlite3.DatabaseError:
        return  # too damaged for a checkpoint; the WAL is saved as a file
    if busy:
        raise StoreUnavailable(f"Another process is reading {database}. Try again when it has finished.")


def _save(database: Path, saved: Path) -> None:
    """Hard-link the present database, or copy it on file systems without hard links."""
    try:
        os.link(database, saved)
    except OSError:
        shutil.copy2(database, saved)
        atomic_write.sync(saved)
    atomic_write.sync(saved.parent)


def _clear(database: Path) -> None:
    for suffix in SIDE_FILES:
        side_file(database, suffix).unlink(missing_ok=True)
