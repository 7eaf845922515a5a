"""Landlock, as this kernel has it."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from app.sandbox.isolation import landlock
from app.sandbox.process.spawner import Mount
from tests.sandbox.isolation_cases import SYSTEM, WHO, opened

ROOT = Path(__file__).parents[2]
T = TypeVar("T")

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


def confined(readable: Iterable[int | str], work: Callable[[], T]) -> T:
    """Do this in a thread that gave up reading, and ends then."""

    def give_up() -> T:
        landlock.restrict_reading(readable)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(give_up).result()


@needs_landlock
def test_only_what_is_named_and_what_is_below_can_be_read(places: Path) -> None:
    folder = os.open(places / "mine", os.O_RDONLY | os.O_DIRECTORY)

    seen = confined((folder, str(places / "file"), "/not/there"), lambda: try_all(places))

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

    with confined((*libraries, str(places / "file")), start) as child:
        out, err = child.communicate()

    assert out == b"file"
    assert b"other/b" in err
    assert all(try_all(places).values())
    with ThreadPoolExecutor(1) as another:
        assert all(another.submit(try_all, places).result().values())


@needs_landlock
def test_a_process_that_gave_up_reading_reads_no_more_than_it_named(places: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os\n"
        "from app.sandbox.isolation import landlock\n"
        "landlock.restrict_reading([*sys.argv[3:], '/not/there'])\n"
        "os.execv('/bin/cat', ['cat', 'file', 'other/b'])\n"
    )
    readable = ["/bin", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", str(places / "file")]

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, ROOT, "", *readable], cwd=places, capture_output=True, text=True
    )

    assert done.stdout == "file"
    assert "other/b: Permission denied" in done.stderr


def test_where_there_is_none_reading_is_not_given_up(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)

    landlock.restrict_reading([])

    assert all(try_all(places).values())


@pytest.mark.parametrize(
    ("version", "count"), [(0, 1), (1, 4), (2, 3), (3, 2), (4, 1), (5, 1), (6, 0), (7, 0), (9, 0)], ids=str
)
def test_what_an_older_kernel_would_let_through_is_told(version: int, count: int) -> None:
    assert len(landlock.missing(version)) == count


@pytest.mark.parametrize("version", [0, 1, 3, 5])
def test_walls_with_gaps_are_not_built(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: version)

    with pytest.raises(OSError, match="Landlock ABI") as refused:
        landlock.restrict([])

    assert refused.value.errno == errno.ENOSYS


@needs_landlock
def test_something_else_in_the_place_of_a_place_is_no_place(places: Path) -> None:
    about = os.stat(places / "mine")
    right = Mount(path=str(places / "mine"), inode=(about.st_dev, about.st_ino))
    wrong = Mount(path=str(places / "other"), inode=(about.st_dev, about.st_ino))

    os.close(landlock.open_mount(right))
    with pytest.raises(OSError, match="Stale file handle"):
        landlock.open_mount(wrong)


@needs_landlock
def test_what_is_hidden_in_a_place_cannot_be_built_and_is_refused() -> None:
    with opened(WHO[0]) as house:
        places = (*(Mount(path=path) for path in SYSTEM), Mount(path=str(house.base)))

        outcome = house.run(house.order("landlock", "true", mounts=places, hidden=(str(house.base / "state"),)))

    assert "cannot hide a path inside a mount" in outcome.failure


@needs_landlock
@pytest.mark.parametrize(("network", "proxy"), [("allowlist", None), ("allowlist", 0), ("some", None)])
def test_a_network_that_makes_no_sense_is_refused(network: str, proxy: int | None) -> None:
    with opened(WHO[0]) as house:
        outcome = house.run(house.order("landlock", "true", network=network, proxy=proxy))

    assert outcome.failure.startswith("isolation: [Errno 22]")
