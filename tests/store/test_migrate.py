import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine

from app.core.errors import SchemaTooNew
from app.store import migrate
from app.store.db import database_url
from app.store.tables import metadata

INDEXES = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql <> '' ORDER BY name"
SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name <> 'alembic_version' ORDER BY type, name"
GOOD = "op.execute('CREATE TABLE fresh (id TEXT)'); op.execute('UPDATE counters SET value = value + 99')"
BROKEN = "op.execute('CREATE TABLE half (id TEXT)'); op.execute('CREATE TABLE half (id TEXT)')"


@contextmanager
def connected(url: URL) -> Iterator[Connection]:
    engine = create_engine(url.set(drivername="sqlite"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def rows(url: URL, query: str) -> list[Any]:
    with closing(sqlite3.connect(str(url.database))) as db:
        return db.execute(query).fetchall()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def empty(tmp_path: Path) -> URL:
    return database_url(tmp_path, None)


@pytest.fixture
def versions(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of revisions in a copy of the migrations that the code uses from now on."""
    copy = tmp_path_factory.mktemp("elsewhere") / "100% new"
    shutil.copytree(migrate.directory(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(migrate, "directory", lambda: copy)
    return copy / "versions"


def add_revision(versions: Path, revision: str, body: str) -> None:
    after = migrate.revisions()[-1]
    (versions / f"{revision}_next.py").write_text(
        f"from alembic import op\nrevision = {revision!r}\ndown_revision = {after!r}\n\ndef upgrade():\n    {body}\n"
    )


def test_a_new_database_is_brought_from_nothing_to_the_newest_schema(empty: URL) -> None:
    assert migrate.current(empty) is None

    assert migrate.upgrade(empty) is True

    assert migrate.current(empty) == migrate.revisions()[-1]
    assert rows(empty, "SELECT name, value FROM counters ORDER BY name") == [("event_floor", 0), ("event_seq", 0)]
    assert rows(empty, "PRAGMA journal_mode") == [("wal",)]


def test_looking_at_a_new_database_does_not_make_one(empty: URL, tmp_path: Path) -> None:
    assert migrate.current(empty) is None

    assert list(tmp_path.iterdir()) == []


def test_a_second_upgrade_has_nothing_to_do_and_changes_nothing(empty: URL, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    before = contents(tmp_path)

    assert migrate.upgrade(empty) is False

    assert contents(tmp_path) == before


def test_an_empty_file_is_a_new_database(empty: URL) -> None:
    Path(str(empty.database)).touch()

    assert migrate.current(empty) is None
    assert migrate.upgrade(empty) is True


def test_a_data_directory_can_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a ?b#c%20d é"
    folder.mkdir()

    assert migrate.upgrade(database_url(folder, None)) is True
    assert [path.name for path in folder.iterdir()] == ["toolcrib.db"]


def test_the_migrated_schema_is_the_one_the_tables_say(url: URL) -> None:
    with connected(url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_every_index_is_made_with_the_same_words_as_the_tables_say(url: URL, tmp_path: Path) -> None:
    """Autogenerate does not look at the WHERE of a partial index; this does."""
    said = said_by_the_tables(tmp_path)

    assert rows(url, INDEXES) == rows(said, INDEXES)


@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_every_table_has_the_columns_the_tables_say_in_their_order(url: URL, tmp_path: Path, table: str) -> None:
    said = said_by_the_tables(tmp_path)

    columns = f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')"
    assert rows(url, columns) == rows(said, columns) != []


def said_by_the_tables(folder: Path) -> URL:
    said = URL.create("sqlite", database=str(folder / "said.db"))
    with connected(said) as connection:
        metadata.create_all(connection)
        connection.commit()
    return said


def test_the_revisions_are_one_line_and_their_names_sort_in_its_order() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.directory()).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)

    assert [revision.revision for revision in script.walk_revisions()][::-1] == migrate.revisions()


def test_a_database_of_a_newer_toolcrib_is_refused_and_left_untouched(url: URL, tmp_path: Path) -> None:
    with closing(sqlite3.connect(str(url.database))) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()
    before = contents(tmp_path)

    with pytest.raises(SchemaTooNew) as caught:
        migrate.upgrade(url)

    assert str(caught.value) == (
        f"The database {url.database} is at schema 9999, newer than this Toolcrib knows ({migrate.revisions()[-1]}). "
        "Start the Toolcrib that wrote it, or a newer one."
    )
    assert contents(tmp_path) == before


def test_an_older_database_is_brought_up_with_its_records(url: URL, versions: Path) -> None:
    add_revision(versions, "9001", GOOD)

    assert migrate.upgrade(url) is True

    assert migrate.current(url) == "9001"
    assert rows(url, "SELECT value FROM counters WHERE name = 'event_seq'") == [(99,)]
    assert rows(url, "SELECT * FROM fresh") == []


def test_a_migration_that_fails_leaves_nothing_of_the_whole_upgrade(url: URL, versions: Path) -> None:
    before, revision = rows(url, SCHEMA), migrate.current(url)
    add_revision(versions, "9001", GOOD)
    add_revision(versions, "9002", BROKEN)

    with pytest.raises(Exception, match="table half already exists"):
        migrate.upgrade(url)

    assert (rows(url, SCHEMA), migrate.current(url)) == (before, revision)
    assert rows(url, "SELECT value FROM counters WHERE name = 'event_seq'") == [(0,)]


def test_a_first_start_that_fails_leaves_an_empty_database_and_can_be_repeated(empty: URL, versions: Path) -> None:
    add_revision(versions, "9001", BROKEN)

    with pytest.raises(Exception, match="table half already exists"):
        migrate.upgrade(empty)
    assert rows(empty, "SELECT name FROM sqlite_master") == []

    (versions / "9001_next.py").unlink()
    assert migrate.upgrade(empty) is True


def test_the_idempotency_keys_of_the_first_schema_become_digests(empty: URL, versions: Path) -> None:
    later = [path for path in versions.glob("[0-9]*.py") if not path.name.startswith("0001")]
    kept = {path: path.read_text() for path in later}
    for path in later:
        path.unlink()
    migrate.upgrade(empty)
    with closing(sqlite3.connect(str(empty.database))) as db, db:
        db.execute("INSERT INTO idempotency_keys VALUES ('admin', 'my secret key', 'call_1', 'd', 7)")
    for path, text in kept.items():
        path.write_text(text)

    migrate.upgrade(empty)

    digest = hashlib.sha256(b"my secret key").hexdigest()
    assert rows(empty, "SELECT * FROM idempotency_keys") == [("admin", digest, "call_1", "d", 7)]
