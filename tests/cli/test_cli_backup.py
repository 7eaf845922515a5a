"""Backup and restore: under load, over broken records, and with everything that can go wrong before the last step."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.cli import backup
from app.config import Settings
from app.core.errors import SchemaTooNew, StoreError, StoreUnavailable
from app.store import backups as stored
from app.store import integrity, lock, migrate
from app.store.backups import Contents
from tests.faults.load import Load
from tests.faults.service_processes import Service as Killable
from tests.faults.service_processes import Zygote
from tests.support.cli import HANG, environment, toolcrib
from tests.support.services import Crib

NEWEST = migrate.revisions()[-1]
TABLES = ("principals", "keys", "sessions", "calls", "events", "outputs", "idempotency_keys", "secrets", "counters")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def killable(zygote: Zygote, tmp_path: Path) -> Iterator[Killable]:
    service = Killable(zygote, tmp_path / "data").start()
    yield service
    service.kill()


def settings_of(data_dir: Path, **more: Any) -> Settings:
    return Settings(data_dir=data_dir, **more)


def restore(data_dir: Path, file: Path, **more: Any) -> backup.Restored:
    done = backup.restore(settings_of(data_dir, **more), file, lambda found: True)
    assert done is not None
    return done


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def add_call(database: Path, id: str, status: str = "completed") -> None:
    with opened(database) as db:
        db.execute(
            "INSERT INTO calls (id, principal, session, tool, status, owner, attempt, created_at, output_dropped) "
            "VALUES (?, 'ann', 'default', 'echo', ?, 'me', 1, 1, 0)",
            (id, status),
        )


def calls_in(database: Path) -> list[str]:
    with opened(database) as db:
        return [row[0] for row in db.execute("SELECT id FROM calls ORDER BY id")]


def dump(database: Path) -> dict[str, list[Any]]:
    with opened(database) as db:
        return {table: sorted(db.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


def broken_in(database: Path) -> list[str]:
    """Everything that is wrong with a copy taken at any moment."""
    with opened(database) as db:
        found = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        count, first, last = db.execute("SELECT count(*), min(seq), max(seq) FROM events").fetchone()
        counter = db.execute("SELECT value FROM counters WHERE name = 'event_seq'").fetchone()[0]
        if (first, last, counter) != (1, count, count):
            found.append(f"{count} events from {first} to {last}, counter {counter}")
        lives: dict[str, list[str]] = {}
        for call, type in db.execute("SELECT call, type FROM events WHERE call IS NOT NULL ORDER BY seq"):
            lives.setdefault(call, []).append(type.removeprefix("call."))
        statuses = dict(db.execute("SELECT id, status FROM calls"))
    found += [f"{call} has events but is not there" for call in lives.keys() - statuses.keys()]
    for call, status in statuses.items():
        seen = Counter(lives.get(call, []))
        if seen["pending"] != 1 or (status != "pending" and seen[status] != 1):
            found.append(f"{call} is {status} and lived {lives.get(call)}")
    return found


async def test_a_backup_under_load_is_whole_and_a_restore_brings_back_exactly_that(
    killable: Killable, tmp_path: Path
) -> None:
    load = Load(Random(7))
    settings = settings_of(killable.data_dir)
    loading = asyncio.create_task(load.run(killable.port, clients=8))
    made: list[tuple[Path, Contents, int]] = []
    for number in range(4):
        wanted = load.answers + 100
        async with asyncio.timeout(HANG):
            while load.answers < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0)
        file = tmp_path / f"copy{number}.db"
        before = load.answers
        contents = await asyncio.to_thread(backup.backup, settings, file, force=False)
        made.append((file, contents, load.answers - before))
    loading.cancel()
    await asyncio.wait([loading])
    assert killable.terminate() == 0

    assert [broken_in(file) for file, _, _ in made] == [[], [], [], []]
    assert sum(meanwhile for _, _, meanwhile in made) > 0  # calls were answered while a copy was made
    assert [c.events for _, c, _ in made] == sorted({c.events for _, c, _ in made})
    assert made[0][1].calls == len(calls_in(made[0][0]))

    file = made[1][0]
    done = await asyncio.to_thread(restore, killable.data_dir, file)

    now, then = dump(killable.database), dump(file)
    waiting = {row[0] for row in then["calls"] if row[4] == "pending"}
    assert done.ended == len(waiting)
    assert len(now["events"]) == len(then["events"]) + len(waiting)
    assert all(event in now["events"] for event in then["events"])
    assert [c for c in now["calls"] if c[0] not in waiting] == [c for c in then["calls"] if c[0] not in waiting]
    assert all(now[table] == then[table] for table in TABLES if table not in ("calls", "events", "counters"))
    assert broken_in(killable.database) == []

    killable.start()
    await killable.settle()
    assert killable.terminate() == 0
    assert broken_in(killable.database) == []
    assert set(calls_in(killable.database)) == {row[0] for row in then["calls"]}


def test_a_backup_holds_what_is_only_in_the_wal_and_is_one_file_for_its_owner(data_dir: Path, tmp_path: Path) -> None:
    with opened(data_dir / "toolcrib.db") as db:
        db.execute("PRAGMA journal_mode=WAL")
        add_call(data_dir / "toolcrib.db", "call_1")
        (tmp_path / "out").mkdir()
        made = backup.backup(settings_of(data_dir), tmp_path / "out" / "copy.db", force=False)

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["copy.db"]
    assert calls_in(tmp_path / "out" / "copy.db") == ["call_1"]
    assert (tmp_path / "out" / "copy.db").stat().st_mode & 0o777 == 0o600
    assert made == Contents(NEWEST, 1, 0, (tmp_path / "out" / "copy.db").stat().st_size)


def test_a_backup_of_a_service_that_does_not_run_leaves_nothing_behind(data_dir: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in data_dir.iterdir())

    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)

    assert sorted(path.name for path in data_dir.iterdir()) == before


def test_a_file_is_overwritten_only_when_told(data_dir: Path, tmp_path: Path) -> None:
    settings, file = settings_of(data_dir), tmp_path / "copy.db"
    file.write_text("precious")

    with pytest.raises(StoreUnavailable, match=r"copy\.db exists\. Use another name, or --force"):
        backup.backup(settings, file, force=False)
    assert file.read_text() == "precious"

    backup.backup(settings, file, force=True)
    assert calls_in(file) == []


@pytest.mark.parametrize("name", ["toolcrib.db", "toolcrib.db-wal", "link.db"])
def test_the_database_itself_is_never_overwritten_by_its_backup(data_dir: Path, name: str) -> None:
    (data_dir / "link.db").symlink_to("toolcrib.db")
    before = (data_dir / "toolcrib.db").read_bytes()

    with pytest.raises(StoreUnavailable, match="is the database itself"):
        backup.backup(settings_of(data_dir), data_dir / name, force=True)
    with pytest.raises(StoreUnavailable, match=r"is the database itself|There is no backup"):
        restore(data_dir, data_dir / name)

    assert (data_dir / "toolcrib.db").read_bytes() == before


def test_a_backup_that_cannot_be_written_leaves_the_old_one(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "copy.db").write_text("the one of yesterday")
    command = f"ulimit -f 16; exec {sys.executable} -m app db backup {folder}/copy.db --force --data-dir {data_dir}"

    full = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )

    assert full.returncode == 1
    assert full.stderr.startswith(f"error: The database {data_dir}/toolcrib.db cannot be copied to {folder}: ")
    assert [path.name for path in folder.iterdir()] == ["copy.db"]
    assert (folder / "copy.db").read_text() == "the one of yesterday"


def test_what_cannot_be_backed_up_is_one_sentence(tmp_path: Path, data_dir: Path) -> None:
    for settings, file, sentence in (
        (settings_of(tmp_path / "nowhere"), tmp_path / "copy.db", "There is no database"),
        (settings_of(data_dir), tmp_path, "is not a file in an existing directory"),
        (settings_of(data_dir), tmp_path / "no" / "copy.db", "is not a file in an existing directory"),
    ):
        with pytest.raises(StoreUnavailable, match=sentence):
            backup.backup(settings, file, force=False)
    assert not (tmp_path / "nowhere").exists()


def test_restore_keeps_what_it_replaces_with_what_was_only_in_the_wal(data_dir: Path, tmp_path: Path) -> None:
    database = data_dir / "toolcrib.db"
    add_call(database, "call_1")
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    leave_a_wal(database, "call_2")

    done = restore(data_dir, tmp_path / "copy.db")

    assert calls_in(database) == ["call_1"]
    assert done.saved is not None
    assert done.saved.name.startswith("toolcrib.db.before-restore-")
    assert calls_in(done.saved) == ["call_1", "call_2"]
    assert not done.was_upgraded
    assert database.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in data_dir.iterdir()) == sorted(["toolcrib.db", "service.lock", done.saved.name])


def test_records_that_are_broken_can_be_replaced_and_are_kept_with_their_wal(data_dir: Path, tmp_path: Path) -> None:
    database = data_dir / "toolcrib.db"
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    database.write_text("this is no database, it is a letter to a friend")
    (data_dir / "toolcrib.db-wal").write_text("and this is its other half")

    done = restore(data_dir, tmp_path / "copy.db")

    assert calls_in(database) == []
    assert done.saved is not None
    assert done.saved.read_text().endswith("a letter to a friend")
    assert integrity.side_file(done.saved, "-wal").read_text() == "and this is its other half"


def test_a_restore_to_a_new_place_makes_it(data_dir: Path, tmp_path: Path) -> None:
    add_call(data_dir / "toolcrib.db", "call_1")
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    elsewhere = f"sqlite:///{tmp_path}/far/away/records.db"

    plain = restore(tmp_path / "new", tmp_path / "copy.db")
    named = restore(tmp_path / "other", tmp_path / "copy.db", database_url=elsewhere)
    again = backup.backup(settings_of(tmp_path / "other", database_url=elsewhere), tmp_path / "2.db", force=False)

    assert (plain.saved, named.saved) == (None, None)
    assert calls_in(tmp_path / "new" / "toolcrib.db") == ["call_1"]
    assert calls_in(tmp_path / "far" / "away" / "records.db") == ["call_1"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert again.calls == 1


def test_a_database_that_is_a_link_is_replaced_where_it_really_is(data_dir: Path, tmp_path: Path) -> None:
    database, real = data_dir / "toolcrib.db", tmp_path / "real.db"
    database.rename(real)
    database.symlink_to(real)
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    leave_a_wal(real, "call_1")

    done = restore(data_dir, tmp_path / "copy.db")

    assert database.is_symlink()
    assert calls_in(real) == []
    assert done.saved is not None
    assert done.saved.parent == tmp_path
    assert calls_in(done.saved) == ["call_1"]


def test_a_copy_that_is_still_written_to_is_not_put_in_place(data_dir: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged.db"
    shutil.copy(data_dir / "toolcrib.db", staged)
    leave_a_wal(staged, "call_1")

    with pytest.raises(StoreUnavailable, match="is incomplete"):
        stored.put_in_place(staged, data_dir / "toolcrib.db")

    assert [path.name for path in data_dir.iterdir()] == ["toolcrib.db"]


def test_an_older_backup_is_brought_up_to_date(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old.db"
    old_migrations = tmp_path / "migrations"
    shutil.copytree(migrate.directory(), old_migrations, ignore=shutil.ignore_patterns("__pycache__"))
    for later in [path for path in (old_migrations / "versions").glob("[0-9]*.py") if path.name[:4] != "0001"]:
        later.unlink()
    with monkeypatch.context() as context:
        context.setattr(migrate, "directory", lambda: old_migrations)
        migrate.upgrade(backup._url(settings_of(tmp_path, database_url=f"sqlite:///{old}")))

    done = restore(data_dir, old)

    assert (done.contents.revision, done.was_upgraded) == ("0001", True)
    assert integrity.examine(data_dir / "toolcrib.db").revision == NEWEST
    assert integrity.examine(old).revision == "0001"


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(data)


def of_somebody_else(path: Path) -> None:
    path.unlink()
    with opened(path) as db:
        db.execute("CREATE TABLE cats (name TEXT)")


def of_the_future(path: Path) -> None:
    with opened(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (damaged, StoreUnavailable, r"damaged|malformed"),
        (lambda path: path.write_text("a letter" * 1000), StoreUnavailable, "file is not a database"),
        (lambda path: path.write_bytes(b""), StoreUnavailable, "not one of Toolcrib"),
        (of_somebody_else, StoreUnavailable, "not one of Toolcrib"),
        (of_the_future, SchemaTooNew, "has schema 9999, which this Toolcrib does not know"),
        (lambda path: path.unlink(), StoreUnavailable, "There is no backup"),
    ],
    ids=["damaged", "a letter", "empty", "somebody else's", "of the future", "gone"],
)
def test_a_file_that_is_no_good_backup_changes_nothing(
    data_dir: Path, tmp_path: Path, spoil: Any, error: type[StoreError], sentence: str
) -> None:
    file = tmp_path / "copy.db"
    add_call(data_dir / "toolcrib.db", "call_1")
    backup.backup(settings_of(data_dir), file, force=False)
    spoil(file)
    before = (data_dir / "toolcrib.db").read_bytes()

    with pytest.raises(error, match=sentence):
        restore(data_dir, file)

    assert (data_dir / "toolcrib.db").read_bytes() == before
    assert {path.name for path in data_dir.iterdir()} <= {"toolcrib.db", "service.lock"}


def test_a_last_step_that_fails_leaves_the_old_records_with_their_wal(data_dir: Path) -> None:
    database = data_dir / "toolcrib.db"
    database.write_text("broken")
    (data_dir / "toolcrib.db-wal").write_text("its other half")

    with pytest.raises(FileNotFoundError):
        stored.put_in_place(data_dir / "never staged", database)

    assert {path.name: path.read_text() for path in data_dir.iterdir()} == {
        "toolcrib.db": "broken",
        "toolcrib.db-wal": "its other half",
    }


def test_records_in_use_are_not_replaced(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "BUSY_SECONDS", 0.1)
    database = data_dir / "toolcrib.db"
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    held = lock.DataDirLock(data_dir)
    with pytest.raises(lock.AlreadyRunning, match="Stop it"):
        restore(data_dir, tmp_path / "copy.db")
    held.release()

    with opened(database) as reader:
        reader.execute("PRAGMA journal_mode=WAL")
        add_call(database, "call_1")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM calls").fetchall()
        add_call(database, "call_2")
        with pytest.raises(StoreUnavailable, match="Another process is reading"):
            restore(data_dir, tmp_path / "copy.db")

    assert calls_in(database) == ["call_1", "call_2"]
    assert {path.name for path in data_dir.iterdir()} <= {"toolcrib.db", "service.lock"}


async def test_a_call_that_waited_in_the_backup_is_not_run_again(crib: Crib, tmp_path: Path) -> None:
    await crib.open()
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("note", {"text": "once"})
    await crib.at_the_gate(second)
    made = await asyncio.to_thread(backup.backup, settings_of(crib.data_dir), tmp_path / "copy.db", force=False)
    crib.toys.go["first"].set()
    await crib.ended(second)
    await crib.close()
    assert (made.calls, crib.toys.notes) == (2, ["once"])

    done = await asyncio.to_thread(restore, crib.data_dir, tmp_path / "copy.db")
    await crib.open()

    assert done.ended == 1
    assert crib.end(second.call.id) == ("error", "Interrupted")
    assert crib.story(second.call.id)[-1] == "call.error"
    assert "restored from a backup" in crib.row(second.call.id)["error"]
    assert crib.end(first.call.id) == ("error", "Interrupted")
    assert crib.toys.notes == ["once"]


def test_the_commands_say_what_they_did_and_ask_before_they_replace(data_dir: Path, tmp_path: Path) -> None:
    add_call(data_dir / "toolcrib.db", "call_1")
    where = ("--data-dir", str(data_dir))

    made = toolcrib(tmp_path, "db", "backup", "copy.db", *where)
    again = toolcrib(tmp_path, "db", "backup", "copy.db", *where)
    add_call(data_dir / "toolcrib.db", "call_2")
    no = toolcrib(tmp_path, "db", "restore", "copy.db", *where, stdin="n\n")
    unasked = toolcrib(tmp_path, "db", "restore", "copy.db", *where)
    still = calls_in(data_dir / "toolcrib.db")
    yes = toolcrib(tmp_path, "db", "restore", "copy.db", *where, "--yes")

    size = (tmp_path / "copy.db").stat().st_size
    told = f"1 calls, 0 events, {size} bytes, schema {NEWEST}"
    assert (made.returncode, made.stdout) == (0, f"copy.db: {told}; integrity ok\n")
    assert "secrets.key is not part of a backup" in made.stderr
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert (no.returncode, unasked.returncode, still) == (1, 1, ["call_1", "call_2"])
    assert (yes.returncode, calls_in(data_dir / "toolcrib.db")) == (0, ["call_1"])
    assert f"restored from copy.db: {told}" in yes.stdout
    assert "is saved as" in yes.stdout
    assert "secrets.key is not part of a backup" in yes.stderr
    assert "revoked after the backup are valid again" in yes.stderr


def leave_a_wal(database: Path, id: str) -> None:
    """A call that a killed service left in its WAL."""
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('PRAGMA journal_mode=WAL'); db.execute(\"INSERT INTO calls (id, principal, session, tool, status, "
        "owner, attempt, created_at, output_dropped) VALUES (?, 'ann', 's', 't', 'completed', 'o', 1, 1, 0)\", "
        "(sys.argv[2],)); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(database), id], timeout=HANG, check=False)
    assert integrity.side_file(database, "-wal").stat().st_size > 0


def test_restoring_as_root_gives_the_records_to_their_owner(data_dir: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    backup.backup(settings_of(data_dir), tmp_path / "copy.db", force=False)
    os.chown(data_dir / "toolcrib.db", 65534, 65534)

    restore(data_dir, tmp_path / "copy.db")

    assert (data_dir / "toolcrib.db").stat().st_uid == 65534
