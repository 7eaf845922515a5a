"""Temporary files: what is not in its place yet, or not any more, under names that nothing else has.

Whoever is killed leaves some behind. They are taken away by the next commit in their folder once they are an hour
old: by the time in their name and by their own times, because a name can come to stand for a file that is older.
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
STALE = 3600
PIECE = 1024 * 1024
MOST_REMEMBERED = 1024
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SPECIAL = stat.S_ISUID | stat.S_ISGID

_live = set[str]()
_swept = OrderedDict[tuple[int, int], float]()
_sweeping = Lock()


class Identity(NamedTuple):
    """Which file it is, whatever it is called."""

    device: int
    inode: int


class Names:
    """The temporary names of one commit. As long as it is under way, nobody takes them for left behind."""

    def __init__(self) -> None:
        self._given = list[str]()

    def new(self) -> str:
        name = f"{PREFIX}{int(time.time()):08x}-{secrets.token_hex(8)}"
        self._given.append(name)
        _live.add(name)
        return name

    def close(self) -> None:
        _live.difference_update(self._given)


def write(folder: int, name: str, data: bytes | BinaryIO, mode: int, like: os.stat_result | None) -> Identity:
    """Write a new file that is on the disk when this returns. It belongs to whom another one belongs, if it can."""
    pieces = [data] if isinstance(data, bytes) else iter(lambda: data.read(PIECE), b"")
    return _write(folder, name, pieces, mode, like)


def copy(folder: int, name: str, fd: int) -> None:
    """A copy of an open file, to be put in its place if need be: also as old as it is."""
    like = os.fstat(fd)
    _write(folder, name, iter(lambda: os.read(fd, PIECE), b""), stat.S_IMODE(like.st_mode), like)
    os.utime(name, ns=(like.st_atime_ns, like.st_mtime_ns), dir_fd=folder, follow_symlinks=False)


def drop(folder: int, name: str) -> None:
    """Take a temporary file away; one that cannot be is left for later."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def keep(folder: int, name: str) -> str:
    """Let a file stay that would be taken away later; what it is called then."""
    kept = f"{PREFIX}kept-{name.removeprefix(PREFIX)}"
    try:
        os.rename(name, kept, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        return name
    return kept


def sweep(folder: int) -> None:
    """Take away what was left behind in an open folder. Once an hour is enough: it costs a look at every name."""
    with suppress(OSError):
        if _is_due(os.fstat(folder)):
            for name in os.listdir(folder):
                if _is_left_behind(folder, name):
                    drop(folder, name)


def _write(folder: int, name: str, pieces: Iterable[bytes], mode: int, like: os.stat_result | None) -> Identity:
    fd = os.open(name, CREATE, 0o600, dir_fd=folder)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
        about, now = os.fstat(fd), time.time_ns()
        os.fchmod(fd, mode if like is None or _belongs_like(fd, about, like) else mode & ~SPECIAL)
        os.utime(fd, ns=(now, now))  # finer than the system's own: inodes are used again within a tick of that
        os.fsync(fd)
    finally:
        os.close(fd)
    return Identity(about.st_dev, about.st_ino)


def _is_due(about: os.stat_result) -> bool:
    key, now = (about.st_dev, about.st_ino), time.monotonic()
    with _sweeping:
        last = _swept.get(key)
        if last is not None and now - last < STALE:
            return False
        _swept[key] = now
        _swept.move_to_end(key)
        if len(_swept) > MOST_REMEMBERED:
            _swept.popitem(last=False)
    return True


def _is_left_behind(folder: int, name: str) -> bool:
    match = NAME.fullmatch(name)
    if match is None or name in _live:
        return False
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    newest = max(int(match[1], 16), about.st_mtime, about.st_ctime)
    return stat.S_ISREG(about.st_mode) and newest < time.time() - STALE


def _belongs_like(fd: int, about: os.stat_result, other: os.stat_result) -> bool:
    """Give a file the owner and the group of another, as far as this service may; whether it has both now."""
    if (about.st_uid, about.st_gid) == (other.st_uid, other.st_gid):
        return True
    try:
        os.fchown(fd, other.st_uid, other.st_gid)
    except PermissionError:
        with suppress(PermissionError):
            os.fchown(fd, -1, other.st_gid)
        return False
    return True
