"""What is around a workspace: the operator's extra roots, and the service's own records."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed, InvalidArgs, Misconfigured, OutsideWorkspace, PermissionDenied
from app.core.ports import Change, Entry, Stamp
from app.core.sessions import Session
from app.sandbox.files.roots import Access, Root, RootSet, open_extras
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.files.workspaces import Workspaces
from tests.sandbox.conftest import contents, tree

EXTRAS: list[tuple[str, Access]] = [("lib", "read"), ("out", "write"), ("lib/deep/own", "write"), ("out/fixed", "read")]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A workspace, extra roots one in the other, and something else."""
    for folder in ("ws/d", "lib/deep", "lib/deep/own", "out", "out/fixed", "other", "data"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "f").write_text(folder)
    return tmp_path


@pytest.fixture
def ws(world: Path) -> Iterator[LocalWorkspace]:
    yield from workspace(world, "ws", EXTRAS)


def workspace(world: Path, root: str, extras: list[tuple[str, Access]]) -> Iterator[LocalWorkspace]:
    around = RootSet(open_extras([(world / path, access) for path, access in extras], world / "data"))
    made = LocalWorkspace(world / root, around=around)
    yield made
    made.close()
    around.close()


def read(ws: LocalWorkspace, path: Path | str) -> str:
    return ws.load(str(path)).data.decode()


def put(ws: LocalWorkspace, path: Path | str, text: str | None) -> Change:
    return Change(path=str(path), data=None if text is None else text.encode(), before=ws.stamp(str(path)))


def code_of(work: Callable[..., object], *args: Any, **more: Any) -> str:
    with pytest.raises(CallError) as caught:
        work(*args, **more)
    return caught.value.code


@pytest.mark.usefixtures("opener")
def test_what_is_in_an_extra_root_is_reached_by_its_absolute_path(ws: LocalWorkspace, world: Path) -> None:
    path = f"{world}/lib/deep/f"

    with ws.open(path, approved={path}) as file:
        assert file.read() == b"lib/deep"
    with ws.hold(f"{world}/lib/deep") as (fd, is_file):
        assert (sorted(os.listdir(fd)), is_file) == (["f", "own"], False)
    assert (ws.name(path), ws.name(f"{world}//lib/./deep/../new")) == (path, f"{world}/lib/new")
    assert list(ws.scan(f"{world}/lib/deep")) == [Entry("f", "file"), Entry("own", "directory")]
    assert ws.stamp(f"{world}/lib/nope") is None
    assert ws.display(path) == path
    assert code_of(ws.open, path, approved={"lib/deep/f"}) == "ESTALE"


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize("path", ["lib/f", "./out/f", "f"])
def test_a_relative_path_starts_in_the_workspace(ws: LocalWorkspace, path: str) -> None:
    assert (ws.name(path), code_of(ws.open, path)) == (path.removeprefix("./"), "ENOENT")


@pytest.mark.usefixtures("opener", "renamer")
def test_in_a_root_for_writing_everything_can_be_done(ws: LocalWorkspace, world: Path) -> None:
    inside, out = put(ws, "d/f", "D"), f"{world}/out"

    ws.commit(
        [inside, put(ws, f"{out}/f", "F"), put(ws, f"{out}/new/x", "new"), put(ws, f"{world}/lib/deep/own/f", None)],
        approved={"d/f", f"{out}/f", f"{out}/new/x", f"{world}/lib/deep/own/f"},
    )

    assert contents(world) == {
        **{"ws/d/f": "D", "out/f": "F", "out/new/x": "new", "out/fixed/f": "out/fixed"},
        **{"lib/deep/f": "lib/deep", "other/f": "other", "data/f": "data"},
    }
    with pytest.raises(InvalidArgs, match="twice"):
        ws.commit([put(ws, f"{out}/f", "1"), put(ws, f"{world}/lib/../out/f", "2")])


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize("path", ["lib/deep/f", "lib/new/x", "out/fixed/f", "out/fixed/new"])
@pytest.mark.parametrize("text", ["x", None])
def test_in_a_root_for_reading_nothing_is_changed(ws: LocalWorkspace, world: Path, path: str, text: str | None) -> None:
    before = tree(world)

    with pytest.raises(FileFailed, match="opened for reading only") as caught:
        ws.commit([put(ws, "d/f", "D"), put(ws, world / path, text)])

    assert (caught.value.code, tree(world)) == ("EROFS", before)


