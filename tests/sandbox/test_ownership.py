"""Whose the folders and files are that a service which is root makes. Without root there is nobody to set_owner to."""

import os
import stat
from pathlib import Path

import pytest

from app.core.ports import Change
from app.sandbox.files.ownership import TOOL_ID, Owner, make_data_dir, set_owner, tool_owner
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.files.workspaces import Workspaces, make_workspace

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set_owner files away")
OWNER = Owner(61_234, 61_235)


def owner_of(path: Path) -> Owner:
    about = path.lstat()
    return Owner(about.st_uid, about.st_gid)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_service_that_is_root_starts_processes_as_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert tool_owner(None) == Owner(TOOL_ID, TOOL_ID)
    assert tool_owner(1234) == Owner(1234, 1234)


def test_any_other_service_starts_them_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert tool_owner(None) is None
    assert tool_owner(1234) is None


@as_root
def test_a_workspace_that_is_made_is_given_whole(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace", OWNER)

    assert {owner_of(workspace), owner_of(workspace / "hello.txt")} == {OWNER}


@as_root
def test_a_workspace_of_before_is_given_once_and_its_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    workspace = make_workspace(tmp_path / "workspace")
    (workspace / "deep").mkdir()
    (workspace / "deep" / "link").symlink_to(outside)

    set_owner(workspace, OWNER)
    (workspace / "of root").write_text("")
    set_owner(workspace, OWNER)

    assert owner_of(workspace / "deep" / "link") == owner_of(workspace / "deep") == OWNER
    assert owner_of(outside) == owner_of(workspace / "of root") == Owner(0, 0)


@as_root
def test_what_a_commit_makes_belongs_to_whom_the_workspace_belongs(tmp_path: Path) -> None:
    workspace = LocalWorkspace(make_workspace(tmp_path / "workspace", OWNER))
    (tmp_path / "workspace" / "mine").mkdir()

    workspace.commit([Change(path="a/b/new", data=b"1", before=None), Change(path="mine/new", data=b"2", before=None)])

    made = [tmp_path / "workspace" / name for name in ("a", "a/b", "a/b/new", "mine/new")]
    assert [owner_of(path) for path in made] == [OWNER] * 4
    assert owner_of(tmp_path / "workspace" / "mine") == Owner(0, 0)
    workspace.close()


@as_root
def test_a_file_that_is_changed_stays_whose_it_was(tmp_path: Path) -> None:
    root = make_workspace(tmp_path / "workspace", OWNER)
    (root / "other").write_text("1")
    os.chown(root / "other", 4321, 4321)
    workspace = LocalWorkspace(root)

    before = workspace.load("other")
    workspace.commit([Change(path="other", data=b"2", before=before.stamp)])

    assert owner_of(root / "other") == Owner(4321, 4321)
    workspace.close()


@as_root
def test_the_way_to_a_sessions_workspace_can_be_passed_but_not_seen(tmp_path: Path) -> None:
    home = LocalWorkspace(make_workspace(tmp_path / "data" / "workspace", OWNER))
    workspaces = Workspaces(home, tmp_path / "data", (), OWNER)

    made = Path(workspaces.make("ci", "one"))

    assert owner_of(made) == OWNER
    assert [mode_of(path) for path in (made.parent, made.parent.parent)] == [0o711, 0o711]
    workspaces.close()


@as_root
def test_what_else_is_in_the_data_directory_is_closed_to_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("uploads", "workspace"):
        (data / name).mkdir(parents=True, mode=0o755)
    (data / "toolcrib.db").write_text("")
    (data / "toolcrib.db").chmod(0o644)

    make_data_dir(data, OWNER, ("workspace",))

    modes = {path.name: mode_of(path) for path in (data, *data.iterdir())}
    assert modes == {"data": 0o711, "uploads": 0o700, "workspace": 0o755, "toolcrib.db": 0o600}


def test_without_somebody_to_let_in_the_data_directory_is_closed(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "data", None, ("workspace",))

    assert mode_of(tmp_path / "data") == 0o700
