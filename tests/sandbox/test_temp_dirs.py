"""Temporary folders: nobody else gets in, nothing leads out, nothing stays."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from app.sandbox.process.sandboxed import TempDirs
from tests.sandbox.conftest import as_nobody


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for everybody's temporary files."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_each_process_has_one_of_its_own_that_nobody_else_can_look_into() -> None:
    folders = TempDirs("/data", None)

    one, other = folders.new(), folders.new()

    assert one != other
    assert stat.S_IMODE(os.stat(one).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.dirname(one)).st_mode) == 0o711


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_it_belongs_to_whom_the_process_becomes() -> None:
    path = TempDirs("/data", (61_200, 61_201)).new()

    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (61_200, 61_201)


def test_what_is_removed_is_gone_and_where_its_links_led_is_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    path = Path(TempDirs("/data", None).new())
    (path / "link").symlink_to(outside)
    (path / "deep" / "deeper").mkdir(parents=True)

    TempDirs.remove(str(path))

    assert not path.exists()
    assert (outside / "kept").exists()


def test_folders_that_a_process_closed_are_removed_too(shared: Path) -> None:
    shared.chmod(0o777)
    for parent in shared.parents:
        if parent.is_relative_to(tempfile.gettempdir()) or "pytest" in str(parent):
            parent.chmod(0o755)
    path = shared / "closed"
    with as_nobody():
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "file").touch()
        (path / "deep").chmod(0)
        path.chmod(0o500)

        TempDirs.remove(str(path))

        assert not path.exists()


def test_what_a_killed_service_left_goes_with_the_next_start_and_nothing_else_does(shared: Path) -> None:
    left, others = TempDirs("/data", None).new(), TempDirs("/other", None).new()
    stem = os.path.basename(os.path.dirname(left)).rpartition("-")[0]
    (shared / "elsewhere").mkdir()
    (shared / f"{stem}-link").symlink_to("elsewhere")
    (shared / f"{stem}-file").touch()
    folders = TempDirs("/data", None)
    mine = folders.new()

    folders.sweep()

    assert not os.path.exists(left)
    assert all(os.path.exists(path) for path in (mine, others, shared / "elsewhere", shared / f"{stem}-file"))


def test_with_the_service_all_of_them_go(shared: Path) -> None:
    folders = TempDirs("/data", None)
    folders.new()

    folders.close()
    folders.close()

    assert list(shared.iterdir()) == []
