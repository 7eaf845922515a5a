"""Export: the same calls as over HTTP, oldest first, in short reads, beside a running service."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.cli import export as cli_export
from app.config import Settings
from app.core.calls import Status
from app.core.errors import StoreUnavailable
from app.store import calls, db
from app.store.calls import CallFilter
from tests.support.cli import HANG, environment, toolcrib
from tests.support.services import RunningService

ALL = CallFilter(principal=None)
ADD = (
    "INSERT INTO calls (id, principal, session, tool, status, owner, attempt, created_at, output_dropped) "
    "VALUES (?, 'ann', 'default', 'echo', 'completed', 'me', 1, 1, 0)"
)


def add_calls(data_dir: Path, *ids: str) -> None:
    with closing(sqlite3.connect(data_dir / "toolcrib.db")) as database, database:
        database.executemany(ADD, [(id,) for id in ids])


async def exported(data_dir: Path, wanted: CallFilter = ALL, *, with_output: bool = False) -> list[dict[str, Any]]:
    file = data_dir.parent / "calls.jsonl"
    settings = Settings(data_dir=data_dir)
    count = await asyncio.to_thread(cli_export.export, settings, wanted, to=file, with_output=with_output)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == count
    return lines


async def listed(service: RunningService, **params: Any) -> list[dict[str, Any]]:
    """The same over HTTP, turned round."""
    page = (await service.client.get("/v1/calls", params={"limit": 500} | params)).json()
    assert page["next_cursor"] is None
    found: list[dict[str, Any]] = page["data"]
    return found[::-1]


async def make_calls(service: RunningService) -> None:
    for number in range(8):
        await service.run("echo", {"text": f"päge {number}"})
        await service.run("fail", {})
    service.change("UPDATE calls SET session = 'other' WHERE id IN (SELECT id FROM calls ORDER BY id LIMIT 5)")


async def test_it_writes_what_the_list_shows_oldest_first_while_the_service_runs(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_export, "PAGE_SIZE", 3)
    await make_calls(service)

    lines = await exported(service.data_dir)

    assert len(lines) == 16
    assert lines == await listed(service)


async def test_it_takes_the_filters_of_the_list(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_export, "PAGE_SIZE", 3)
    await make_calls(service)
    every = await listed(service)
    moment = every[6]["created_at"]
    bound = every[6]["id"][:19]

    for wanted, params, count in (
        (CallFilter(principal=None, session="other"), {"session": "other"}, 5),
        (CallFilter(principal=None, tool="echo"), {"tool": "echo"}, 8),
        (CallFilter(principal=None, status=Status.ERROR), {"status": "error"}, 8),
        (CallFilter(principal=None, since=bound), {"since": moment}, 10),
        (CallFilter(principal=None, until=bound), {"until": moment}, 6),
        (CallFilter(principal=None, tool="nothing"), {"tool": "nothing"}, 0),
        (CallFilter(principal=None, tool="fail", session="other"), {"tool": "fail", "session": "other"}, 2),
    ):
        lines = await exported(service.data_dir, wanted)
        assert lines == await listed(service, **params)
        assert len(lines) == count


async def test_with_output_adds_what_the_output_route_answers(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_export, "READ_BYTES", 5)  # cuts characters in two
    await service.run("echo", {"text": 'short "quoted" \n€'})
    await service.run("flood", {"text": "lang €\n\\", "times": 50})
    await service.run("say", {"texts": ["öne", '"\ttwo', "🙂"], "streams": ["stdout", "stderr"]})
    await service.run("fail", {"output": None})
    running = service.submit("say", {"texts": ["so far"], "wait": True})
    await running.wait_open()
    live = await service.client.get(f"/v1/calls/{running.call.id}/output")
    service.toys.go["say"].set()
    await service.ended(running)

    lines = await exported(service.data_dir, with_output=True)

    assert live.status_code == 200
    assert len(lines) == 5
    for line in lines:
        assert line.pop("full_output") == (await service.client.get(f"/v1/calls/{line['id']}/output")).text
    assert lines == await listed(service)


@pytest.fixture
async def engine(data_dir: Path) -> Any:
    engine = db.open_readers(db.database_url(data_dir, None))
    yield engine
    await engine.dispose()


async def test_between_two_pages_the_wal_can_be_taken_in(data_dir: Path, engine: AsyncEngine) -> None:
    with closing(sqlite3.connect(data_dir / "toolcrib.db", timeout=0, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        add_calls(data_dir, *(f"call_{number:02}" for number in range(10)))
        pages = 0
        async for page in calls.iterate(engine, ALL, 3):
            pages += 1
            add_calls(data_dir, f"call_later_{pages}")
            assert writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
            assert len(page) <= 3

    assert pages == 4


async def test_calls_that_come_meanwhile_are_not_chased(data_dir: Path, engine: AsyncEngine) -> None:
    add_calls(data_dir, "call_01", "call_02")
    seen = []

    async for page in calls.iterate(engine, ALL, 1):
        seen += [call.id for call in page]
        add_calls(data_dir, f"call_1{len(seen)}")

    assert seen == ["call_01", "call_02"]


async def test_no_read_looks_at_more_than_a_page_however_few_match(data_dir: Path, engine: AsyncEngine) -> None:
    add_calls(data_dir, *(f"call_{number:03}" for number in range(100)))
    with closing(sqlite3.connect(data_dir / "toolcrib.db")) as database, database:
        database.execute("UPDATE calls SET tool = 'rare' WHERE id IN ('call_003', 'call_098')")

    pages = [
        [call.id for call in page] async for page in calls.iterate(engine, CallFilter(principal=None, tool="rare"), 7)
    ]

    assert pages == [["call_003"], ["call_098"]]


def test_a_reader_that_has_seen_enough_ends_it_quietly(data_dir: Path) -> None:
    add_calls(data_dir, *(f"call_{number:05}" for number in range(3000)))
    command = f"{sys.executable} -m app export --data-dir {data_dir} | head -n 1; echo ${{PIPESTATUS[0]}}"

    cut = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=HANG, check=True
    )

    line, code = cut.stdout.splitlines()
    assert (json.loads(line)["id"], code, cut.stderr) == ("call_00000", "0", "")


def test_a_file_that_cannot_be_written_leaves_the_old_one(data_dir: Path, tmp_path: Path) -> None:
    add_calls(data_dir, *(f"call_{number:05}" for number in range(500)))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "calls.jsonl").write_text("the one of yesterday\n")
    command = f"ulimit -f 16; exec {sys.executable} -m app export -o {folder}/calls.jsonl --data-dir {data_dir}"

    full = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )

    assert (full.returncode, full.stderr.count("\n")) == (1, 1)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("calls.jsonl", "the one of yesterday\n")]


def test_the_command_writes_to_stdout_or_a_file_for_its_owner(data_dir: Path, tmp_path: Path) -> None:
    add_calls(data_dir, "call_00000000000001aa", "call_ffffffffffffff01")
    where = ("--data-dir", str(data_dir))

    out = toolcrib(tmp_path, "export", *where, "--tool", "echo", "--status", "completed", "--session", "default")
    file = toolcrib(tmp_path, "export", *where, "-o", "calls.jsonl", "--since", "2020-01-01", "--with-output")
    none = toolcrib(tmp_path, "export", *where, "--until", "1970-01-01T00:00:00Z")
    bad = toolcrib(tmp_path, "export", *where, "--since", "yesterday")

    assert [json.loads(line)["id"] for line in out.stdout.splitlines()] == [
        "call_00000000000001aa",
        "call_ffffffffffffff01",
    ]
    assert (file.returncode, file.stdout, file.stderr) == (0, "", "calls.jsonl: 1 calls\n")
    assert json.loads((tmp_path / "calls.jsonl").read_text())["full_output"] == ""
    assert (tmp_path / "calls.jsonl").stat().st_mode & 0o777 == 0o600
    assert (none.returncode, none.stdout) == (0, "")
    assert bad.returncode == 2
    assert "yesterday is not a time such as" in bad.stderr


def test_what_cannot_be_exported_is_one_sentence_and_nothing_is_made(data_dir: Path, tmp_path: Path) -> None:
    def export(where: Path, to: Path) -> None:
        cli_export.export(Settings(data_dir=where), ALL, to=to, with_output=False)

    with pytest.raises(StoreUnavailable, match="There is no database"):
        export(tmp_path / "nowhere", tmp_path / "calls.jsonl")
    with pytest.raises(StoreUnavailable, match="is not a file in an existing directory"):
        export(data_dir, tmp_path / "no" / "calls.jsonl")
    with closing(sqlite3.connect(data_dir / "toolcrib.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(StoreUnavailable, match="Run `toolcrib db upgrade` first"):
        export(data_dir, tmp_path / "calls.jsonl")
    (data_dir / "toolcrib.db").write_text("a letter to a friend")
    with pytest.raises(StoreUnavailable, match="file is not a database"):
        export(data_dir, tmp_path / "calls.jsonl")

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
