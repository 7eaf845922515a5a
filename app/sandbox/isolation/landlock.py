"""Landlock: what a process gives up to reach, it gives up for good, and so does whatever it starts.

The kernel asks at every opened file, at every made and removed name, at every TCP connection and at every signal. It
knows allowed trees only: nothing inside one can be taken out again, and everything that was not named is denied.

It does not ask when somebody changes what a file outside says about itself (mode, owner, times, extended attributes),
looks at names and sizes, locks, watches for changes, or takes a folder as the current one. There only the user's own
rights stand in the way: a service that runs as root gives its children a user of their own, and one that does not
has them change the modes of its own files. Memory shared by name (/dev/shm) is shared with all of the same user; only
its names cannot be listed. Pseudo terminals are as well, so none but its own can be opened, nor a new one be made.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from app.sandbox.files.openat2 import O_PATH
from app.sandbox.syscalls import call, checked, prctl

CREATE, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
TELL_ABI = 1
PATH_BENEATH, NET_PORT = 1, 2
NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
REMOVE_FILE, MAKE_CHAR, MAKE_REG, MAKE_BLOCK = 1 << 5, 1 << 6, 1 << 8, 1 << 11
FIRST_RIGHTS = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
ABSTRACT_SOCKETS, SIGNALS = 1, 2

OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (FIRST_RIGHTS & ~(MAKE_CHAR | MAKE_BLOCK)) | REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
NAMED_MEMORY = READ_FILE | WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE

DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
SHARED_MEMORY = "/dev/shm"
CONTROLLING = "/dev/tty"

SINCE = {
    2: "files cannot be moved between folders",
    3: "files outside can be cut short",
    4: "TCP connections are not watched",
    6: "signals to processes outside are not held back",
}
"""What is missing before each version of the interface. Of version 5 nothing is: no other devices can be opened."""

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from app.sandbox.isolation.seccomp import Network
    from app.sandbox.process.spawn_request import Mount


class _Ruleset(ctypes.Structure):
    """The kernel's `struct landlock_ruleset_attr`. An older kernel takes one without the fields it does not know."""

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
    """The newest interface this kernel speaks; 0 when it has none."""
    return max(call(CREATE, None, 0, TELL_ABI), 0)


def missing(version: int) -> list[str]:
    """What walls of this version would let through; nothing of it may be missing around what a model wrote."""
    return ["there is no Landlock"] if not version else [text for since, text in SINCE.items() if version < since]


def enclose(
    places: "Iterable[Mount]",
    *,
    network: "Network" = "none",
    proxy: int | None = None,
    terminal: str | None = None,
) -> None:
    """Give up everything but these places, the harmless devices, its own `terminal`, and the network. Raises `OSError`.

    A place to read that is not there is no matter, for there is nothing to allow.
    """
    if gaps := missing(abi()):
        raise OSError(errno.ENOSYS, f"Landlock ABI {abi()}: " + ", ".join(gaps))
    ruleset = _create(_rights(abi()), BIND_TCP | CONNECT_TCP if network != "full" else 0, ABSTRACT_SOCKETS | SIGNALS)
    try:
        for place in places:
            _allow_place(ruleset, place)
        for device in (*DEVICES, *((CONTROLLING, terminal) if terminal else ())):
            _allow_if_there(ruleset, device, DEVICE)
        _allow_if_there(ruleset, SHARED_MEMORY, NAMED_MEMORY)
        _allow_if_there(ruleset, "/proc", READ_FILE | READ_DIR)
        if network == "allowlist" and proxy:
            port = _Port(CONNECT_TCP, proxy)
            checked(ADD_RULE, ruleset, NET_PORT, ctypes.byref(port), 0)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def restrict_reading(readable: Iterable[int | str]) -> None:
    """Give up to open anything for reading but these folders and files and what is below them. Raises `OSError`.

    A path that is not there is no matter. Where there is no Landlock, nothing is given up.
    """
    if not abi():
        return
    ruleset = _make(readable)
    try:
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def rehearse(path: str) -> None:
    """Make rules that nobody is bound by, and forget them."""
    ruleset = _create(_rights(abi()))
    _allow_if_there(ruleset, path, READ)
    os.close(ruleset)


@cache
def is_supported() -> bool:
    """Tried and not guessed, in a thread that ends with it."""
    from threading import Thread  # what only starts processes does without

    given_up = list[bool]()

    def give_up() -> None:
        with suppress(OSError):
            restrict_reading(())
            given_up.append(bool(abi()))

    thread = Thread(target=give_up, name="toolcrib-landlock")
    thread.start()
    thread.join()
    return any(given_up)


def _make(readable: Iterable[int | str]) -> int:
    """A ruleset about reading alone."""
    ruleset = _create(READ_FILE | READ_DIR)
    try:
        for place in readable:
            if isinstance(place, str):
                _allow_if_there(ruleset, place, READ_FILE | READ_DIR)
            else:
                _allow(ruleset, place, READ_FILE | READ_DIR)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _rights(version: int) -> int:
    """Every right over files that a version knows."""
    rights = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def _create(files: int, net: int = 0, scoped: int = 0) -> int:
    handled = _Ruleset(files, net, scoped)
    size = _Ruleset.scoped.offset + 8 if scoped else _Ruleset.net.offset + 8 if net else _Ruleset.net.offset
    return checked(CREATE, ctypes.byref(handled), size, 0)


def _allow_place(ruleset: int, place: "Mount") -> None:
    try:
        fd = opened_place(place)
    except (FileNotFoundError, NotADirectoryError):
        if place.is_writable:
            raise
        return
    try:
        _allow(ruleset, fd, WRITE if place.is_writable else READ)
    finally:
        os.close(fd)


def opened_place(place: "Mount") -> int:
    """A handle on it, if it is what it should be. Raises `OSError`."""
    fd = os.open(place.path, O_PATH | os.O_CLOEXEC)
    about = os.fstat(fd)
    if place.inode is not None and (about.st_dev, about.st_ino) != place.inode:
        os.close(fd)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), place.path)
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


def _allow(ruleset: int, place: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= OF_FILES
    rule = _Beneath(rights & _rights(abi()), place)
    checked(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)


def _restrict(ruleset: int) -> None:
    prctl(NO_NEW_PRIVS, 1)
    checked(RESTRICT_SELF, ruleset, 0)
