"""`toolcrib secret`, as a person would use it: with and without a service, at a terminal and in a pipe."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import HANG, environment, start, stop, toolcrib

CANARY = "canary-in-the-coal-mine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a service runs that has a secret of its operator."""
    folder = tmp_path_factory.mktemp("crib")
    (folder / "disk").write_text("from the file\n")
    (folder / "toolcrib.toml").write_text('[secrets]\nDISK = { file = "disk", domains = ["disk.example"] }\n')
    service, _ = start(folder)
    yield folder
    service.send_signal(signal.SIGTERM)
    said, complained = service.communicate(timeout=HANG)
    assert service.returncode == 0
    assert "canary" not in said + complained


@pytest.fixture(params=["while the service runs", "while it does not"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder to use the command in; it works the same in both."""
    if request.param == "while it does not":
        (tmp_path / "toolcrib.toml").write_text('[secrets]\nDISK = { file = "disk", domains = ["disk.example"] }\n')
        return tmp_path
    running: Path = request.getfixturevalue("folder")
    return running


def secret(folder: Path, *args: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    done = toolcrib(folder, "secret", *args, stdin=stdin, **variables)
    assert "Traceback" not in done.stderr
    assert "canary" not in done.stdout + done.stderr
    return done


def listed(folder: Path) -> dict[tuple[str, str], str]:
    """Each name and whose it is, with the rest of its line but the time."""
    lines = secret(folder, "list").stdout.splitlines()[1:]
    rows = [line.split() for line in lines]
    return {(row[0], row[1]): " ".join(word for word in row[2:] if not word.endswith("Z")) for row in rows}


def found(data_dir: Path, needle: bytes) -> list[str]:
    return [path.name for path in data_dir.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_a_secret_is_set_listed_and_removed(place: Path) -> None:
    made = secret(place, "set", "MAIL", "--domain", "Mail.example", "--domain", "*.mail.example", stdin=CANARY + "\n")
    own = secret(place, "set", "MAIL", "--own", stdin=CANARY)
    both = listed(place)
    kept = found(place / ".toolcrib", b"canary"), found(place / ".toolcrib", b"mail.example")
    removed = secret(place, "rm", "MAIL")
    one = listed(place)
    secret(place, "rm", "MAIL", "--own")
    again = secret(place, "rm", "MAIL")

    assert (made.returncode, made.stdout, made.stderr) == (0, "", "MAIL is stored\n")
    assert (own.returncode, removed.returncode) == (0, 0)
    disk = {("DISK", "global"): "disk.example config"}
    assert both == disk | {("MAIL", "global"): "mail.example *.mail.example store", ("MAIL", "own"): "store"}
    assert one == disk | {("MAIL", "own"): "store"}
    assert listed(place) == disk
    assert kept[0] == []
    assert kept[1] != []
    assert (again.returncode, again.stderr) == (1, "error: There is no secret MAIL.\n")


def test_a_configured_secret_is_not_changed_here(place: Path) -> None:
    changed = secret(place, "set", "DISK", stdin=CANARY)
    removed = secret(place, "rm", "DISK")

    sentence = "error: The secret DISK comes from the configuration; change it there.\n"
    assert (changed.returncode, changed.stderr) == (removed.returncode, removed.stderr) == (1, sentence)


@pytest.mark.parametrize(
    ("args", "stdin", "sentence"),
    [
        (["MAIL"], "short\n", "value: at least 6 characters"),
        (["a/b"], CANARY, "name: it must match"),
        (["MAIL", "--domain", "[/x]"], CANARY, "domains: '[/x]' is not a host name"),
        (["MAIL", "--from-env", "NOT_SET"], CANARY, "the variable NOT_SET is not set"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(place: Path, args: list[str], stdin: str, sentence: str) -> None:
    refused = secret(place, "set", *args, stdin=stdin)

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert sentence in refused.stderr


def test_the_value_never_comes_from_the_command_line(place: Path) -> None:
    refused = toolcrib(place, "secret", "set", "MAIL", "a-visible-value")
    two = toolcrib(place, "secret", "set", "MAIL", "--from-env", "A", "--from-file", "b")

    assert (refused.returncode, two.returncode) == (2, 2)
    assert "MAIL" not in {name for name, _ in listed(place)}


def test_secrets_set_without_a_service_are_there_when_it_starts_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "value").write_text(CANARY + "\n")
    secret(tmp_path, "set", "ONE", "--from-env", "VALUE", VALUE=CANARY)
    secret(tmp_path, "set", "TWO", "--from-file", "value")
    service, _ = start(tmp_path)
    online = listed(tmp_path)
    secret(tmp_path, "set", "THREE", stdin=CANARY)
    assert stop(service) == 0

    assert online == {("ONE", "global"): "store", ("TWO", "global"): "store"}
    assert listed(tmp_path) == online | {("THREE", "global"): "store"}
    assert (tmp_path / ".toolcrib" / "secrets.key").stat().st_mode & 0o777 == 0o600


def test_a_lost_key_file_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    secret(tmp_path, "set", "MAIL", stdin=CANARY)
    (tmp_path / ".toolcrib" / "secrets.key").unlink()

    refused = toolcrib(tmp_path, "serve", "--port", "0")
    also = secret(tmp_path, "set", "OTHER", stdin=CANARY)
    still = listed(tmp_path)
    kept = secret(tmp_path, "reset", stdin="n\n")
    given_up = secret(tmp_path, "reset", "--yes")
    service, _ = start(tmp_path)

    assert stop(service) == 0
    assert (refused.returncode, also.returncode) == (1, 1)
    assert refused.stderr == also.stderr
    assert "is missing, and stored secrets are encrypted with it" in refused.stderr
    assert "toolcrib secret reset" in refused.stderr
    assert still == {("MAIL", "global"): "store"}
    assert kept.returncode == 1
    assert (given_up.returncode, given_up.stderr) == (0, "1 removed\n")
    assert listed(tmp_path) == {}


def test_reset_is_not_for_a_running_service(folder: Path) -> None:
    secret(folder, "set", "MAIL", stdin=CANARY)

    refused = secret(folder, "reset", "--yes")

    assert refused.returncode == 1
    assert "Another Toolcrib (pid " in refused.stderr
    assert ("MAIL", "global") in listed(folder)
    secret(folder, "rm", "MAIL")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('MAIL = { env = "NOT_SET" }', "The secret MAIL of the configuration cannot be used: the variable NOT_SET"),
        ('MAIL = { env = "SHORT" }', "The secret MAIL of the configuration cannot be used: value: at least 6"),
        (f'MAIL = {{ value = "{CANARY}" }}', "setting secrets.MAIL.value: Extra inputs are not permitted"),
    ],
)
def test_a_configured_secret_that_cannot_be_used_refuses_the_start(tmp_path: Path, setting: str, sentence: str) -> None:
    (tmp_path / "toolcrib.toml").write_text(f"[secrets]\n{setting}\n")

    refused = toolcrib(tmp_path, "serve", "--port", "0", SHORT="cana")

    assert refused.returncode == 1
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "cana" not in refused.stdout + refused.stderr


def test_at_a_terminal_the_value_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-m", "app", "secret", "set", "MAIL"],
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        asked = read_until(ours, b"Value (not shown): ")
        os.write(ours, CANARY.encode() + b"\n")
        told = asked + read_until(ours, b"MAIL is stored")
        assert asking.wait(HANG) == 0
    finally:
        asking.kill()
        asking.wait()
        os.close(ours)

    assert b"canary" not in told
    assert listed(tmp_path) == {("MAIL", "global"): "store"}


def read_until(fd: int, wanted: bytes) -> bytes:
    """What a terminal shows, up to these words."""
    shown, deadline = b"", time.monotonic() + HANG
    while wanted not in shown:
        assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], shown
        shown += os.read(fd, 4096)
    return shown


def test_a_principal_that_no_key_can_have_over_rest_gets_none_without_a_service(tmp_path: Path) -> None:
    refused = toolcrib(tmp_path, "key", "create", "*")

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: principal: ")
