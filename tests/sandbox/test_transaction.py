"""All or nothing: whatever goes wrong on the way, and whoever comes between, no commit is half made."""

import errno
import io
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed
from app.core.ports import Change
from app.sandbox.files import openat2, parent_dirs, renameat2
from app.sandbox.files.parent_dirs import Parents
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.commit_interception import four_changes, intercept
from tests.sandbox.conftest import as_nobody, contents, tree

MEGA = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("SECRET")
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "a").write_text("alpha")
    (root / "b").write_text("beta")
    (root / "d/c").write_text("gamma")
    for number, name in enumerate(("a", "b", "d/c"), 1):
        (root / name).chmod(0o600 + number)
        os.utime(root / name, ns=(number, number * 1_000_000_007))
    return root


MADE = {"a": "ALPHA", "new/folder/file": "new", "d/c": "GAMMA"}


def broken() -> OSError:
    return OSError(errno.EIO, "broken")


class Breaker:
    """Counts what is asked of the system, and fails one time, or from one time on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.broken = range(0)
        self.error: Callable[[], BaseException] = broken
        intercept(monkeypatch, self._watch)

    def _watch(self, by_answer: bool) -> int | None:
        self.count += 1
        if self.count not in self.broken:
            return None
        error = self.error()
        if by_answer and isinstance(error, OSError):
            return error.errno
        raise error


@pytest.mark.parametrize("error", [broken, MemoryError])
def test_at_whatever_step_it_fails_everything_is_as_it_was(
    ws: LocalWorkspace, root: Path, renamer: str, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parents, "sweep", lambda self: None)  # by then all is done
    world, descriptors = tree(root.parent), os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        breaker = Breaker(patch)
        breaker.error = error
        points = 0
        while True:
            changes = four_changes(ws)
            breaker.count, last = 0, points + 1
            breaker.broken = range(last, last + 1)
            try:
                ws.commit(changes)
            except (CallError, MemoryError):
                points += 1
            if breaker.count < last:
                break
            breaker.broken = range(0)
            assert same(tree(root.parent), world, renamer), f"step {last}"

    assert points > 40
    assert contents(root) == MADE
    assert os.listdir("/proc/self/fd") == descriptors


def same(now: dict[str, Any], before: dict[str, Any], renamer: str) -> bool:
    """To the inode, where old files can be kept; the copies of the others are to be told from them by nothing else."""
    if renamer != "copy":
        return now == before
    return {name: about[:4] for name, about in now.items()} == {name: about[:4] for name, about in before.items()}


def test_when_nothing_can_be_put_back_nothing_is_lost_and_it_is_said(
    ws: LocalWorkspace, root: Path, renamer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system becomes read-only in the middle, as a broken disk's does."""
    said = set[str]()
    with monkeypatch.context() as patch:
        breaker = Breaker(patch)
        for start in range(1, 200):
            before = contents(root)
            changes = four_changes(ws)
            breaker.count, breaker.broken = 0, range(start, 10_000)
            try:
                ws.commit(changes)
            except CallError as error:
                said.add(error.message.partition(" What was")[2])
                assert set(before.values()) <= set(contents(root).values()), f"step {start}"
            else:
                assert contents(root) == MADE
            breaker.broken = range(0)
            if breaker.count < start:
                break
            after = contents(root)
            assert all(after[name] in (before.get(name), text) for name, text in MADE.items() if name in after)
            rebuild(root)

    assert start > 40
    assert any("could not be put back: " in text and "is kept beside it as .toolcrib-" in text for text in said)


def rebuild(root: Path) -> None:
    shutil.rmtree(root / "new", ignore_errors=True)
    for name, text in {"a": "alpha", "b": "beta", "d/c": "gamma"}.items():
        (root / name).write_text(text)
    for leftover in root.rglob(".toolcrib-*"):
        leftover.unlink()


