"""The `toolcrib` command, as a person would use it: real processes, a real service."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app import __version__
from tests.support.cli import HANG, environment, start, stop, toolcrib


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("crib")
    service, announced = start(folder)
    yield folder, announced
    assert stop(service) == 0


def test_it_announces_its_url_its_key_and_a_line_that_works_as_printed(running: tuple[Path, str]) -> None:
    folder, announced = running
    line = announced.partition("try: ")[2]

    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=HANG, check=True)

    key = (folder / ".toolcrib" / "admin.key").read_text().strip()
    assert f"key: {key}" in announced
    assert (folder / ".toolcrib" / "admin.key").stat().st_mode & 0o777 == 0o600
    call = json.loads(answer.stdout)
    assert (call["status"], call["result"]["title"]) == ("completed", "hello.txt")


def test_square_brackets_in_a_message_are_shown_and_not_taken_for_colours(running: tuple[Path, str]) -> None:
    folder, _ = running

    missing = toolcrib(folder, "call", "read_file", json.dumps({"file_path": "a[bold]b[/].txt"}))
    unreachable = toolcrib(folder, "tools", "--url", "http://127.0.0.1:9/[red]", "--key", "x")

    assert (missing.returncode, "a[bold]b[/].txt" in missing.stderr) == (1, True)
    assert (unreachable.returncode, "http://127.0.0.1:9/[red]" in unreachable.stderr) == (1, True)


def test_call_prints_the_output_and_exits_by_status(running: tuple[Path, str]) -> None:
    folder, _ = running

    good = toolcrib(folder, "call", "read_file", '{"file_path": "hello.txt", "limit": 1}')
    piped = toolcrib(folder, "call", "read_file", "-", stdin='{"file_path": "hello.txt", "limit": 1}')
    bad = toolcrib(folder, "call", "read_file", '{"file_path": "nothing.txt"}')
    broken = toolcrib(folder, "call", "read_file", "{")

    assert (good.returncode, good.stdout) == (0, "L1: Hello from your Toolcrib workspace.\n")
    assert (piped.returncode, piped.stdout) == (0, good.stdout)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("ENOENT: ")
    assert broken.returncode == 2


def test_call_takes_free_text_for_a_tool_that_reads_it(running: tuple[Path, str]) -> None:
    folder, _ = running
    patch = "*** Begin Patch\n*** Add File: notes.txt\n+from the terminal\n*** End Patch\n"

    made = toolcrib(folder, "call", "apply_patch", "-", "--input", stdin=patch)

    assert (made.returncode, made.stdout) == (0, "Success. Updated the following files:\nA notes.txt\n")
    assert (folder / ".toolcrib/workspace/notes.txt").read_text() == "from the terminal\n"


def test_tools_lists_them_all(running: tuple[Path, str]) -> None:
    listed = toolcrib(running[0], "tools").stdout

    assert [name for name in ("list_dir", "read_file", "request_user_input", "update_plan") if name in listed] == [
        "list_dir",
        "read_file",
        "request_user_input",
        "update_plan",
    ]


def test_a_text_may_hold_what_ends_a_line_elsewhere(running: tuple[Path, str]) -> None:
    folder, _ = running
    (folder / ".toolcrib/workspace/odd.txt").write_text("one\u2028two\x85three\x0cfour\n")

    done = toolcrib(folder, "call", "read_file", '{"file_path": "odd.txt"}')

    assert (done.returncode, done.stdout, done.stderr) == (0, "L1: one\u2028two\x85three\x0cfour\n", "")


def test_watch_prints_what_is_stored_and_what_comes(running: tuple[Path, str]) -> None:
    folder, _ = running
    watching = subprocess.Popen(
        [sys.executable, "-u", "-m", "app", "watch", "--after", "0", "--types", "call.completed"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        toolcrib(folder, "call", "list_dir")
        lines = iter(watching.stdout.readline, "")
        assert any("call.completed" in line and "list_dir" in line for line in lines)
    finally:
        watching.kill()
        watching.communicate(timeout=HANG)


def test_keys_are_made_listed_and_revoked_over_rest_while_the_service_runs(running: tuple[Path, str]) -> None:
    folder, _ = running

    token = toolcrib(folder, "key", "create", "ci", "--scope", "calls:run", "--scope", "calls:read").stdout.strip()
    works = toolcrib(folder, "call", "list_dir", "--key", token)
    [id] = re.findall(r"(key_\w+)\s+ci\s", toolcrib(folder, "key", "list").stdout)
    revoked = toolcrib(folder, "key", "revoke", id)
    again = toolcrib(folder, "key", "revoke", id)
    refused = toolcrib(folder, "call", "list_dir", "--key", token)

    assert token.startswith("tk_")
    assert (works.returncode, revoked.returncode) == (0, 0)
    assert (again.returncode, again.stderr.strip()) == (1, f"error: There is no valid key {id}.")
    assert (refused.returncode, refused.stderr.strip()) == (1, "error: A valid key is required.")


def test_a_second_service_on_the_same_data_directory_is_refused(running: tuple[Path, str]) -> None:
    refused = toolcrib(running[0], "serve", "--port", "0")

    assert refused.returncode == 1
    assert "Another Toolcrib (pid " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_keys_are_made_without_a_service_too(tmp_path: Path) -> None:
    token = toolcrib(tmp_path, "key", "create", "ci").stdout.strip()
    listed = toolcrib(tmp_path, "key", "list").stdout
    service, _ = start(tmp_path)
    works = toolcrib(tmp_path, "call", "list_dir", "--key", token)

    assert stop(service) == 0
    assert "ci" in listed
    assert works.returncode == 0


@pytest.mark.parametrize("is_running", [True, False])
def test_a_key_is_bound_on_the_command_line_too(tmp_path: Path, is_running: bool) -> None:
    service = start(tmp_path)[0] if is_running else None
    options = ["--session", "ci-*", "--tool", "read_*", "--calls-per-minute", "5"]
    folder = tmp_path / "link"
    folder.symlink_to(tmp_path)
    try:
        made = toolcrib(
            tmp_path, "key", "create", "ci", *options, "--bounds", json.dumps({"workspaces": [str(folder)]})
        )
        listed = toolcrib(tmp_path, "key", "list").stdout
        refused = [
            toolcrib(tmp_path, "key", "create", "ci", "--bounds", bounds)
            for bounds in ('{"workspaces": ["relative"]}', "[]", "{")
        ]
        admin = toolcrib(tmp_path, "key", "create", "ci", "--scope", "admin", "--tool", "read_*")
    finally:
        if service:
            stop(service)

    with closing(sqlite3.connect(tmp_path / ".toolcrib" / "toolcrib.db")) as db:
        [kept] = db.execute("SELECT bounds FROM keys WHERE principal = 'ci'").fetchall()
    bounds = {"sessions": ["ci-*"], "workspaces": [str(tmp_path)], "tools": ["read_*"], "calls_per_minute": 5}
    assert made.returncode == 0
    assert {name: value for name, value in json.loads(kept[0]).items() if value} == bounds
    assert '{"sessions": ["ci-*"]' in listed
    assert [one.returncode for one in refused] == [1, 2, 2]
    assert "bounds.workspaces.0: " in refused[0].stderr
    assert "Traceback" not in "".join(one.stderr for one in refused)
    assert "an admin key sees everything" in admin.stderr


def test_a_database_of_a_newer_toolcrib_is_refused(tmp_path: Path) -> None:
    upgraded = toolcrib(tmp_path, "db", "upgrade")
    path = tmp_path / ".toolcrib" / "toolcrib.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")

    by_hand = toolcrib(tmp_path, "db", "upgrade")
    at_start = toolcrib(tmp_path, "serve", "--port", "0")

    assert (upgraded.returncode, by_hand.returncode, at_start.returncode) == (0, 1, 1)
    assert "newer than this Toolcrib knows" in by_hand.stderr
    assert "newer than this Toolcrib knows" in at_start.stderr


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".toolcrib").mkdir()
    (tmp_path / ".toolcrib" / "toolcrib.db").write_text("this is no database, it is a letter to a friend")

    refused = toolcrib(tmp_path, "serve", "--port", "0")

    assert refused.returncode == 1
    assert "cannot be used: file is not a database." in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"TOOLCRIB_ALLOWED_HOSTS": "no list"}, "The configuration cannot be read:"),
        ({"TOOLCRIB_PORT": "many"}, "setting port:"),
        ({"TOOLCRIB_DATABASE_URL": "postgresql://somewhere/else"}, "a SQLite file"),
        ({"TOOLCRIB_WORKSPACE": "/does/not/exist"}, "/does/not/exist"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, variables: dict[str, str], sentence: str) -> None:
    refused = toolcrib(tmp_path, "serve", **variables)

    assert refused.returncode == 1
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_a_service_it_says_how_to_start_one(tmp_path: Path) -> None:
    asked = toolcrib(tmp_path, "call", "list_dir")

    assert asked.returncode == 1
    assert "Start one with `toolcrib serve`" in asked.stderr


def test_the_version_is_told(tmp_path: Path) -> None:
    assert toolcrib(tmp_path, "--version").stdout == f"toolcrib {__version__}\n"


def test_where_the_output_becomes_a_log_the_key_is_not_in_it(tmp_path: Path) -> None:
    (tmp_path / "toolcrib.toml").write_text("print_key = false\n")
    service, announced = start(tmp_path)
    try:
        key = (tmp_path / ".toolcrib" / "admin.key").read_text().strip()
        tried = next(line.removeprefix("try: ") for line in announced.splitlines() if line.startswith("try: "))
        answer = subprocess.run(["bash", "-c", tried], cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    finally:
        stop(service)

    assert key not in announced
    assert json.loads(answer.stdout)["status"] == "completed"