def test_a_link_counts_as_where_it_leads(ws: LocalWorkspace, world: Path) -> None:
    """A way from a root for writing into one for reading inside it is a way for reading, and the other way round."""
    (world / "out/link").symlink_to("fixed")
    (world / "lib/link").symlink_to("deep/own")

    assert ws.name(f"{world}/out/link/f") == f"{world}/out/fixed/f"
    assert code_of(ws.commit, [put(ws, f"{world}/out/link/f", "x")]) == "EROFS"
    ws.commit([put(ws, f"{world}/lib/link/f", "own")], approved={f"{world}/lib/deep/own/f"})

    assert (world / "lib/deep/own/f").read_text() == "own"


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize(
    "path",
    [
        "{world}",
        "{world}/other/f",
        "{world}/lib/../other/f",
        "{world}/lib-not/f",
        "{world}/lib/out_link",
        "{world}/lib/absolute/f",
        "{world}/lib/up/other/f",
        "{world}/lib/new/../../other/f",
        "{world}/lib/to_out",
        "ws_to_lib/f",
        "/etc/passwd",
    ],
)
def test_no_way_leads_out_of_an_extra_root_and_none_from_one_to_the_other(
    ws: LocalWorkspace, world: Path, path: str
) -> None:
    (world / "lib/out_link").symlink_to("../other/f")
    (world / "lib/absolute").symlink_to(world / "other")
    (world / "lib/up").symlink_to("..")
    (world / "lib/to_out").symlink_to("../out/f")
    (world / "ws/ws_to_lib").symlink_to(world / "lib")
    before, given = tree(world), path.format(world=world)

    for use in (ws.open, ws.scan, ws.load, ws.stamp, ws.name, ws.folder):
        with pytest.raises(OutsideWorkspace):
            use(given)
    assert code_of(ws.commit, [Change(path=given, data=b"x", before=None)]) == "OutsideWorkspace"
    assert tree(world) == before


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("{world}/lib", "{world}/lib"),
        ("{world}/lib/", "{world}/lib"),
        ("{world}/lib/deep", "{world}/lib/deep"),
        ("{world}/lib/deep/f", "{world}/lib/deep"),
        ("{world}/lib/deep/new", "{world}/lib/deep"),
        ("{world}/lib/new/x", "{world}/lib/new"),
        ("d/f", "d"),
        ("x", "."),
        ("d", "d"),
    ],
)
def test_the_folder_of_a_path_is_the_one_it_is_in_or_is(
    ws: LocalWorkspace, world: Path, path: str, folder: str
) -> None:
    assert ws.folder(path.format(world=world)) == folder.format(world=world)


def test_what_is_in_the_workspace_is_the_workspaces_whichever_root_led_there(world: Path) -> None:
    """The workspace lies in one extra root, and has another one in it."""
    (world / "link").symlink_to("ws")
    (world / "lib/ws").symlink_to("../ws")
    for ws in workspace(world, "ws", [("lib", "read"), ("ws/d", "read"), ("out", "read")]):
        ws.commit([put(ws, "d/f", "1"), put(ws, f"{world}/ws/d/new", "2")], approved={"d/f", "d/new"})
        assert ws.name(f"{world}/ws/d/f") == "d/f"

    (world / "around").mkdir()
    (world / "ws").rename(world / "around/ws")
    (world / "around/link").symlink_to("ws/d")
    for ws in workspace(world, "around/ws", [("around", "read")]):
        assert ws.name(f"{world}/around/link/f") == "d/f"
        assert ws.name(f"{world}/around/x") == f"{world}/around/x"
        ws.commit([put(ws, f"{world}/around/link/f", "3")], approved={"d/f"})

    assert contents(world / "around") == {"ws/d/f": "3", "ws/d/new": "2"}


def test_an_extra_root_behind_a_link_has_one_canonical_name(world: Path) -> None:
    (world / "alias").symlink_to("lib")
    for ws in workspace(world, "ws", [("alias", "read")]):
        assert [ws.name(f"{world}/{root}/deep/f") for root in ("alias", "lib")] == [f"{world}/lib/deep/f"] * 2


def test_git_is_closed_in_extra_roots_too(ws: LocalWorkspace, world: Path) -> None:
    with pytest.raises(PermissionDenied):
        ws.commit([put(ws, f"{world}/out/sub/.git/config", "x")])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nope", "there is no such folder"),
        ("lib/deep/f", "there is no such folder"),
        ("data", "in or around the data directory"),
        ("data/inner", "in or around the data directory"),
        ("link_to_data", "in or around the data directory"),
        (".", "in or around the data directory"),
        ("/", "in or around the data directory"),
        ("./lib/../lib", "twice"),
    ],
)
def test_an_extra_root_that_cannot_be_is_said_at_start(world: Path, path: str, said: str) -> None:
    (world / "data/inner").mkdir()
    (world / "link_to_data").symlink_to("data/inner")

    with pytest.raises(Misconfigured, match=f"^extra_roots names .*{said}"):
        open_extras([(world / "lib", "read"), (world / path, "read")], world / "data")


