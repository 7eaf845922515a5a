"""A world with a workspace in it, and the ways it can be opened and changed on one system or the other."""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.sandbox.files import openat2, renameat2
from app.sandbox.files.workspace import LocalWorkspace

NOBODY = 65_534
Known = tuple[str, object, int, int, int]


@pytest.fixture
def ws(root: Path) -> Iterator[LocalWorkspace]:
    workspace = LocalWorkspace(root)
    yield workspace
    workspace.close()


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both openers: the kernel's, and the one for systems without it."""
    if request.param == "walk":
        monkeypatch.setattr(openat2, "is_supported", lambda: False)
    return str(request.param)


@pytest.fixture(params=["exchange", "link", "copy"])
def renamer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """File systems that exchange names, those that know links only, and those that know neither."""
    if request.param != "exchange":
        monkeypatch.setattr(renameat2, "_call", lambda *args: errno.EINVAL)
    if request.param == "copy":
        monkeypatch.setattr(renameat2, "link", lambda *args: False)
    return str(request.param)


def tree(folder: Path, *, without: Path | None = None) -> dict[str, Known]:
    """Everything below a folder: kind and content, mode, time and inode of what is no folder."""
    known: dict[str, Known] = {}
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(here, name) != without]
        for name in [*folders, *files]:
            path = os.path.join(here, name)
            known[os.path.relpath(path, folder)] = _known(path)
    return known


def contents(folder: Path) -> dict[str, str]:
    """The files below a folder, as text."""
    return {name: str(about[1]) for name, about in tree(folder).items() if about[0] == "file"}


def _known(path: str) -> Known:
    about = os.lstat(path)
    rest = (stat.S_IMODE(about.st_mode), about.st_mtime_ns, about.st_ino)
    if stat.S_ISLNK(about.st_mode):
        return ("link", os.readlink(path), *rest)
    if stat.S_ISDIR(about.st_mode):
        return "folder", None, stat.S_IMODE(about.st_mode), 0, about.st_ino
    if not stat.S_ISREG(about.st_mode):
        return ("other", None, *rest)
    with open(path, "rb") as file:
        return ("file", file.read().decode(errors="replace"), *rest)


@contextmanager
def as_nobody() -> Iterator[None]:
    """In here this thread may do no more with files than anybody, also when the tests are run by root."""
    if os.geteuid() != 0:
        yield
        return
    libc, group = ctypes.CDLL(None), os.getegid()
    libc.setfsgid(NOBODY)
    libc.setfsuid(NOBODY)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(group)
