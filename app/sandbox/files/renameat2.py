"""Renames that lose nothing: exchange two names, or rename only to a name that does not exist.

The kernel does both in one step (renameat2, Linux 3.15), but not on every file system: NFS and some others support
neither. There a hard link is used, and where there are no hard links, a check before the rename.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

NOREPLACE = 1
EXCHANGE = 2
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
UNLINKABLE = (*UNSUPPORTED, errno.EPERM, errno.EACCES, errno.EMLINK)
"""The errors of link() on file systems without hard links, and for files that may not have one."""


class Unsupported(OSError):
    """The kernel or the file system cannot do it in one step."""


def exchange(folder: int, one: str, other: str) -> None:
    """Exchange two names in a folder. Raises `Unsupported`."""
    _renameat2(folder, one, other, EXCHANGE)


def rename_new(folder: int, name: str, to: str) -> None:
    """Rename a file in a folder. Raises `FileExistsError` if the new name exists."""
    try:
        _renameat2(folder, name, to, NOREPLACE)
    except Unsupported:
        _rename_by_link(folder, name, to)


def move(folder: int, name: str, to: str) -> None:
    """Rename a file in a folder, over an existing one."""
    os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)


def link(folder: int, name: str, to: str) -> bool:
    """Make a hard link; whether that is possible here."""
    try:
        os.link(name, to, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        return False
    return True


def _rename_by_link(folder: int, name: str, to: str) -> None:
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
    """Remove the first of two names of a file; if that fails, the second."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        os.unlink(to, dir_fd=folder)
        raise


def _renameat2(folder: int, one: str, other: str, flags: int) -> None:
    number = _call(folder, os.fsencode(one), os.fsencode(other), flags)
    if number in UNSUPPORTED:
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
    """From the C library, because the system call number depends on the architecture."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
