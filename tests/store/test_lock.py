import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.store.lock import FILE_NAME, AlreadyRunning, DataDirLock, Holder, find_holder, holder_url

ROOT = Path(__file__).parent.parent.parent
URL = "http://127.0.0.1:8700"
HOLDER = """
import sys, time
from pathlib import Path
from app.store.lock import DataDirLock
lock = DataDirLock(Path(sys.argv[1]))
lock.write(url=sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""
LOOKER = """
import sys
from pathlib import Path
from app.store.lock import holder_url
print("looking", flush=True)
while True:
    holder_url(Path(sys.argv[1]))
"""


def test_a_second_lock_is_refused_with_who_holds_the_first_and_what_to_do(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)
    held.write(url=URL)

    with pytest.raises(AlreadyRunning) as caught:
        DataDirLock(tmp_path)

    assert str(caught.value) == (
        f"Another Toolcrib (pid {os.getpid()}, url {URL}) uses the data directory {tmp_path}. "
        "Stop it, or start this one with another --data-dir."
    )
    held.release()


def test_a_holder_that_has_not_said_where_it_is_yet_is_just_starting(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)

    with pytest.raises(AlreadyRunning, match=r"^Another Toolcrib \(just starting\) uses"):
        DataDirLock(tmp_path)
    assert holder_url(tmp_path) is None
    held.release()


def test_a_released_lock_can_be_taken_again_and_tells_nothing_old(tmp_path: Path) -> None:
    first = DataDirLock(tmp_path)
    first.write(url=URL)
    first.release()

    second = DataDirLock(tmp_path)

    with pytest.raises(AlreadyRunning, match="just starting"):
        DataDirLock(tmp_path)
    second.release()


def test_the_holders_url_is_known_while_it_holds_and_not_after(tmp_path: Path) -> None:
    assert holder_url(tmp_path) is None
    held = DataDirLock(tmp_path)
    held.write(url=URL)
    assert holder_url(tmp_path) == URL
    held.release()

    assert holder_url(tmp_path) is None


def test_what_is_written_last_counts_whole_however_long_it_was_before(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)
    held.write(url=URL + "/" + "x" * 1000)
    held.write(url=URL)

    assert holder_url(tmp_path) == URL
    held.release()


def test_only_the_owner_can_read_the_lock_file(tmp_path: Path) -> None:
    DataDirLock(tmp_path).release()

    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_two_data_directories_have_two_locks(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    one, other = DataDirLock(tmp_path), DataDirLock(tmp_path / "other")

    one.release()
    other.release()


def test_the_lock_ends_with_its_process_even_when_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), URL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert holder_url(tmp_path) == URL
            with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}, url {URL}"):
                DataDirLock(tmp_path)
        finally:
            holder.send_signal(signal.SIGKILL)

    assert holder.returncode == -signal.SIGKILL
    assert holder_url(tmp_path) is None
    DataDirLock(tmp_path).release()


def test_looking_at_the_lock_never_keeps_a_service_from_starting(tmp_path: Path) -> None:
    DataDirLock(tmp_path).release()
    command = [sys.executable, "-c", LOOKER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as looker:
        try:
            assert looker.stdout is not None
            assert looker.stdout.readline() == "looking\n"
            for _ in range(2000):
                DataDirLock(tmp_path).release()
        finally:
            looker.send_signal(signal.SIGKILL)


def test_looking_makes_no_file_and_changes_none(tmp_path: Path) -> None:
    assert find_holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / FILE_NAME).write_text("left behind by a service that was killed")

    assert find_holder(tmp_path) is None
    assert (tmp_path / FILE_NAME).read_text() == "left behind by a service that was killed"


def test_a_holder_is_known_with_all_it_said(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)
    assert find_holder(tmp_path) == Holder()
    held.write(url=URL, certificate="a long one" * 1000)

    assert find_holder(tmp_path) == Holder(os.getpid(), URL, "a long one" * 1000)
    assert str(find_holder(tmp_path)) == f"pid {os.getpid()}, url {URL}"
    held.release()
