"""Temporary files of commits, with new or old content, under unique names.

A service that is killed leaves some behind. The next commit in their folder removes those that are an hour old, by
the time in their name and by their own times, because a name can have been given to an older file.
"""

import os
import re
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import BinaryIO, NamedTuple

PREFIX = ".toolcrib-"
NAME = re.compile(re.escape(PREFIX) + r"([0-9a-f]{8})-[0-9a-f]{16}")
STALE_SECONDS = 3600
CHUNK_BYTES = 1024 * 1024
MAX_REMEMBERED = 1024
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SPECIAL = stat.S_ISUID | stat.S_ISGID

_live = set[str]()
_swept = OrderedDict[tuple[int, int], float]()
_sweeping = Lock()


class Identity(NamedTuple):
    """Identifies a file, whatever its name."""

    device: int
    inode: int


class Names:
    """The temporary names of one commit. Until it is closed, they are not swept."""

    def __init__(self) -> None:
        self._names = list[str]()

    def new(self) -> str:
        name = f"{PREFIX}{int(time.time()):08x}-{secrets.token_hex(8)}"
        self._names.append(name)
        _live.add(name)
        return name

    def close(self) -> None:
        _live.difference_update(self._names)


def write(folder: int, name: str, data: bytes | BinaryIO, mode: int, like: os.stat_result | None) -> Identity:
    """Write and sync a new file. It gets the owner of another one, if possible."""
    chunks = [data] if isinstance(data, bytes) else iter(lambda: data.read(CHUNK_BYTES), b"")
    return _write(folder, name, chunks, mode, like)


def copy(folder: int, name: str, fd: int) -> None:
    """Copy an open file, with its times, so that it can be put back."""
    like = os.fstat(fd)
    _write(folder, name, iter(lambda: os.read(fd, CHUNK_BYTES), b""), stat.S_IMODE(like.st_mode), like)
    os.utime(name, ns=(like.st_atime_ns, like.st_mtime_ns), dir_fd=folder, follow_symlinks=False)


def drop(folder: int, name: str) -> None:
    """Remove a temporary file; if that fails it is swept later."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def preserve(folder: int, name: str) -> str:
    """Rename a temporary file so that it is never swept; its new name."""
    kept = f"{PREFIX}kept-{name.removeprefix(PREFIX)}"
    try:
        os.rename(name, kept, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        return name
    return kept


def sweep(folder: int) -> None:
    """Remove what was left behind in an open folder, at most once an hour: every name has to be checked."""
    with suppress(OSError):
        if _is_due(os.fstat(folder)):
            for name in os.listdir(folder):
                if _is_left_behind(folder, name):
                    drop(folder, name)


def _write(folder: int, name: str, chunks: Iterable[bytes], mode: int, like: os.stat_result | None) -> Identity:
    fd = os.open(name, CREATE, 0o600, dir_fd=folder)
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(fd, rest) :]
        status, now = os.fstat(fd), time.time_ns()
        os.fchmod(fd, mode if like is None or _set_owner(fd, status, like) else mode & ~SPECIAL)
        os.utime(fd, ns=(now, now))  # finer than the kernel's clock tick, within which an inode can be reused
        os.fsync(fd)
    finally:
        os.close(fd)
    return Identity(status.st_dev, status.st_ino)


def _is_due(status: os.stat_result) -> bool:
    key, now = (status.st_dev, status.st_ino), time.monotonic()
    with _sweeping:
        last = _swept.get(key)
        if last is not None and now - last < STALE_SECONDS:
            return False
        _swept[key] = now
        _swept.move_to_end(key)
        if len(_swept) > MAX_REMEMBERED:
            _swept.popitem(last=False)
    return True


def _is_left_behind(folder: int, name: str) -> bool:
    match = NAME.fullmatch(name)
    if match is None or name in _live:
        return False
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    newest = max(int(match[1], 16), status.st_mtime, status.st_ctime)
    return stat.S_ISREG(status.st_mode) and newest < time.time() - STALE_SECONDS


def _set_owner(fd: int, status: os.stat_result, other: os.stat_result) -> bool:
    """Set the owner and the group of another file, if this service may; whether both are set."""
    if (status.st_uid, status.st_gid) == (other.st_uid, other.st_gid):
        return True
    try:
        os.fchown(fd, other.st_uid, other.st_gid)
    except PermissionError:
        with suppress(PermissionError):
            os.fchown(fd, -1, other.st_gid)
        return False
    return True
