"""Landlock: what a thread gives up to read, it gives up for good, and so does whatever it starts.

A search walks a folder by names, and a name can become a symlink between the moment it is seen and the moment it
is opened. The kernel alone can say no to where it then leads.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache

from app.sandbox import syscalls
from app.sandbox.openat2 import O_PATH

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
NO_NEW_PRIVS = 38

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


class _Ruleset(ctypes.Structure):
    """The kernel's `struct landlock_ruleset_attr`, as far as its first version goes."""

    _fields_ = (("handled", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    """The kernel's `struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def confined(readable: Iterable[int | str], work: "Callable[[], T]") -> "T":
    """Do this in a thread that can open nothing for reading but these folders and files and what is below them.

    A path that is not there is no matter. Where there is no Landlock, the work is simply done.
    """
    return _confined(readable, work) if is_supported() else work()


def restrict_reading(readable: Iterable[int | str]) -> None:
    """Let this thread, and whatever comes of it, open nothing for reading but these and what is below them."""
    ruleset = _make(readable)
    try:
        _restrict(ruleset)
    finally:
        os.close(ruleset)


@cache
def is_supported() -> bool:
    """Tried and not guessed, in a thread that ends with it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        _confined((), bool)
    except OSError:
        return False
    return True


def _confined(readable: Iterable[int | str], work: "Callable[[], T]") -> "T":
    from concurrent.futures import ThreadPoolExecutor  # not for the spawner, which has no threads

    ruleset = _make(readable)
    try:
        with ThreadPoolExecutor(1, "toolcrib-confined") as thread:
            return thread.submit(_restricted, ruleset, work).result()
    finally:
        os.close(ruleset)


def _make(readable: Iterable[int | str]) -> int:
    handled = _Ruleset(READ_FILE | READ_DIR)
    ruleset = _checked(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for place in readable:
            _allow(ruleset, place)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _allow(ruleset: int, place: int | str) -> None:
    with ExitStack() as opened:
        if isinstance(place, str):
            try:
                place = os.open(place, O_PATH | os.O_CLOEXEC)
            except OSError:
                return
            opened.callback(os.close, place)
        is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
        rule = _Beneath(READ_FILE | READ_DIR if is_folder else READ_FILE, place)
        _checked(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)


def _restricted(ruleset: int, work: "Callable[[], T]") -> "T":
    _restrict(ruleset)
    return work()


def _restrict(ruleset: int) -> None:
    syscalls.prctl(NO_NEW_PRIVS, 1)
    _checked(RESTRICT_SELF, ruleset, 0)


def _checked(number: int, *arguments: object) -> int:
    answer = syscalls.call(number, *arguments)
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer
