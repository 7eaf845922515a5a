"""The real ripgrep, on real folders that do not stand still."""

import asyncio
import ctypes
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import FileFailed, OutsideWorkspace, TimedOut, TooLarge, ToolUnavailable
from app.core.ports import SearchResult
from app.sandbox import ripgrep
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.isolation import landlock
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.ripgrep import Ripgrep
from tests.support.scale import rounds
from tests.support.services import until

LIMIT = 1 << 20
EXCHANGE = 2

needs_landlock = pytest.mark.skipif(not landlock.is_supported(), reason="this kernel has no Landlock")


@pytest.fixture(scope="module")
def searcher() -> Iterator[Ripgrep]:
    trusted = TrustedProcesses()
    yield Ripgrep(trusted)
    trusted.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    return root


@pytest.fixture
def workspace(root: Path) -> Iterator[LocalWorkspace]:
    workspace = LocalWorkspace(root)
    yield workspace
    workspace.close()


def searching(folder: Path) -> list[str]:
    """The processes that are at work in this folder."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{entry}/cwd") == str(folder):
                found.append(entry)
    return found


def put(root: Path, *names: str, text: str = "needle\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


async def search(
    searcher: Ripgrep, workspace: LocalWorkspace, path: str = ".", *arguments: str, **more: Any
) -> SearchResult:
    given = {"approved": None, "seconds": 30.0, "limit": LIMIT} | more
    return await searcher.search(workspace, path, arguments or ("-l", "needle"), **given)


def names(found: SearchResult) -> list[str]:
    return sorted(found.stdout.decode().split())


async def test_a_folder_is_searched_from_within(searcher: Ripgrep, workspace: LocalWorkspace, root: Path) -> None:
    put(root, "sub/a", "sub/deep/b", "c")
    put(root, "sub/no", text="")

    found = await search(searcher, workspace, "sub", "-l", "--sort=path", "needle")

    assert found == SearchResult(0, b"./a\n./deep/b\n", b"", is_file=False, is_cut=False, name="sub")


async def test_a_file_is_searched_alone(searcher: Ripgrep, workspace: LocalWorkspace, root: Path) -> None:
    put(root, "a", "b")
    (root / "link").symlink_to("a")

    found = await search(searcher, workspace, "link", "--no-filename", "needle")

    assert found == SearchResult(0, b"needle\n", b"", is_file=True, is_cut=False, name="a")


async def test_nothing_found_and_a_pattern_that_is_none_are_told_by_the_code(
    searcher: Ripgrep, workspace: LocalWorkspace
) -> None:
    nothing = await search(searcher, workspace)
    broken = await search(searcher, workspace, ".", "(")

    assert nothing == SearchResult(1, b"", b"", is_file=False)
    assert broken.code == 2
    assert b"unclosed group" in broken.stderr


async def test_what_was_not_approved_is_not_searched(searcher: Ripgrep, workspace: LocalWorkspace, root: Path) -> None:
    put(root, "sub/a", "other/b")

    for approved in ({"other"}, {"."}, set[str]()):
        with pytest.raises(FileFailed) as caught:
            await search(searcher, workspace, "sub", approved=approved)
        assert caught.value.code == "ESTALE"
    assert (await search(searcher, workspace, "sub", approved={"sub", "x"})).code == 0


async def test_it_stops_when_enough_was_said(searcher: Ripgrep, workspace: LocalWorkspace, root: Path) -> None:
    put(root, "endless", text="needle\n" * 1_000_000)
    found = await search(searcher, workspace, ".", "needle", limit=1000)
    whole = await search(searcher, workspace, ".", "--max-count=3", "--no-filename", "needle", limit=21)

    assert (found.code, len(found.stdout), found.is_cut) == (0, 1000, True)
    assert (whole.code, whole.stdout, whole.is_cut) == (0, b"needle\n" * 3, False)
    assert searching(root) == []


@pytest.fixture
def endless(root: Path) -> Path:
    """A folder that nobody comes to the end of: ripgrep waits for somebody to write into its ignore file."""
    put(root, "a")
    os.mkfifo(root / ".gitignore")
    return root


async def test_a_search_that_takes_too_long_is_ended(
    searcher: Ripgrep, workspace: LocalWorkspace, endless: Path
) -> None:
    with pytest.raises(TimedOut, match=r"The search took longer than 0\.3 s") as caught:
        await search(searcher, workspace, seconds=0.3)

    assert caught.value.code == "Timeout"
    assert searching(endless) == []


async def test_a_search_that_is_canceled_is_ended(searcher: Ripgrep, workspace: LocalWorkspace, endless: Path) -> None:
    running = asyncio.create_task(search(searcher, workspace))
    await until(lambda: len(searching(endless)) == 1)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert searching(endless) == []


async def test_nothing_stays_open(searcher: Ripgrep, workspace: LocalWorkspace, root: Path) -> None:
    put(root, "sub/a", ".gitignore")
    await search(searcher, workspace, "sub")
    before = os.listdir("/proc/self/fd")

    for path in ("sub", ".", "sub/a"):
        await search(searcher, workspace, path)

    assert os.listdir("/proc/self/fd") == before


async def test_a_line_without_end_does_not_eat_all_memory(
    searcher: Ripgrep, workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ripgrep, "MEMORY_BYTES", 100 * 1024**2)
    put(root, "long", text="x" * 60_000_000)

    with pytest.raises(TooLarge, match="a line that is too long"):
        await search(searcher, workspace)


async def test_the_configuration_of_whoever_runs_the_service_does_not_matter(
    workspace: LocalWorkspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a", "b.log")
    put(tmp_path, "config", text="--files-without-match\n")
    put(tmp_path, "home/.config/git/ignore", "home/.gitconfig", text="*.log\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    found = await search(Ripgrep(TrustedProcesses()), workspace)

    assert names(found) == ["./a", "./b.log"]


async def test_ignore_files_count_from_the_repository_down_as_for_git(
    searcher: Ripgrep, root: Path, tmp_path: Path
) -> None:
    put(tmp_path, ".gitignore", text="*.stray\n")
    put(root, ".gitignore", text="*.log\n/top\n")
    put(root, "sub/.gitignore", text="!keep.log\n")
    put(root, "top", "a.log", "a.stray", "sub/top", "sub/b.log", "sub/keep.log", "sub/in/keep.log", "sub/in/c")
    plain, inner = LocalWorkspace(root), LocalWorkspace(root / "sub/in")

    assert names(await search(searcher, plain)) == [
        "./a.stray",
        "./sub/in/c",
        "./sub/in/keep.log",
        "./sub/keep.log",
        "./sub/top",
    ]
    assert names(await search(searcher, plain, "sub")) == ["./in/c", "./in/keep.log", "./keep.log", "./top"]
    put(root, "sub/in/d.log")
    assert names(await search(searcher, inner)) == ["./c", "./d.log", "./keep.log"]
    (root / ".git").mkdir()
    assert names(await search(searcher, inner)) == ["./c", "./keep.log"]


@needs_landlock
async def test_an_ignore_file_outside_does_not_count_where_there_is_no_repository(
    searcher: Ripgrep, workspace: LocalWorkspace, root: Path, tmp_path: Path
) -> None:
    put(tmp_path, ".gitignore", ".ignore", text="*\n")
    put(root, "sub/a")

    assert names(await search(searcher, workspace, "sub")) == ["./a"]


@needs_landlock
async def test_an_ignore_file_that_is_a_link_opens_no_door(
    searcher: Ripgrep, workspace: LocalWorkspace, root: Path, tmp_path: Path
) -> None:
    put(tmp_path, "secret", text="a\n")
    put(root, "sub/a")
    (root / ".gitignore").symlink_to(tmp_path / "secret")
    (root / "sub/.ignore").symlink_to(tmp_path / "secret")

    assert names(await search(searcher, workspace)) == ["./sub/a"]
    assert names(await search(searcher, workspace, "sub")) == ["./a"]


class Closed(LocalWorkspace):
    """A workspace with the service's own folder in it."""

    def closed_below(self, fd: int) -> str | None:
        return "data [x]*"


