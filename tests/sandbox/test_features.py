"""What the machine gives: compared with what other programs of the same machine find."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.sandbox.files import openat2
from app.sandbox.isolation import features
from app.sandbox.isolation.features import Feature, Program

HANG = 60


def script(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_openat2_is_what_the_opener_found() -> None:
    assert features.openat2().available is openat2.is_supported()


def test_landlock_is_there_when_it_has_an_abi() -> None:
    abi = features.landlock_abi()

    assert abi >= 0
    assert features.landlock().available is (abi > 0)
    assert (str(abi) in features.landlock().detail) is (abi > 0)


def test_landlock_is_0_where_the_kernel_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "LANDLOCK_CREATE_RULESET", 100_000)  # no kernel has that many

    assert features.landlock_abi() == 0
    assert features.landlock() == Feature(False, "not in this kernel, or switched off")


def test_seccomp_agrees_with_what_the_kernel_says_of_itself() -> None:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")

    assert features.seccomp().available is (actions.exists() and "errno" in actions.read_text().split())


def test_a_filter_we_are_under_already_is_told() -> None:
    mode = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Seccomp:"))

    assert ("under one already" in features.seccomp().detail) is (mode.split()[1] == "2")


def test_user_namespaces_agree_with_the_unshare_program() -> None:
    tried = subprocess.run(["unshare", "--user", "--mount", "true"], capture_output=True, timeout=HANG, check=False)

    assert features.user_namespaces().available is (tried.returncode == 0)


def test_trying_namespaces_leaves_a_process_with_threads_where_it_was() -> None:
    here = os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")
    answers: list[Feature] = []
    threads = [threading.Thread(target=lambda: answers.append(features.user_namespaces())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)

    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert (os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")) == here


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("1 Operation not permitted", "cannot be entered: Operation not permitted"),
        ("2 Operation not permitted", "can be entered, but without capabilities inside: Operation not permitted"),
    ],
)
def test_a_refused_namespace_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch, said: str, detail: str) -> None:
    monkeypatch.setattr(features, "UNSHARE", f"print({said!r}); raise SystemExit(1)")

    assert features.user_namespaces() == Feature(False, detail)


def test_a_program_is_found_with_the_first_line_it_says(only: Path) -> None:
    path = script(only, "rg", "echo 'ripgrep 14.1.0'; echo 'more about it'")

    assert features.find_program("rg") == Program(str(path), "ripgrep 14.1.0")
    assert features.find_program("bwrap") is None


def test_a_program_that_is_silent_or_broken_is_found_all_the_same(only: Path) -> None:
    silent = script(only, "silent", "exit 3")
    broken = only / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)

    assert features.find_program("silent") == Program(str(silent), "version unknown")
    assert features.find_program("broken") == Program(str(broken), "version unknown")


def test_a_program_that_hangs_with_children_is_ended(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "TIMEOUT_SECONDS", 2)
    mark = only / "pid"
    script(only, "slow", f"{sys.executable} -c 'import time; time.sleep(600)' & echo $! > {mark}; wait")

    assert features.find_program("slow") == Program(str(only / "slow"), "version unknown")
    until = time.monotonic() + HANG
    while _is_alive(int(mark.read_text())):
        assert time.monotonic() < until, "the child was left behind"


def test_a_program_sees_nothing_of_our_environment(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_API_KEY", "tk_secret")
    script(only, "nosy", 'echo "key=$TOOLCRIB_API_KEY"')

    found = features.find_program("nosy")

    assert found is not None
    assert found.version == "key="


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