def test_what_could_not_be_put_back_is_kept_under_a_name_that_is_not_swept(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, calls = renameat2.exchange, list[str]()

    def once(folder: int, one: str, other: str) -> None:
        calls.append(other)
        if len(calls) > 1:
            raise OSError(errno.EIO, "broken")
        exchange(folder, one, other)

    monkeypatch.setattr(renameat2, "exchange", once)
    with pytest.raises(FileFailed, match=r"could not be put back: a is kept beside it as \.toolcrib-kept-") as caught:
        ws.commit([four_changes(ws)[0], four_changes(ws)[3]])

    [kept] = root.glob(".toolcrib-*")
    assert (kept.read_text(), kept.name in caught.value.message) == ("alpha", True)
    assert ((root / "a").read_text(), (root / "d/c").read_text()) == ("ALPHA", "gamma")


def test_a_new_file_with_two_names_is_not_left_with_one_of_them(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file gets its name by a link, and the first name cannot be taken away."""
    world, unlink, refused = tree(root), os.unlink, list[str]()

    def refuse_once(name: str, *, dir_fd: int | None = None) -> None:
        if not refused:
            refused.append(name)
            raise broken()
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(renameat2, "_call", lambda *args: errno.EINVAL)
    monkeypatch.setattr(os, "unlink", refuse_once)
    with pytest.raises(FileFailed, match="Input/output error"):
        ws.commit(four_changes(ws)[1:2])

    assert (len(refused), tree(root)) == (1, world)


@pytest.mark.usefixtures("renamer")
def test_a_file_that_grows_too_big_half_way_changes_nothing(ws: LocalWorkspace, root: Path) -> None:
    world = tree(root)
    changes = [*four_changes(ws), Change(path="big", data=b"x" * 9 * MEGA, before=None)]

    with largest_file(8 * MEGA), pytest.raises(FileFailed) as caught:
        ws.commit(changes)

    assert (caught.value.code, tree(root)) == ("EFBIG", world)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_may_not_be_written_half_way_changes_nothing(
    ws: LocalWorkspace, root: Path, renamer: str
) -> None:
    """The last change is a removal, so that it is not noticed before everything else is in its place."""
    root.chmod(0o777)
    (root / "a").chmod(0o666)
    (root / "d").chmod(0o555)
    (root / "d/c").chmod(0o666)
    world = tree(root)

    replacement, creation, _, last = four_changes(ws)
    changes = [replacement, creation, Change(path="d/c", data=None, before=last.before)]

    with as_nobody(), pytest.raises(FileFailed) as caught:
        ws.commit(changes)

    assert caught.value.code == "EACCES"
    assert same(tree(root), world, renamer)


class Intruder(io.BytesIO):
    """A stream that does something to the workspace when it is read: after all was looked at, before any is put."""

    def __init__(self, deed: Callable[[], object]) -> None:
        super().__init__(b"GAMMA")
        self._deed: Callable[[], object] | None = deed

    def read(self, size: int | None = -1) -> bytes:
        if self._deed is not None:
            self._deed()
            self._deed = None
        return super().read(size)


def write_over(root: Path) -> None:
    (root / "a").write_text("other")


def rename_over(root: Path) -> None:
    (root / "other").write_text("other")
    (root / "other").rename(root / "a")


def remove(root: Path) -> None:
    (root / "a").unlink()


def make_folder(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").mkdir()


def make_link_out(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").symlink_to("../outside/a")


def make_pipe(root: Path) -> None:
    (root / "a").unlink()
    os.mkfifo(root / "a")


@pytest.mark.parametrize("kind", ["replacement", "removal"])
@pytest.mark.parametrize("deed", [write_over, rename_over, remove, make_folder, make_link_out, make_pipe])
def test_who_comes_between_wins_and_the_rest_is_undone(
    ws: LocalWorkspace, root: Path, renamer: str, kind: str, deed: Callable[[Path], None]
) -> None:
    world = dict[str, Any]()

    def intrude() -> None:
        deed(root)
        world.update(leaving_out_temporaries(tree(root.parent)))

    mine = Change(path="a", data=b"ALPHA" if kind == "replacement" else None, before=ws.stamp("a"))
    second = Change(path="b", data=b"BETA", before=ws.stamp("b"))
    stream = Change(path="d/c", data=Intruder(intrude), before=ws.stamp("d/c"))

    with pytest.raises(FileFailed, match=r"a was changed, moved or removed|a is a directory") as caught:
        ws.commit([second, mine, stream])

    assert caught.value.code in ("ESTALE", "EISDIR")
    assert same(tree(root.parent), world, renamer)


@pytest.mark.parametrize("kind", ["replacement", "removal"])
@pytest.mark.parametrize("deed", [write_over, rename_over, remove, make_folder, make_link_out, make_pipe])
def test_who_comes_between_the_last_look_and_the_rename_wins_too(
    ws: LocalWorkspace, root: Path, kind: str, deed: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, step = dict[str, Any](), "exchange" if kind == "replacement" else "move"
    rename: Callable[[int, str, str], None] = getattr(renameat2, step)

    def late(folder: int, one: str, other: str) -> None:
        if "a" in (one, other) and not world:
            deed(root)
            world.update(leaving_out_temporaries(tree(root.parent)))
        rename(folder, one, other)

    second, mine = four_changes(ws)[1], Change(path="a", data=None, before=ws.stamp("a"))
    monkeypatch.setattr(renameat2, step, late)
    with pytest.raises(FileFailed) as caught:
        ws.commit([second, four_changes(ws)[0] if kind == "replacement" else mine])

    assert caught.value.code == "ESTALE"
    assert tree(root.parent) == {name: about for name, about in world.items() if not name.startswith("root/new")}


@pytest.mark.parametrize("deed", [write_over, rename_over, remove])
def test_who_comes_after_the_old_file_was_saved_wins_too(
    ws: LocalWorkspace, root: Path, renamer: str, deed: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names cannot be exchanged, the old file gets another one first."""
    world, link = dict[str, Any](), renameat2.link

    def late(folder: int, name: str, to: str) -> bool:
        is_linked = link(folder, name, to)
        deed(root)
        world.update(leaving_out_temporaries(tree(root.parent)))
        return is_linked

    monkeypatch.setattr(renameat2, "_call", lambda *args: errno.EINVAL)
    monkeypatch.setattr(renameat2, "link", late)
    with pytest.raises(FileFailed) as caught:
        ws.commit(four_changes(ws)[:1])

    assert (caught.value.code, tree(root.parent)) == ("ESTALE", world)


def test_a_folder_that_is_moved_while_it_is_opened_is_not_the_one_that_was_named(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*args: Any, **more: Any) -> int:
        fd = openat2.open_beneath(*args, **more)
        (root / "d").rename(root / "private")
        return fd

    before = ws.stamp("d/c")
    monkeypatch.setattr(parent_dirs, "open_beneath", slowly)
    with pytest.raises(FileFailed) as caught:
        ws.commit([Change(path="d/c", data=b"GAMMA", before=before)], approved={"d/c"})

    assert (caught.value.code, (root / "private/c").read_text()) == ("ESTALE", "gamma")


def leaving_out_temporaries(known: dict[str, Any]) -> dict[str, Any]:
    return {name: about for name, about in known.items() if ".toolcrib-" not in name}


@pytest.mark.usefixtures("renamer")
def test_a_file_made_by_somebody_else_meanwhile_is_not_replaced(ws: LocalWorkspace, root: Path) -> None:
    world = contents(root)

    def make() -> None:
        (root / "new").write_text("theirs")

    with pytest.raises(FileFailed) as caught:
        ws.commit(
            [
                Change(path="a", data=b"ALPHA", before=ws.stamp("a")),
                Change(path="new", data=b"mine", before=None),
                Change(path="d/c", data=Intruder(make), before=ws.stamp("d/c")),
            ]
        )

    assert (caught.value.code, contents(root)) == ("EEXIST", world | {"new": "theirs"})


@pytest.mark.usefixtures("opener", "renamer")
def test_a_folder_that_becomes_a_link_out_is_not_gone_through(ws: LocalWorkspace, root: Path) -> None:
    """The folder that was looked at is held; what has its name by then does not count."""
    outside = tree(root.parent / "outside")

    def swap() -> None:
        (root / "d").rename(root / "moved")
        (root / "d").symlink_to("../outside")

    ws.commit(
        [
            Change(path="d/a", data=b"mine", before=None),
            Change(path="d/c", data=Intruder(swap), before=ws.stamp("d/c")),
        ]
    )

    assert tree(root.parent / "outside") == outside
    assert contents(root) == {"a": "alpha", "b": "beta", "moved/a": "mine", "moved/c": "GAMMA"}


@pytest.mark.usefixtures("renamer")
def test_a_folder_that_is_gone_meanwhile_ends_it(ws: LocalWorkspace, root: Path) -> None:
    def remove_folder() -> None:
        shutil.rmtree(root / "d")

    with pytest.raises(FileFailed) as caught:
        ws.commit(
            [
                Change(path="a", data=b"ALPHA", before=ws.stamp("a")),
                Change(path="b", data=Intruder(remove_folder), before=ws.stamp("b")),
                Change(path="d/c", data=b"GAMMA", before=ws.stamp("d/c")),
            ]
        )

    assert (caught.value.code, contents(root)) == ("ESTALE", {"a": "alpha", "b": "beta"})


@pytest.mark.parametrize("change", ["replacement", "creation", "removal"])
def test_what_somebody_put_in_the_place_before_it_is_undone_stays(
    ws: LocalWorkspace, root: Path, change: str, renamer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = {"replacement": "a", "creation": "new", "removal": "b"}[change]
    data = None if change == "removal" else b"mine"
    fsync = os.fsync

    def break_after(fd: int) -> None:
        """When everything is in its place and only the folders are to be synced."""
        is_put = (root / path).exists() != (change == "removal")
        if os.path.isdir(f"/proc/self/fd/{fd}") and is_put:
            (root / "other").write_text("newer")
            (root / "other").rename(root / path)
            raise OSError(errno.EIO, "broken")
        fsync(fd)

    changes = [Change(path=path, data=data, before=ws.stamp(path)), four_changes(ws)[3]]
    monkeypatch.setattr(os, "fsync", break_after)
    with pytest.raises(FileFailed):
        ws.commit(changes)

    assert contents(root) == {"a": "alpha", "b": "beta", "d/c": "gamma"} | {path: "newer"}


@pytest.mark.parametrize("change", ["replacement", "creation"])
def test_what_somebody_puts_in_the_place_while_it_is_undone_stays(
    ws: LocalWorkspace, root: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment between the look and the rename."""
    path = {"replacement": "a", "creation": "new"}[change]
    changes = [
        Change(path=path, data=b"mine", before=ws.stamp(path)),
        Change(path="b", data=None, before=ws.stamp("b")),
    ]
    exchange, move = renameat2.exchange, renameat2.move
    is_undoing = list[bool]()

    def newer() -> None:
        if is_undoing == [True]:
            (root / "other").write_text("newer")
            (root / "other").rename(root / path)
            is_undoing.append(True)

    def exchange_late(folder: int, one: str, other: str) -> None:
        newer()
        exchange(folder, one, other)

    def move_late(folder: int, name: str, to: str) -> None:
        if name == "b":
            is_undoing.append(True)
            raise OSError(errno.EIO, "broken")
        newer()
        move(folder, name, to)

    monkeypatch.setattr(renameat2, "exchange", exchange_late)
    monkeypatch.setattr(renameat2, "move", move_late)
    with pytest.raises(FileFailed):
        ws.commit(changes)

    assert len(is_undoing) == 2
    assert contents(root) == {"a": "alpha", "b": "beta", "d/c": "gamma"} | {path: "newer"}
