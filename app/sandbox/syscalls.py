"""System calls that Python has no names for, and the privileges of a process.

The spawner and its children use this module, so it imports next to nothing.
"""

import ctypes
import errno
import os
import signal
from functools import cache

SET_PDEATHSIG, BOUNDING_DROP, SET_CHILD_SUBREAPER, NO_NEW_PRIVS, AMBIENT, AMBIENT_CLEAR = 1, 24, 36, 38, 47, 4
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
CAPABILITY_VERSION = 0x20080522
MAX_CAPABILITIES = 64


def call(number: int, *arguments: object) -> int:
    """The result of a system call, or a negative errno."""
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = libc().syscall(ctypes.c_long(number), *converted)
    return int(result) if result >= 0 else -ctypes.get_errno()


def checked(number: int, *arguments: object) -> int:
    """The result of a system call. Raises `OSError`."""
    result = call(number, *arguments)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def prctl(option: int, *arguments: int) -> int:
    """Raises `OSError`."""
    return check_errno(libc().prctl(option, *(ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4])))


def check_errno(result: int) -> int:
    """The result of a function of the C library. Raises `OSError` for a negative one."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@cache
def libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


class _CapabilityHeader(ctypes.Structure):
    """The kernel's `struct __user_cap_header_struct`."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySet(ctypes.Structure):
    """The kernel's `struct __user_cap_data_struct`, the low or the high 32 capabilities."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def has_capabilities(*capabilities: int) -> bool:
    """Whether all of these are effective."""
    sets = (_CapabilitySet * 2)()
    check_errno(libc().capget(ctypes.byref(_CapabilityHeader(CAPABILITY_VERSION, 0)), sets))
    return all(sets[number // 32].effective >> number % 32 & 1 for number in capabilities)


def become_user(user: int, group: int) -> None:
    """Change the user and the group, without supplementary groups. Raises `OSError`."""
    _drop_bounding_set()
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """Drop all capabilities, and the ability to gain any by executing a program. Raises `OSError`.

    Without the right to narrow the bounding set it stays as it is; with no_new_privs nothing can be gained from it.
    """
    _drop_bounding_set()
    prctl(AMBIENT, AMBIENT_CLEAR)
    check_errno(libc().capset(ctypes.byref(_CapabilityHeader(CAPABILITY_VERSION, 0)), (_CapabilitySet * 2)()))
    prctl(NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent dies. A change of the user clears this, so it comes after. Raises `OSError`."""
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError(errno.ESRCH, "the parent has ended already")


def _drop_bounding_set() -> None:
    drop = libc().prctl
    for capability in range(MAX_CAPABILITIES):
        if drop(BOUNDING_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() in (errno.EINVAL, errno.EPERM):  # no such capability, or no right to drop it
                return
            check_errno(-1)
