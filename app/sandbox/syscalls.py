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


def checked(number: int, *arguments: object) -> int:
    """What the kernel answers. Raises `OSError`."""
    answer = call(number, *arguments)
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer


def prctl(option: int, *arguments: int) -> int:
    """Something about this process. Raises `OSError`."""
    given = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return answered(libc().prctl(option, *given))


def answered(answer: int) -> int:
    """The answer of a function of the library. Raises `OSError`."""
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


@cache
def libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
