"""Changes of files, all or none: each is written beside its place, synced, and put there by one rename."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from typing import BinaryIO

from app.core.errors import FileFailed
from app.core.files import Change, Stamp
from app.sandbox.openat2 import O_PATH, open_beneath

NEW_MODE = 0o644


def stamp_of(about: os.stat_result) -> Stamp:
    return Stamp(about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)


def make(root: int, changes: Sequence[tuple[str, Change]]) -> None:
    """Make these changes to files of these canonical names beneath the directory `root`."""
    for name, change in changes:
        _make(root, name, change)


def _make(root: int, name: str, change: Change) -> None:
    folder, _, last = name.rpartition("/")
    parent = _folder(root, folder)
    try:
        about = _about(parent, last)
        if (about and stamp_of(about)) != change.before:
            number = errno.EEXIST if change.before is None else errno.ESTALE
            raise FileFailed(number, change.path, f"{change.path} changed after it was read; read it again.")
        if change.data is None:
            os.unlink(last, dir_fd=parent)
            return
        mode = stat.S_IMODE(about.st_mode) if about else change.mode or NEW_MODE
        temporary = _write(parent, change.data, mode)
        os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)
    except OSError as error:
        raise FileFailed(error.errno or errno.EIO, change.path) from None
    finally:
        os.close(parent)


def _folder(root: int, path: str) -> int:
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    for part in filter(None, path.split("/")):
        try:
            os.close(open_beneath(here, part, O_PATH))
        except FileNotFoundError:
            os.mkdir(part, dir_fd=here)
        below = open_beneath(here, part, os.O_RDONLY | os.O_DIRECTORY)
        os.close(here)
        here = below
    return here


def _about(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write(parent: int, data: bytes | BinaryIO, mode: int) -> str:
    name = f".toolcrib-{secrets.token_hex(8)}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with os.fdopen(fd, "wb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            shutil.copyfileobj(data, file)
        file.flush()
        os.fchmod(fd, mode)
        os.fsync(fd)
    return name
