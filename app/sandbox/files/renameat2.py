"""Renames that lose nothing: two names exchanged at once, or a name given only where there is none yet.

The kernel does both in one step (renameat2, Linux 3.15), but not every file system does: NFS and some others know
neither. There a hard link gives a name without taking one away; where there are no links, only looking first is left.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

NOREPLACE = 1
EXCHANGE = 2
UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
UNLINKABLE = (*UNKNOWN, errno.EPERM, errno.EACCES, errno.EMLINK)
"""What link() answers where there are no links, and where this file may have none: then there are other ways."""


class Unsupported(OSError):
    """The kernel or the file system cannot do it in one step."""


def exchange(folder: int, one: str, other: str) -> None:
    """Let two names of a folder change places. Raises `Unsupported`."""
    _renameat2(folder, one, other, EXCHANGE)


def give(folder: int, name: str, to: str) -> None:
    """Call a file of a folder by another name. Raises `FileExistsError` where that name is taken."""
    try:
        _renameat2(folder, name, to, NOREPLACE)
    except Unsupported:
        _give_by_link(folder, name, to)


def move(folder: int, name: str, to: str) -> None:
    """Call whatever has a name by another one; what had that is lost."""
    os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)


def link(folder: int, name: str, to: str) -> bool:
    """Call a file by a second name; whether that can be done here."""
    try:
        os.link(name, to, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        return False
    return True


def _give_by_link(folder: int, name: str, to: str) -> None:
    if link(folder, name, to):
        _unlink_first(folder, name, to)
        return
    try:
        os.stat(to, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        move(folder, name, to)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to)


def _unlink_first(folder: int, name: str, to: str) -> None:
    """Of two names of a file, take the first away; if that cannot be done, the second."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        os.unlink(to, dir_fd=folder)
        raise


def _renameat2(folder: int, one: str, other: str, flags: int) -> None:
    number = _call(folder, os.fsencode(one), os.fsencode(other), flags)
    if number in UNKNOWN:
        raise Unsupported(number, os.strerror(number), one)
    if number:
        raise OSError(number, os.strerror(number), one)


def _call(folder: int, one: bytes, other: bytes, flags: int) -> int:
    """0, or an errno."""
    function = _function()
    if function is None:
        return errno.ENOSYS
    return ctypes.get_errno() if function(folder, one, folder, other, flags) else 0


@cache
def _function() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The C library's own, because the number of the system call is not the same everywhere."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
