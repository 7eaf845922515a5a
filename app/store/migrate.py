"""Upgrades the database to the newest schema with alembic."""

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL

from app.core.errors import SchemaTooNew
from app.store.db import translated_errors

log = logging.getLogger(__name__)

_IN_WHEEL = Path(__file__).parent.parent / "_migrations"
_IN_CHECKOUT = Path(__file__).parent.parent.parent / "migrations"


def directory() -> Path:
    """The migrations: inside the installed package, or beside it in a checkout."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT


def revisions() -> list[str]:
    """All revisions, oldest first; files are named `{revision}_{name}.py`."""
    return sorted(path.name.partition("_")[0] for path in (directory() / "versions").glob("[0-9]*.py"))


def current(url: URL) -> str | None:
    """The revision of a database; None for a new one."""
    path = Path(str(url.database))
    if not path.exists():
        return None
    with closing(sqlite3.connect(path)) as db:
        return revision_of(db)


def revision_of(db: sqlite3.Connection) -> str | None:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


def upgrade(url: URL) -> bool:
    """Upgrade the database; False when it has the newest schema already."""
    with translated_errors(url):
        known, now = revisions(), current(url)
        if now == known[-1]:
            return False
        if now is not None and now not in known:
            raise SchemaTooNew(
                f"The database {url.database} is at schema {now}, newer than this Toolcrib knows ({known[-1]}). "
                "Start the Toolcrib that wrote it, or a newer one."
            )
        if now is None:  # mode 0600 in any directory; SQLite gives its side files the same mode
            os.close(os.open(str(url.database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        _run_alembic(url)
        log.info("upgraded the database %s from schema %s to %s", url.database, now or "nothing", known[-1])
        return True


def _run_alembic(url: URL) -> None:
    from alembic import command  # imported here for a faster start when nothing is to migrate
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(directory()).replace("%", "%%"))
    config.attributes["url"] = url.set(drivername="sqlite")
    command.upgrade(config, "head")
