"""The kernel, asked directly: what Python has no name for. Imports next to nothing, because the spawner needs it."""

import ctypes
import os
from functools import cache

SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def call(number: int, *arguments: object) -> int:
    """What the kernel answers, or a negative errno."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    answer = libc().syscall(ctypes.c_long(number), *given)
    return int(answer) if answer >= 0 else -ctypes.get_errno()


def prctl(option: int, value: int) -> None:
    """Change something about this process. Raises `OSError`."""
    if libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
