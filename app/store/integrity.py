"""A look at a database that changes nothing: is it sound, how large is it, which schema has it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.core.errors import StoreUnavailable
from app.store import migrate
from app.store.db import BUSY_SECONDS

MOST_FAULTS = 5
SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """What was found. `faults` are SQLite's own words."""

    faults: list[str]
    revision: str | None
    bytes: int

    @property
    def is_newer(self) -> bool:
        return self.revision is not None and self.revision not in migrate.revisions()

    @property
    def is_older(self) -> bool:
        return not self.is_newer and self.revision != migrate.revisions()[-1]


def examine(path: Path) -> IntegrityReport:
    """Look a database over, also beside a running service. Raises `StoreUnavailable` when it cannot be read."""
    is_quiet = not beside(path, "-wal").exists()
    found = _examine(path)
    if found.faults and is_quiet and beside(path, "-wal").exists():
        return _examine(path)  # a service started meanwhile, and what was seen was half its work
    return found


def secret_names(path: Path, principal: str) -> set[str]:
    """The names of one owner's secrets; none where there is no such table yet."""
    with looking(path) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'secrets'").fetchone():
            return set()
        return {str(row[0]) for row in db.execute("SELECT name FROM secrets WHERE principal = ?", (principal,))}


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, and that leaves no file behind where none was."""
    mode = "mode=ro" if beside(path, "-wal").exists() else "immutable=1"
    try:
        with closing(connect(path, mode)) as db:
            yield db
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The database {path} cannot be read: {error}.") from error


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A database that must be there already."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def faults_of(db: sqlite3.Connection, check: Literal["quick_check", "integrity_check"]) -> list[str]:
    """What SQLite finds wrong, at most a few lines of it."""
    said = [line for row in db.execute(f"PRAGMA {check}({MOST_FAULTS})") for line in row[0].splitlines()]
    return [] if said == ["ok"] else said


def revision_of(db: sqlite3.Connection) -> str | None:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


def beside(path: Path, suffix: str) -> Path:
    """One of the files SQLite keeps next to a database."""
    return path.with_name(path.name + suffix)


def _examine(path: Path) -> IntegrityReport:
    with looking(path) as db:
        faults = faults_of(db, "quick_check")
        sizes = (file.stat().st_size for file in (path, beside(path, "-wal")) if file.exists())
        return IntegrityReport(faults, revision_of(db), sum(sizes))
