"""Temporary files: those left behind go, those in use stay."""

import os
import time
from pathlib import Path

import pytest

from app.core.ports import Change
from app.sandbox.files import temp_files
from app.sandbox.files.temp_files import Names
from app.sandbox.files.workspace import LocalWorkspace

HOUR = 3600


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that nobody remembers to have swept, two hours from now."""
    monkeypatch.setattr(temp_files, "_swept", type(temp_files._swept)())
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """File times cannot be set back altogether, so it is the clock that is put forward."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * HOUR)


def leave(folder: Path, *, hours: float = 0) -> str:
    """A temporary file as somebody left it who was killed so many hours ago."""
    name = f".toolcrib-{int(time.time() - hours * HOUR):08x}-{os.urandom(8).hex()}"
    (folder / name).write_text("left")
    return name


def commit(ws: LocalWorkspace, path: str = "f") -> None:
    ws.commit([Change(path=path, data=b"x", before=ws.stamp(path))])


@pytest.mark.usefixtures("_later")
def test_what_was_left_behind_long_ago_is_taken_away_by_the_next_commit_there(ws: LocalWorkspace, root: Path) -> None:
    (root / "d").mkdir()
    left, elsewhere = leave(root, hours=4), leave(root / "d", hours=4)

    commit(ws)

    assert (left in os.listdir(root), elsewhere in os.listdir(root / "d")) == (False, True)
    commit(ws, "d/f")
    assert os.listdir(root / "d") == ["f"]


@pytest.mark.usefixtures("_later")
def test_what_is_younger_than_an_hour_by_its_name_stays(ws: LocalWorkspace, root: Path) -> None:
    young = leave(root)

    commit(ws)

    assert young in os.listdir(root)


def test_what_is_younger_than_an_hour_by_its_own_times_stays(ws: LocalWorkspace, root: Path) -> None:
    """A name can come to stand for another file: its change time tells when."""
    renamed = leave(root, hours=4)
    os.utime(root / renamed, (1, 1))

    commit(ws)

    assert renamed in os.listdir(root)


@pytest.mark.usefixtures("_later")
def test_what_a_commit_under_way_uses_stays_however_long_it_takes(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_000_000_000)
        live = names.new()
    (root / live).write_text("in use")

    commit(ws)

    assert live in os.listdir(root)
    names.close()
    temp_files._swept.clear()
    commit(ws)
    assert os.listdir(root) == ["f"]


@pytest.mark.usefixtures("_later")
@pytest.mark.parametrize(
    "name",
    [
        ".toolcrib",
        ".toolcrib-notes",
        ".toolcrib-kept-00000001-0123456789abcdef",
        ".toolcrib-00000001-0123456789abcde",
        ".toolcrib-00000001-0123456789abcdef.txt",
        "x.toolcrib-00000001-0123456789abcdef",
        ".toolcrib-00000001-0123456789abcdef\n",
    ],
)
def test_what_only_looks_like_it_stays(ws: LocalWorkspace, root: Path, name: str) -> None:
    (root / name).write_text("mine")
    (root / ".toolcrib-00000001-aaaaaaaaaaaaaaaa").mkdir()
    (root / ".toolcrib-00000001-bbbbbbbbbbbbbbbb").symlink_to("nowhere")
    before = os.listdir(root)

    commit(ws)

    assert sorted(os.listdir(root)) == sorted([*before, "f"])


@pytest.mark.usefixtures("_later")
def test_a_folder_is_looked_through_once_an_hour(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(ws)
    left, now = leave(root, hours=4), time.monotonic
    commit(ws)
    assert left in os.listdir(root)

    monkeypatch.setattr(time, "monotonic", lambda: now() + HOUR)
    commit(ws)

    assert os.listdir(root) == ["f"]


def test_only_so_many_folders_are_remembered(ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temp_files, "MAX_REMEMBERED", 3)
    for number in range(5):
        commit(ws, f"{number}/f")

    about = [(root / str(number)).stat() for number in range(2, 5)]
    assert list(temp_files._swept) == [(one.st_dev, one.st_ino) for one in about]