@pytest.fixture
def around_records(world: Path) -> Iterator[LocalWorkspace]:
    """The workspace is the whole world, the records included."""
    (world / "data/workspaces/ada/s").mkdir(parents=True)
    (world / "data/workspaces/ada/s/mine").write_text("mine")
    (world / "link").symlink_to("data")
    (world / "file_link").symlink_to("data/f")
    around = RootSet(records=Root(world / "data"))
    made = LocalWorkspace(world, around=around)
    yield made
    made.close()
    around.close()


RECORDS = [
    *("data", "data/", "data/f", "data/new", "data/new/x", "data/f/x", "link", "link/f", "link/new", "file_link"),
    *("ws/../data/f", "missing/../data/new", "data/workspaces/ada/s/mine", "{world}/data/f", "{world}/link/new"),
]


@pytest.mark.parametrize("path", RECORDS)
def test_the_services_records_are_closed_to_a_workspace_around_them(
    around_records: LocalWorkspace, world: Path, path: str
) -> None:
    before, given = tree(world), path.format(world=world)

    looks = (around_records.open, around_records.scan, around_records.load, around_records.stamp)
    for use in (around_records.name, around_records.folder, *looks):
        with pytest.raises(OutsideWorkspace, match="the service's own records"):
            use(given)
    for data, stamp in ((b"x", None), (b"x", read_stamp(world / "data/f")), (None, read_stamp(world / "data/f"))):
        change = Change(path=given, data=data, before=stamp)
        assert code_of(around_records.commit, [change]) == "OutsideWorkspace"
    assert tree(world) == before


def read_stamp(path: Path) -> Stamp | None:
    return LocalWorkspace(path.parent).stamp(path.name)


def test_the_name_of_the_records_may_be_seen_and_where_they_are_is_told_to_who_searches(
    around_records: LocalWorkspace, world: Path
) -> None:
    assert Entry("data", "directory") in list(around_records.scan("."))
    with around_records.hold(".") as (fd, _):
        assert around_records.closed_below(fd) == "data"
    with around_records.hold("ws") as (fd, _):
        assert around_records.closed_below(fd) is None


def test_records_that_are_moved_with_a_folder_around_them_stay_closed(world: Path) -> None:
    (world / "ws/inner").mkdir()
    (world / "data").rename(world / "ws/inner/data")
    around = RootSet(records=Root(world / "ws/inner/data"))
    ws = LocalWorkspace(world / "ws", around=around)

    (world / "ws/inner").rename(world / "ws/moved")

    assert code_of(ws.open, "moved/data/f") == "OutsideWorkspace"
    ws.close()
    around.close()


def test_a_workspace_among_the_records_is_there_to_be_used(world: Path) -> None:
    (world / "data/workspace").mkdir()
    around = RootSet(records=Root(world / "data"))
    home = LocalWorkspace(world / "data/workspace", around=around)
    places = Workspaces(home, world / "data", [])
    own = places.of(Session("ada", "s", workspace=places.make("ada", "s")))

    for ws in (home, own):
        ws.commit([put(ws, "d/f", "mine")], approved={"d/f"})
        assert read(ws, "d/f") == "mine"
        assert code_of(ws.open, "../f") == "OutsideWorkspace"
        assert code_of(ws.open, f"{world}/data/f") == "OutsideWorkspace"
    places.close()


def test_the_records_themselves_are_no_workspace(world: Path) -> None:
    around = RootSet(records=Root(world / "data"))
    ws = LocalWorkspace(world / "data", around=around)

    assert [code_of(ws.scan, path) for path in (".", "f")] == ["OutsideWorkspace"] * 2
    assert code_of(ws.open, "f") == "OutsideWorkspace"
    ws.close()
    around.close()


def test_every_workspace_has_the_same_surroundings(world: Path) -> None:
    around = RootSet(open_extras([(world / "lib", "read")], world / "data"), Root(world / "data"))
    places = Workspaces(LocalWorkspace(world / "ws", around=around), world / "data", [world / "other"])
    before = os.listdir("/proc/self/fd")

    for root in (str(world / "other"), places.make("ada", "s")):
        ws = places.of(Session("ada", "s", workspace=root))
        assert read(ws, f"{world}/lib/deep/f") == "lib/deep"
        assert code_of(ws.commit, [put(ws, f"{world}/lib/x", "x")]) == "EROFS"

    del ws
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    places.close()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 3  # the home, the extra root and the records
