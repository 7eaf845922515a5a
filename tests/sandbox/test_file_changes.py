"""Changes of files: what a commit does, and what it refuses before anything is done."""

import io
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace, PermissionDenied
from app.core.ports import Change, Stamp
from app.sandbox.files import parent_dirs
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.conftest import as_nobody, contents, tree

SOMETHING = Stamp(1, 2, 3, 4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("SECRET")
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "a").write_text("alpha")
    (root / "b").write_text("beta")
    (root / "d/c").write_text("gamma")
    (root / "in").symlink_to("d/c")
    (root / "in_folder").symlink_to("d")
    (root / "dangling").symlink_to("nowhere")
    (root / "out").symlink_to("../secret")
    (root / "folder_out").symlink_to("..")
    os.mkfifo(root / "pipe")
    return root


def put(ws: LocalWorkspace, path: str, text: str | None, **more: int) -> Change:
    """A change of what is there now."""
    return Change(path=path, data=None if text is None else text.encode(), before=ws.stamp(path), **more)


def code_of(work: Callable[..., object], *args: Any, **more: Any) -> str:
    with pytest.raises(CallError) as caught:
        work(*args, **more)
    return caught.value.code


@pytest.mark.usefixtures("opener", "renamer")
def test_files_are_made_replaced_and_removed_at_once(ws: LocalWorkspace, root: Path) -> None:
    (root / "a").chmod(0o750)

    ws.commit(
        [put(ws, "a", "ALPHA"), put(ws, "b", None), put(ws, "d/new", "new"), put(ws, "x/y/z", "deep", mode=0o700)],
        approved={"a", "b", "d/new", "x/y/z"},
    )

    assert contents(root) == {"a": "ALPHA", "d/c": "gamma", "d/new": "new", "x/y/z": "deep"}
    modes = [(root / name).stat().st_mode & 0o7777 for name in ("a", "d/new", "x/y/z")]
    assert modes == [0o750, 0o644, 0o700]


@pytest.mark.usefixtures("renamer")
def test_a_move_is_a_creation_and_a_removal(ws: LocalWorkspace, root: Path) -> None:
    ws.commit([put(ws, "moved/a", "alpha!"), put(ws, "a", None)])
    ws.commit([put(ws, "d/c", "over"), put(ws, "b", None)])

    assert contents(root) == {"moved/a": "alpha!", "d/c": "over"}


@pytest.mark.usefixtures("opener", "renamer")
def test_a_stream_is_copied_and_nothing_can_be_empty(ws: LocalWorkspace, root: Path) -> None:
    data = os.urandom(300_000)

    ws.commit([Change(path="a", data=io.BytesIO(data), before=ws.stamp("a")), put(ws, "b", ""), put(ws, "e", "")])
    ws.commit([])

    assert (root / "a").read_bytes() == data
    assert [(root / name).read_bytes() for name in ("b", "e")] == [b"", b""]


@pytest.mark.usefixtures("renamer")
def test_through_a_link_the_file_it_leads_to_is_changed_and_the_link_stays(ws: LocalWorkspace, root: Path) -> None:
    ws.commit([put(ws, "in", "by link"), put(ws, "in_folder/new", "beside")], approved={"d/c", "d/new"})

    assert (os.readlink(root / "in"), os.readlink(root / "in_folder")) == ("d/c", "d")
    assert ((root / "d/c").read_text(), (root / "d/new").read_text()) == ("by link", "beside")

    ws.commit([put(ws, "in", None)], approved={"d/c"})

    assert (os.readlink(root / "in"), (root / "d/c").exists()) == ("d/c", False)


