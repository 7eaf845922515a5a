"""Race-free opening of a path strictly beneath a directory that is already open.

The kernel resolves the whole path itself (openat2, Linux 5.6), so nothing can be swapped between check and use.
Without it the path is resolved one component at a time and symlinks are refused, because they cannot be followed
safely from user space.
"""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable
from functools import cache

SYSCALL = 437  # the same on x86_64 and aarch64
NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
MAX_RETRIES = 64

# Where O_PATH is missing, a handle has to be a reader that never waits.
O_PATH: int = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)


class StepRefused(OSError):
    """The walk met a component it must not follow; `filename` is that component."""

    def __init__(self, component: str) -> None:
        super().__init__(errno.EXDEV, "not followed", component)


class _How(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: int, path: str, flags: int, *, follow: bool = True) -> int:
    """Open `path` for reading beneath the directory `root`. Raises `OSError`: EXDEV means it leads out.

    Without `follow` no symlink is gone through (ELOOP), not even one that stays inside.
    """
    flags |= os.O_CLOEXEC
    if not is_supported():
        return _walk(root, path, flags)
    return _openat2(root, path, flags, 0 if follow else NO_SYMLINKS)


@cache
def is_supported() -> bool:
    """Whether this kernel has openat2; old container filters answer EPERM where they mean ENOSYS."""
    if not sys.platform.startswith("linux"):
        return False
    root = os.open("/", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, ".", O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return False
    finally:
        os.close(root)
    return True


def _openat2(root: int, path: str, flags: int, resolve: int = 0) -> int:
    how, name = _how(flags, BENEATH | NO_MAGICLINKS | resolve), os.fsencode(path)
    for _ in range(MAX_RETRIES):
        number = _syscall(root, name, how)
        if number >= 0:
            return number
        if -number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(-number, os.strerror(-number), path)


def _syscall(root: int, path: bytes, how: _How) -> int:
    """A descriptor, or a negative errno."""
    answer = _function()(SYSCALL, root, path, how, ctypes.sizeof(how))
    return answer if answer >= 0 else -ctypes.get_errno()


@cache
def _how(flags: int, resolve: int) -> _How:
    """The kernel only reads it, so one serves all."""
    return _How(flags=flags, mode=0, resolve=resolve)


@cache
def _function() -> Callable[[int, int, bytes, _How, int], int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)
    function.restype = ctypes.c_long
    return function


def _walk(root: int, path: str, flags: int) -> int:
    """The same without openat2: no symlink and no `..` is followed."""
    *folders, last = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    if path.endswith("/"):
        flags |= os.O_DIRECTORY
    folder = os.dup(root)
    try:
        for part in folders:
            child = _step(folder, part, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(folder)
            folder = child
        return _step(folder, last, flags)
    finally:
        os.close(folder)


def _step(directory: int, part: str, flags: int) -> int:
    if part == "..":
        raise StepRefused(part)
    try:
        opened = os.open(part, flags | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        # The errno for "that is a symlink" differs with the flags and the system.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_symlink(directory, part):
            raise StepRefused(part) from None
        raise
    if stat.S_ISLNK(os.fstat(opened).st_mode):  # O_PATH opens the link itself
        os.close(opened)
        raise StepRefused(part)
    return opened


def _is_symlink(directory: int, part: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
