"""Loopbacks: a network in which there is nobody but its own processes, and one listener that is ours.

The listener is made inside and handed out by its descriptor, which keeps belonging to that network wherever it goes.
So there is neither a relay inside nor a socket that has a name.
"""

import fcntl
import os
import socket
import struct

from app.sandbox.isolation import privileges
from app.sandbox.syscalls import answered, libc, prctl

PORT = 3128
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
GET_DUMPABLE, SET_DUMPABLE = 3, 4
WAITING = 128


def can_enter_as_root() -> bool:
    """Whether a network can be made without a user namespace around it."""
    return privileges.has(privileges.CAP_SYS_ADMIN, privileges.CAP_NET_ADMIN)


def enter_as_root() -> int:
    """Into a network that nobody inside has any rights over; answers with the listener. Raises `OSError`."""
    answered(libc().unshare(CLONE_NEWNET))
    return _listener()


def enter() -> int:
    """The same for an ordinary user, in a user namespace with nobody else in it. Raises `OSError`."""
    user, group = os.geteuid(), os.getegid()
    answered(libc().unshare(CLONE_NEWUSER | CLONE_NEWNET))
    # Who has changed its user may not open its own files in /proc until it has become another program.
    before = prctl(GET_DUMPABLE)
    prctl(SET_DUMPABLE, 1)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)
    prctl(SET_DUMPABLE, before if before == 1 else 0)
    return _listener()


def _listener() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", PORT))
        listener.listen(WAITING)
        return listener.detach()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