@pytest.mark.usefixtures("renamer")
def test_the_time_of_a_file_is_as_fine_as_the_clock(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own may be the same for two files in a row that have the same inode."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_234_567_890_123_456_789)

    ws.commit([put(ws, "a", "ALPHA"), put(ws, "new", "new")])

    assert {(root / name).stat().st_mtime_ns for name in ("a", "new")} == {1_234_567_890_123_456_789}


@pytest.mark.usefixtures("renamer")
def test_other_hard_links_keep_the_old_content(ws: LocalWorkspace, root: Path) -> None:
    os.link(root / "a", root / "other")

    ws.commit([put(ws, "a", "ALPHA")])

    assert ((root / "a").read_text(), (root / "other").read_text()) == ("ALPHA", "alpha")


@pytest.mark.usefixtures("opener", "renamer")
@pytest.mark.parametrize("raw", [b"two\nlines", "日本語 é".encode(), b"caf\xe9", b"-rf", b"{path}", b"x" * 255])
def test_a_strange_name_is_the_name_of_the_file_that_is_changed(ws: LocalWorkspace, root: Path, raw: bytes) -> None:
    name, printable = os.fsdecode(raw), raw.decode(errors="replace")
    (root / name).write_text("old")

    ws.commit([put(ws, name, "new")], approved={printable})
    ws.commit([put(ws, f"sub/{name}", "sub")], approved={f"sub/{printable}"})

    assert ((root / name).read_text(), (root / "sub" / name).read_text()) == ("new", "sub")
    assert sorted(os.listdir(root)) == sorted([*TOP, "sub", name])
    ws.commit([put(ws, name, None)])
    assert sorted(os.listdir(root)) == sorted([*TOP, "sub"])


TOP = ["a", "b", "d", "dangling", "folder_out", "in", "in_folder", "out", "pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
@pytest.mark.usefixtures("renamer")
def test_root_leaves_a_file_to_whom_it_belongs(ws: LocalWorkspace, root: Path) -> None:
    os.chown(root / "a", 12_345, 54_321)
    (root / "a").chmod(0o4755)

    ws.commit([put(ws, "a", "ALPHA")])

    about = (root / "a").stat()
    assert (about.st_uid, about.st_gid, about.st_mode & 0o7777) == (12_345, 54_321, 0o4755)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_a_file_that_cannot_be_given_back_to_its_owner_loses_its_special_bits(ws: LocalWorkspace, root: Path) -> None:
    root.chmod(0o777)
    (root / "a").chmod(0o6777)

    with as_nobody():
        ws.commit([put(ws, "a", "ALPHA")])

    about = (root / "a").stat()
    assert (about.st_uid != 0, about.st_mode & 0o7777, (root / "a").read_text()) == (True, 0o777, "ALPHA")


@pytest.mark.usefixtures("opener", "renamer")
@pytest.mark.parametrize(
    ("path", "before", "data", "code"),
    [
        ("d", None, b"x", "EISDIR"),
        ("d", SOMETHING, b"x", "EISDIR"),
        ("d", SOMETHING, None, "EISDIR"),
        (".", SOMETHING, None, "EISDIR"),
        ("{root}", SOMETHING, b"x", "EISDIR"),
        ("new/", None, b"x", "EISDIR"),
        ("{root}/new/", None, b"x", "EISDIR"),
        ("d/.", None, b"x", "EISDIR"),
        ("new/..", None, b"x", "EISDIR"),
        ("a/", None, b"x", "EISDIR"),
        ("pipe", None, b"x", "EINVAL"),
        ("pipe", SOMETHING, None, "EINVAL"),
        ("socket", None, b"x", "EINVAL"),
        ("a/x", None, b"x", "ENOTDIR"),
        ("a/x/y", None, b"x", "ENOTDIR"),
        ("a", None, b"x", "EEXIST"),
        ("a", None, None, "EEXIST"),
        ("a", SOMETHING, b"x", "ESTALE"),
        ("a", SOMETHING, None, "ESTALE"),
        ("new", SOMETHING, b"x", "ESTALE"),
        ("new/x", SOMETHING, b"x", "ESTALE"),
        ("new", SOMETHING, None, "ESTALE"),
        ("new", None, None, "ENOENT"),
        ("x" * 256, None, b"x", "ENAMETOOLONG"),
        ("x/" * 3000, None, b"x", "ENAMETOOLONG"),
        ("out", None, b"x", "OutsideWorkspace"),
        ("out", SOMETHING, None, "OutsideWorkspace"),
        ("folder_out/x", None, b"x", "OutsideWorkspace"),
        ("../x", None, b"x", "OutsideWorkspace"),
        ("new/../../x", None, b"x", "OutsideWorkspace"),
        ("/etc/x", None, b"x", "OutsideWorkspace"),
        ("", None, b"x", "InvalidArgs"),
        ("a\0", None, b"x", "InvalidArgs"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_done(
    ws: LocalWorkspace,
    root: Path,
    path: str,
    before: Stamp | None,
    data: bytes | None,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(root)
    change = Change(path=path.format(root=root), data=data, before=before)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        world = tree(root.parent)

        assert code_of(ws.commit, [put(ws, "b", "B"), put(ws, "deep/er", "new"), change]) == code

        assert tree(root.parent) == world


@pytest.mark.usefixtures("renamer")
@pytest.mark.parametrize("path", ["dangling", "dangling/x", "d/../dangling"])
def test_a_link_to_nothing_is_no_place_for_a_file(ws: LocalWorkspace, root: Path, path: str) -> None:
    world = tree(root.parent)

    with pytest.raises(FileFailed, match="name the file by its own path") as caught:
        ws.commit([Change(path=path, data=b"x", before=None)])

    assert (caught.value.code, tree(root.parent)) == ("ELOOP", world)


def test_what_dots_lead_back_to_is_looked_at_anew(ws: LocalWorkspace, root: Path) -> None:
    (root / "private").mkdir()
    (root / "link").symlink_to("private")

    assert ws.name("missing/../link/x") == "private/x"
    with pytest.raises(OutsideWorkspace):
        ws.name("missing/../folder_out/x")


@pytest.mark.usefixtures("renamer")
@pytest.mark.parametrize("how", ["written", "replaced", "touched", "removed", "made a folder", "made a link"])
def test_a_file_that_is_not_as_it_was_read_is_not_touched(ws: LocalWorkspace, root: Path, how: str) -> None:
    read = ws.load("a")
    about = (root / "a").stat()
    if how == "written":
        (root / "a").write_text("other")
    elif how == "replaced":
        (root / "other").write_text("other")
        os.utime(root / "other", ns=(about.st_atime_ns, about.st_mtime_ns))
        (root / "other").rename(root / "a")
    elif how == "touched":
        os.utime(root / "a", ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    else:
        (root / "a").unlink()
    if how == "made a folder":
        (root / "a").mkdir()
    if how == "made a link":
        (root / "a").symlink_to("b")
    world = tree(root.parent)

    for data in (b"mine", None):
        code = code_of(ws.commit, [Change(path="a", data=data, before=read.stamp)])
        assert code == ("EISDIR" if how == "made a folder" else "ESTALE")

    assert tree(root.parent) == world


@pytest.mark.parametrize("other", ["a", "./a", "{root}/a", "d/../a", "link_to_a"])
def test_one_file_is_not_changed_twice_at_once(ws: LocalWorkspace, root: Path, other: str) -> None:
    (root / "link_to_a").symlink_to("a")
    world = tree(root)

    with pytest.raises(InvalidArgs, match="twice"):
        ws.commit([put(ws, "a", "one"), put(ws, other.format(root=root), None)])

    assert tree(root) == world


@pytest.mark.usefixtures("opener")
def test_only_what_was_approved_is_changed(ws: LocalWorkspace, root: Path) -> None:
    world = tree(root)

    for path in ("a", "new", "d/c"):
        code = code_of(ws.commit, [put(ws, "b", "B"), put(ws, path, "x")], approved={"b", "in"})
        assert code == "ESTALE"

    assert tree(root) == world


@pytest.mark.parametrize(
    "path", [".git/config", "d/.git/hooks/x", ".GIT/x", "sub/.Git", "git_link/config", "{root}/.git/x", "named/.git/x"]
)
def test_nothing_of_git_is_changed(ws: LocalWorkspace, root: Path, path: str) -> None:
    (root / ".git").mkdir()
    (root / ".git/config").write_text("")
    (root / "git_link").symlink_to(".git")
    (root / "named").mkdir()
    (root / "store").mkdir()
    (root / "named/.git").symlink_to("../store")
    world = tree(root)

    with pytest.raises(PermissionDenied, match="git"):
        ws.commit([put(ws, "a", "A"), put(ws, path.format(root=root), "x")])

    assert tree(root) == world


@pytest.mark.usefixtures("opener", "renamer")
def test_where_the_service_may_not_write_it_says_so(ws: LocalWorkspace, root: Path) -> None:
    """A file that may be written, in a folder that may not; and the other way round."""
    root.chmod(0o777)
    (root / "d").chmod(0o555)
    (root / "d/c").chmod(0o666)
    (root / "b").chmod(0o444)
    world, said = tree(root), dict[str, str]()

    with as_nobody():
        for path, text in (("d/c", "C"), ("d/c", None), ("d/new", "x"), ("d/sub/new", "x"), ("b", "B")):
            with pytest.raises(FileFailed) as caught:
                ws.commit([put(ws, "e", "made"), put(ws, path, text)])
            said[f"{path} {text}"] = f"{caught.value.code}: {caught.value.message}"

    closed = "EACCES: {} cannot be changed: this service may not write in the folder it is in."
    assert said == {
        "d/c C": closed.format("d/c"),
        "d/c None": closed.format("d/c"),
        "d/new x": closed.format("d/new"),
        "d/sub/new x": closed.format("d/sub/new"),
        "b B": "EACCES: b is read-only: this service may not write to it.",
    }
    assert tree(root) == world


def test_a_commit_does_not_take_all_descriptors(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_dirs, "MAX_FOLDERS", 20)
    world, before = tree(root), os.listdir("/proc/self/fd")

    for changes in ([put(ws, "n/" * 30 + "x", "x")], [put(ws, f"{number}/x", "x") for number in range(20)]):
        assert code_of(ws.commit, changes) == "TooLarge"
    ws.commit([put(ws, "n/" * 18 + "x", "x")])

    assert tree(root).keys() == world.keys() | {"/".join("n" * depth) for depth in range(1, 19)} | {"n/" * 18 + "x"}
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.usefixtures("opener", "renamer")
def test_no_descriptor_is_left_behind(ws: LocalWorkspace, root: Path) -> None:
    before = os.listdir("/proc/self/fd")

    for path in ("a", "x/y", "d", "dangling", "out", "pipe", "a/x", "new"):
        for stamp in (None, SOMETHING):
            for data in (b"x", None):
                changes = [put(ws, "b", "B"), Change(path=path, data=data, before=stamp)]
                try:
                    ws.commit(changes)
                except CallError:
                    continue

    assert os.listdir("/proc/self/fd") == before
