"""Landlock: access that a process gives up for good, for itself and for everything it starts.

The kernel checks each opened file, each created and removed name, each TCP connection and each signal. Rules only add
access to trees: nothing inside an allowed tree can be excluded, and everything else is denied.

Not checked are changes of metadata (mode, owner, times, extended attributes), stat, locks, inotify and chdir. There
only file permissions help: a service that runs as root gives its children a user of their own; the children of any
other service can change the modes of its files. Shared memory (/dev/shm) is shared with all processes of the user;
only its names cannot be listed. The same holds for pseudo terminals, so only its own can be opened, and no new one.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from app.sandbox.files.openat2 import O_PATH
from app.sandbox.syscalls import NO_NEW_PRIVS, call, checked, prctl

CREATE, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
GET_VERSION = 1
PATH_BENEATH, NET_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
REMOVE_FILE, MAKE_CHAR, MAKE_REG, MAKE_BLOCK = 1 << 5, 1 << 6, 1 << 8, 1 << 11
FIRST_RIGHTS = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
ABSTRACT_SOCKETS, SIGNALS = 1, 2

FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (FIRST_RIGHTS & ~(MAKE_CHAR | MAKE_BLOCK)) | REFER | TRUNCATE
DEVICE_RIGHTS = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
SHARED_MEMORY_RIGHTS = READ_FILE | WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE

DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
SHARED_MEMORY = "/dev/shm"
CONTROLLING_TERMINAL = "/dev/tty"

MISSING_BEFORE = {
    2: "files cannot be moved between folders",
    3: "files outside can be truncated",
    4: "TCP connections are not checked",
    6: "signals to processes outside are not blocked",
}
"""What is missing before each ABI version. Version 5 is not needed: other devices cannot be opened anyway."""

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from app.sandbox.isolation.seccomp import Network
    from app.sandbox.process.spawner import Mount


class _Ruleset(ctypes.Structure):
    """The kernel's `struct landlock_ruleset_attr`. An older kernel takes a shorter one, without newer fields."""

    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    """The kernel's `struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Port(ctypes.Structure):
    """The kernel's `struct landlock_net_port_attr`."""

    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


@cache
def abi() -> int:
    """The Landlock ABI version of this kernel; 0 without Landlock."""
    return max(call(CREATE, None, 0, GET_VERSION), 0)


def missing(version: int) -> list[str]:
    """What this version does not check. Programs of a model need all of it."""
    return (
        ["there is no Landlock"] if not version else [text for since, text in MISSING_BEFORE.items() if version < since]
    )


def restrict(
    mounts: "Iterable[Mount]",
    *,
    network: "Network" = "none",
    proxy: int | None = None,
    terminal: str | None = None,
) -> None:
    """Give up all access but to these mounts, harmless devices, its `terminal` and the network. Raises `OSError`.

    A readable mount that does not exist is skipped.
    """
    if gaps := missing(abi()):
        raise OSError(errno.ENOSYS, f"Landlock ABI {abi()}: " + ", ".join(gaps))
    ruleset = _create(_rights(abi()), BIND_TCP | CONNECT_TCP if network != "full" else 0, ABSTRACT_SOCKETS | SIGNALS)
    try:
        for mount in mounts:
            _allow_mount(ruleset, mount)
        for device in (*DEVICES, *((CONTROLLING_TERMINAL, terminal) if terminal else ())):
            _allow_if_there(ruleset, device, DEVICE_RIGHTS)
        _allow_if_there(ruleset, SHARED_MEMORY, SHARED_MEMORY_RIGHTS)
        _allow_if_there(ruleset, "/proc", READ_FILE | READ_DIR)
        if network == "allowlist" and proxy:
            port = _Port(CONNECT_TCP, proxy)
            checked(ADD_RULE, ruleset, NET_PORT, ctypes.byref(port), 0)
        _restrict_self(ruleset)
    finally:
        os.close(ruleset)


def restrict_reading(readable: Iterable[int | str]) -> None:
    """Give up reading anything but these folders and files and what is below them. Raises `OSError`.

    A path that does not exist is skipped. Without Landlock nothing changes.
    """
    if not abi():
        return
    ruleset = _create(READ_FILE | READ_DIR)
    try:
        for path in readable:
            if isinstance(path, str):
                _allow_if_there(ruleset, path, READ_FILE | READ_DIR)
            else:
                _allow(ruleset, path, READ_FILE | READ_DIR)
        _restrict_self(ruleset)
    finally:
        os.close(ruleset)


def warm_up(path: str) -> None:
    """Make a ruleset without applying it."""
    ruleset = _create(_rights(abi()))
    _allow_if_there(ruleset, path, READ)
    os.close(ruleset)


@cache
def is_supported() -> bool:
    """Tried in a thread, which the restriction ends with."""
    from threading import Thread  # the spawner does not need it

    works = list[bool]()

    def try_restricting() -> None:
        with suppress(OSError):
            restrict_reading(())
            works.append(bool(abi()))

    thread = Thread(target=try_restricting, name="toolcrib-landlock")
    thread.start()
    thread.join()
    return any(works)


def _rights(version: int) -> int:
    """All file rights of an ABI version."""
    rights = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def _create(files: int, net: int = 0, scoped: int = 0) -> int:
    handled = _Ruleset(files, net, scoped)
    size = _Ruleset.scoped.offset + 8 if scoped else _Ruleset.net.offset + 8 if net else _Ruleset.net.offset
    return checked(CREATE, ctypes.byref(handled), size, 0)


def _allow_mount(ruleset: int, mount: "Mount") -> None:
    try:
        fd = open_mount(mount)
    except (FileNotFoundError, NotADirectoryError):
        if mount.is_writable:
            raise
        return
    try:
        _allow(ruleset, fd, WRITE if mount.is_writable else READ)
    finally:
        os.close(fd)


def open_mount(mount: "Mount") -> int:
    """A descriptor of it, if it still has its inode. Raises `OSError`."""
    fd = os.open(mount.path, O_PATH | os.O_CLOEXEC)
    status = os.fstat(fd)
    if mount.inode is not None and (status.st_dev, status.st_ino) != mount.inode:
        os.close(fd)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), mount.path)
    return fd


def _allow_if_there(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _allow(ruleset, fd, rights)
    finally:
        os.close(fd)


def _allow(ruleset: int, fd: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= FILE_RIGHTS
    rule = _Beneath(rights & _rights(abi()), fd)
    checked(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)


def _restrict_self(ruleset: int) -> None:
    prctl(NO_NEW_PRIVS, 1)
    checked(RESTRICT_SELF, ruleset, 0)
