"""Read-only checks of a database file: integrity, size, schema."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.core.errors import StoreUnavailable
from app.store import migrate
from app.store.db import BUSY_SECONDS

MAX_FAULTS = 5
SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """`faults` are SQLite's own messages."""

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
    """Check a database, also beside a running service. Raises `StoreUnavailable` when it cannot be read."""
    had_wal = side_file(path, "-wal").exists()
    report = _examine(path)
    if report.faults and not had_wal and side_file(path, "-wal").exists():
        return _examine(path)  # a service started meanwhile, and the check saw an unfinished state
    return report


def secret_names(path: Path, principal: str) -> set[str]:
    """The names of a principal's secrets; none if the schema has no secrets yet."""
    with open_read_only(path) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'secrets'").fetchone():
            return set()
        return {str(row[0]) for row in db.execute("SELECT name FROM secrets WHERE principal = ?", (principal,))}


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write and creates no side files."""
    mode = "mode=ro" if side_file(path, "-wal").exists() else "immutable=1"
    try:
        with closing(connect(path, mode)) as db:
            yield db
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The database {path} cannot be read: {error}.") from error


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database that must exist."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def faults_of(db: sqlite3.Connection, check: Literal["quick_check", "integrity_check"]) -> list[str]:
    """The first few lines of what SQLite finds wrong."""
    lines = [line for row in db.execute(f"PRAGMA {check}({MAX_FAULTS})") for line in row[0].splitlines()]
    return [] if lines == ["ok"] else lines


def side_file(path: Path, suffix: str) -> Path:
    """A file that SQLite creates beside a database."""
    return path.with_name(path.name + suffix)


def _examine(path: Path) -> IntegrityReport:
    with open_read_only(path) as db:
        faults = faults_of(db, "quick_check")
        sizes = (file.stat().st_size for file in (path, side_file(path, "-wal")) if file.exists())
        return IntegrityReport(faults, migrate.revision_of(db), sum(sizes))
