"""Names made to get out: whatever is done with them, nothing outside is read, made, changed or removed."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError
from app.core.ports import Change, Stamp
from app.sandbox.files.roots import Root, RootSet
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.conftest import tree

Packed = str | list[str | tuple[str, int]]
HOSTILE: dict[str, list[Packed]] = json.loads(
    (Path(__file__).parent.parent / "scenarios" / "hostile_paths.json").read_text()
)
LINKS = {
    "file_out": "../secret",
    "file_out_absolute": "{world}/secret",
    "folder_out": "..",
    "folder_out_absolute": "{world}",
    "d/up": "../..",
    "d/deep_out": "../../",
    "chain1": "chain2",
    "chain2": "./chain3",
    "chain3": "folder_out",
    "in_then_out": "in_folder/up",
    "in_folder": "d",
    "etc_link": "/etc",
    "dangling_out": "../new_outside",
    "dangling_absolute": "{world}/new_outside",
    "to_root_alias": "{world}/alias",
    "to_sibling": "../root-sibling",
    "loop": "loop",
    "loop_a": "loop_b",
    "loop_b": "loop_a",
    "self_folder": ".",
    "long_chain": "link_0",
    **{f"link_{number}": f"link_{number + 1}" for number in range(60)},
    "link_60": "../secret",
    "magic_cwd": "/proc/self/cwd",
    "d/magic_cwd": "/proc/self/cwd",
    "magic_root": "/proc/self/root",
    "magic_fd": "/proc/self/fd/0",
    "magic_exe": "/proc/self/exe",
    "git_link": ".git",
    "git_file_link": ".git/config",
    "data_link": "data",
    "key_link": "data/admin.key",
}
SYSTEM = ["/etc/passwd", "/etc", "/bin/sh", "/proc/sys/kernel/core_pattern"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace full of ways out. What must not be seen says SECRET, what may says inside."""
    root = tmp_path / "root"
    for folder in ("root/d/e", "root/.git/hooks", "root/data/workspaces/ada/s", "root-sibling", "cwd", "home"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("secret", "root-sibling/secret", "cwd/file", "home/file", "root/data/admin.key"):
        (tmp_path / file).write_text("SECRET")
    (root / "data/workspaces/ada/s/f").write_text("SECRET")
    (root / "d/f").write_text("inside d/f")
    (root / ".git/config").write_text("inside .git")
    (tmp_path / "alias").symlink_to("root")
    for name, target in LINKS.items():
        (root / name).symlink_to(target.format(world=tmp_path))
    os.mkfifo(root / "pipe")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        monkeypatch.chdir(tmp_path / "cwd")
        yield root


@pytest.fixture
def ws(root: Path) -> Iterator[LocalWorkspace]:
    around = RootSet(records=Root(root / "data"))
    workspace = LocalWorkspace(root, around=around)
    yield workspace
    workspace.close()
    around.close()


def unpacked(path: Packed, root: Path) -> str:
    text = path if isinstance(path, str) else "".join(p if isinstance(p, str) else p[0] * p[1] for p in path)
    return text.replace("{root}", str(root)).replace("{world}", str(root.parent))


def test_there_are_enough_of_them() -> None:
    assert sum(len(paths) for paths in HOSTILE.values()) >= 300


@pytest.mark.usefixtures("opener")
@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_outside_is_read_made_changed_or_removed(ws: LocalWorkspace, root: Path, kind: str) -> None:
    outside, closed, descriptors = world_outside(root), known_closed(root), os.listdir("/proc/self/fd")

    for packed in HOSTILE[kind]:
        path = unpacked(packed, root)
        for look in (look_at_text, look_at_folder, look_at_name, look_at_held):
            answered(look, ws, root, path)
        for data, before in attempts(ws, root, path):
            answered(write, ws, path, data, before)

    assert world_outside(root) == outside
    assert known_closed(root) == closed
    assert not [name for name in tree(root) if ".toolcrib-" in name]
    assert os.listdir("/proc/self/fd") == descriptors


def answered(work: Callable[..., None], *args: Any) -> None:
    """It is done, or refused with an answer; anything else is ours to mend."""
    with suppress(CallError):
        work(*args)


def look_at_text(ws: LocalWorkspace, root: Path, path: str) -> None:
    data = ws.load(path).data
    with ws.open(path) as file:
        assert file.read() == data
    assert data.startswith(b"inside"), repr(path)[:200]


def look_at_folder(ws: LocalWorkspace, root: Path, path: str) -> None:
    entries = [entry.name for entry in ws.scan(path)]
    assert sorted(entries) == sorted(os.listdir(root / ws.name(path))), repr(path)[:200]


def look_at_name(ws: LocalWorkspace, root: Path, path: str) -> None:
    name = ws.name(path)
    assert name == "." or not (name.startswith(("/", "data")) or ".." in name.split("/")), repr(path)[:200]


def look_at_held(ws: LocalWorkspace, root: Path, path: str) -> None:
    with ws.hold(path) as (fd, _):
        where = os.readlink(f"/proc/self/fd/{fd}")
    assert Path(where).is_relative_to(root), repr(path)[:200]
    assert not Path(where).is_relative_to(root / "data"), repr(path)[:200]


def attempts(ws: LocalWorkspace, root: Path, path: str) -> Iterator[tuple[bytes | None, Stamp | None]]:
    """Made where nothing is; then changed and removed by who knows what is outside, and as what it is found to be."""
    yield b"inside", None
    for target in (root.parent / "secret", root / "data/admin.key", root / ".git/config", Path("/etc/passwd")):
        about = target.stat()
        stamp = Stamp(about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)
        yield b"inside", stamp
        yield None, stamp
    with suppress(CallError):
        yield b"inside again", ws.stamp(path)
        yield None, ws.stamp(path)


def write(ws: LocalWorkspace, path: str, data: bytes | None, before: Stamp | None) -> None:
    ws.commit([Change(path=path, data=data, before=before)])


def world_outside(root: Path) -> dict[str, Any]:
    """Folders with their times too: what is made and removed again shows."""
    stats = {path: os.stat(path) for path in SYSTEM if os.path.exists(path)}
    system = {path: (about.st_ino, about.st_size) for path, about in stats.items()}
    return tree(root.parent, without=root) | {"system": system, "times": times(root.parent, without=root)}


def known_closed(root: Path) -> dict[str, Any]:
    """The links, and what is in the records and in `.git`."""
    links = {name: about for name, about in tree(root).items() if name in LINKS}
    closed = [root / "data", root / ".git"]
    return {"links": links, "known": [tree(one) for one in closed], "times": [times(one) for one in closed]}


def times(folder: Path, *, without: Path | None = None) -> dict[str, int]:
    known = tree(folder, without=without)
    folders = [".", *(name for name, about in known.items() if about[0] == "folder")]
    return {name: (folder / name).stat().st_mtime_ns for name in folders}
