"""Who a process is, and what it gives up for good before it becomes another program."""

import ctypes
import errno
import os
import signal

from app.sandbox.syscalls import answered, libc, prctl

PDEATHSIG, BOUNDING_DROP, NO_NEW_PRIVS, AMBIENT, AMBIENT_CLEAR = 1, 24, 38, 47, 4
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
VERSION = 0x20080522
MOST_CAPABILITIES = 64


class _Header(ctypes.Structure):
    """The kernel's `struct __user_cap_header_struct`."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    """The kernel's `struct __user_cap_data_struct`; two of them make a whole."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def has(*capabilities: int) -> bool:
    """Whether all of these are in force."""
    sets = (_Set * 2)()
    answered(libc().capget(ctypes.byref(_Header(VERSION, 0)), sets))
    return all(sets[number // 32].effective >> number % 32 & 1 for number in capabilities)


def become(user: int, group: int) -> None:
    """Somebody else, with no other groups. Raises `OSError`."""
    _drop_bounding()
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def give_up() -> None:
    """Every capability, and to ever gain one by starting a program. Raises `OSError`.

    Without the right to narrow the bounding set it stays as it is; nothing can be gained from it any more.
    """
    _drop_bounding()
    prctl(AMBIENT, AMBIENT_CLEAR)
    answered(libc().capset(ctypes.byref(_Header(VERSION, 0)), (_Set * 2)()))
    prctl(NO_NEW_PRIVS, 1)


def die_with(parent: int) -> None:
    """End when the parent does. Changing the user forgets this, so it is said afterwards. Raises `OSError`."""
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError(errno.ESRCH, "the parent has ended already")


def _drop_bounding() -> None:
    drop = libc().prctl
    for capability in range(MOST_CAPABILITIES):
        if drop(BOUNDING_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() in (errno.EINVAL, errno.EPERM):  # the kernel knows no more of them, or may not
                return
            answered(-1)
