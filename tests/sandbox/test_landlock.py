"""Landlock, as this kernel has it."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.sandbox import landlock

needs_landlock = pytest.mark.skipif(not landlock.is_supported(), reason="this kernel has no Landlock")


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for name in ("mine/deep/a", "file", "other/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "mine/out").symlink_to("../other")
    return tmp_path


def try_all(root: Path) -> dict[str, bool]:
    """Which of these can be read."""
    return {name: can_read(root / name) for name in ("mine", "mine/deep/a", "mine/out/b", "file", "other", "other/b")}


def can_read(path: Path) -> bool:
    try:
        os.listdir(path) if path.is_dir() else path.read_text()
    except PermissionError:
        return False
    return True


@needs_landlock
def test_only_what_is_named_and_what_is_below_can_be_read(places: Path) -> None:
    folder = os.open(places / "mine", os.O_RDONLY | os.O_DIRECTORY)

    seen = landlock.confined((folder, str(places / "file"), "/not/there"), lambda: try_all(places))

    os.close(folder)
    assert seen == {
        "mine": True,
        "mine/deep/a": True,
        "mine/out/b": False,
        "file": True,
        "other": False,
        "other/b": False,
    }


@needs_landlock
def test_what_is_started_there_is_bound_too_and_nobody_else(places: Path) -> None:
    libraries = ("/bin", "/usr", "/lib", "/lib64", "/etc/ld.so.cache")

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["cat", places / "file", places / "other/b"], stdout=-1, stderr=-1)

    with landlock.confined((*libraries, str(places / "file")), start) as child:
        out, err = child.communicate()

    assert out == b"file"
    assert b"other/b" in err
    assert all(try_all(places).values())
    with ThreadPoolExecutor(1) as another:
        assert all(another.submit(try_all, places).result().values())


@needs_landlock
def test_what_the_work_raises_comes_out_and_nothing_stays_open(places: Path) -> None:
    before = os.listdir("/proc/self/fd")

    with pytest.raises(ZeroDivisionError):
        landlock.confined((str(places),), lambda: 1 // 0)

    assert os.listdir("/proc/self/fd") == before


def test_where_there_is_none_the_work_is_done_all_the_same(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "is_supported", lambda: False)

    assert all(landlock.confined((), lambda: try_all(places)).values())
