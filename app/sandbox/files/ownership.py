"""The owner of workspaces: a service that runs as root starts processes as another user.

Then that user can enter the data directory, to reach the workspaces in it, but not list it: everything else in it is
closed to other users file by file.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TOOL_ID = 61_100  # outside the ranges of Debian and systemd
ENTER_ONLY, PRIVATE = 0o711, 0o700
OPEN_TO_OTHERS = 0o077


class Owner(NamedTuple):
    uid: int
    gid: int


def tool_owner(uid: int | None) -> Owner | None:
    """The user of processes and their workspaces; None: the service's own user."""
    if os.geteuid() != 0:
        return None
    chosen = TOOL_ID if uid is None else uid
    return Owner(chosen, chosen)


def set_owner(folder: Path, owner: Owner | None) -> None:
    """Change the owner of a folder made by this service, and of all in it, unless that was done before."""
    if owner is None or folder.lstat().st_uid != 0:
        return
    for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, *owner, follow_symlinks=False)


def make_data_dir(path: Path, owner: Owner | None, kept: tuple[str, ...]) -> None:
    """Make the data directory. If an owner has to enter it, everything in it is closed to others, except the names in
    `kept`: workspaces, and files that others have to read."""
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    if owner is None:
        return
    for entry in os.scandir(path):
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.name not in kept and not stat.S_ISLNK(mode) and mode & OPEN_TO_OTHERS:
            os.chmod(entry.path, stat.S_IMODE(mode) & ~OPEN_TO_OTHERS)
    allow_entering(path, owner)


def allow_entering(folder: Path, owner: Owner | None) -> None:
    """Let the owner enter a folder of the service, but not list it."""
    if owner is not None:
        os.chmod(folder, ENTER_ONLY)
