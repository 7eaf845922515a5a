"""Ownership: whose the folders are that processes work in. A service that is root starts none of them as root.

Then the data directory lets others pass through, to the workspaces in it, but shows them nothing: what else is there
is closed file by file and folder by folder.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TOOL_ID = 61_100  # in none of the ranges that Debian or systemd give out
PASSABLE, PRIVATE = 0o711, 0o700
OPEN_TO_OTHERS = 0o077


class Owner(NamedTuple):
    uid: int
    gid: int


def tool_owner(uid: int | None) -> Owner | None:
    """Whom processes and their workspaces belong to; None where that is the service's own user."""
    if os.geteuid() != 0:
        return None
    chosen = TOOL_ID if uid is None else uid
    return Owner(chosen, chosen)


def give(folder: Path, owner: Owner | None) -> None:
    """Give a folder that was made by this service, and all in it, to whom it is for. Given once, it stays as it is."""
    if owner is None or folder.lstat().st_uid != 0:
        return
    for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, *owner, follow_symlinks=False)


def make_data_dir(path: Path, owner: Owner | None, kept: tuple[str, ...]) -> None:
    """The folder of the records. Where an owner is to pass through it, all in it is closed to others but what is kept
    as it is: workspaces, and what is looked at by somebody else."""
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    if owner is None:
        return
    for entry in os.scandir(path):
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.name not in kept and not stat.S_ISLNK(mode) and mode & OPEN_TO_OTHERS:
            os.chmod(entry.path, stat.S_IMODE(mode) & ~OPEN_TO_OTHERS)
    let_pass(path, owner)


def let_pass(folder: Path, owner: Owner | None) -> None:
    """Let an owner through a folder of the service, to what is its own; it sees nothing on the way."""
    if owner is not None:
        os.chmod(folder, PASSABLE)