async def test_the_closed_folder_is_never_looked_into(searcher: Ripgrep, root: Path) -> None:
    put(root, "a", "data [x]*/key", "data [x]*/deep/key", "data x/b", "sub/data [x]*/c")
    workspace = Closed(root)

    everything = await search(searcher, workspace, ".", "-l", "--null", "--hidden", "--no-ignore", "needle")
    listed = await search(searcher, workspace, ".", "--files", "--null")

    expected = [b"./a", b"./data x/b", b"./sub/data [x]*/c"]
    for found in (everything, listed):
        assert sorted(found.stdout.rstrip(b"\0").split(b"\0")) == expected


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Two names that are exchanged again and again, so that each of them is there at any moment."""
    over, exchange = threading.Event(), libc().renameat2

    def swap() -> None:
        while not over.is_set():
            assert exchange(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE) == 0

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def trap(root: Path, tmp_path: Path) -> Path:
    """A workspace where a folder, and a file, are now and then a way out."""
    for number in range(60):
        put(root, f"d/e/f{number}", text="harmless\n")
        put(tmp_path, f"out/e/f{number}")
    put(root, "file", text="harmless\n")
    put(root, *(f"pad/{number}/x" for number in range(100)), text="harmless\n")
    (root / "link").symlink_to(tmp_path / "out")
    (root / "way").symlink_to(tmp_path / "out/e/f0")
    return root


async def race(searcher: Ripgrep, trap: Path, rounds: int) -> list[bytes]:
    """What was found of what is outside, while names were swapped."""
    workspace, found = LocalWorkspace(trap), list[bytes]()
    with swapping(trap / "d", trap / "link"), swapping(trap / "file", trap / "way"):
        for number in range(rounds):
            path = (".", "d", "file", "d/e")[number % 4]
            try:
                found.append((await search(searcher, workspace, path, "needle")).stdout)
            except (OutsideWorkspace, FileFailed):
                continue
    workspace.close()
    return [output for output in found if output]


@pytest.mark.sampled
@needs_landlock
async def test_a_symlink_that_is_swapped_in_leads_nowhere(searcher: Ripgrep, trap: Path) -> None:
    assert await race(searcher, trap, rounds(40, 600)) == []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def stub(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)


async def test_the_one_on_the_path_comes_first_and_then_the_one_that_came_with_us(
    workspace: LocalWorkspace, programs: Path
) -> None:
    [ours] = ripgrep.programs()
    shutil.copy(ours, programs / "rg")

    assert ripgrep.programs() == [str(programs / "rg"), ours]


BROKEN = {"too old": "echo ripgrep 11.0.2", "another program": "echo rg 1.0", "broken": "exit 3", "": ""}


@pytest.mark.parametrize("says", BROKEN.values(), ids=BROKEN.keys())
async def test_one_that_is_too_old_or_does_not_work_is_passed_over(
    workspace: LocalWorkspace, root: Path, programs: Path, says: str
) -> None:
    put(root, "a")
    stub(programs / "rg", says)

    assert names(await search(Ripgrep(TrustedProcesses()), workspace)) == ["./a"]


async def test_one_that_does_not_run_confined_is_better_than_none(
    workspace: LocalWorkspace, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(programs / "rg", '[ "$1" = --version ] && echo "ripgrep 14.0.0" || echo searched')
    monkeypatch.setattr(ripgrep, "programs", lambda: [str(programs / "rg")])

    assert (await search(Ripgrep(TrustedProcesses()), workspace)).stdout == b"searched\n"


async def test_without_any_ripgrep_the_tool_says_so_and_looks_again_the_next_time(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a")
    searcher, there = Ripgrep(TrustedProcesses()), ripgrep.programs
    monkeypatch.setattr(ripgrep, "programs", list)

    with pytest.raises(ToolUnavailable, match="There is no ripgrep 13 or newer here"):
        await search(searcher, workspace)

    monkeypatch.setattr(ripgrep, "programs", there)
    assert names(await search(searcher, workspace)) == ["./a"]


def test_the_times_of_what_was_found_are_those_of_the_files_themselves(workspace: LocalWorkspace, root: Path) -> None:
    put(root, "sub/a", "sub/deep/b", "c")
    (root / "sub/link").symlink_to("a")
    for name, moment in {"sub/a": 5, "sub/deep/b": 7}.items():
        os.utime(root / name, ns=(moment, moment))
    os.utime(root / "sub/link", ns=(9, 9), follow_symlinks=False)

    assert workspace.times("sub", ["deep/b", "gone", "a", "link"], approved={"sub"}) == [7, 0, 5, 9]
    with pytest.raises(FileFailed):
        workspace.times("sub", ["a"], approved={"c"})
