"""Messages between the service, the spawner, supervisors and children: marshalled tuples with file descriptors.

A message too long for one packet is sent as a memfd, so that it never arrives in part.
"""

import errno
import marshal
import os
import socket
from array import array
from collections.abc import Iterable, Sequence

MAX_INLINE_BYTES = 8 * 1024
MAX_FDS = 200  # per packet; the kernel takes a few more
PACKET_BYTES = MAX_INLINE_BYTES + 64
CONTROL_BYTES = socket.CMSG_SPACE(MAX_FDS * array("i").itemsize)
INLINE, MEMFD, MORE_FDS = b"i", b"s", b"+"
COUNT_BYTES = 2

TYPE_CHECKING = False  # the real one takes memory that the spawner can do without
if TYPE_CHECKING:
    from typing import Any

    Message = tuple[Any, ...]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def socket_of(fd: int) -> socket.socket:
    """One end of a pair, by its descriptor."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def send(end: socket.socket, message: "Message", fds: Sequence[int] = ()) -> None:
    """Raises `OSError` when the other end is closed, `BlockingIOError` when its buffer is full."""
    data = marshal.dumps(message)
    if len(data) <= MAX_INLINE_BYTES:
        _send(end, INLINE, data, fds)
        return
    memory = _memfd(data)
    try:
        _send(end, MEMFD, b"", (memory, *fds))
    finally:
        os.close(memory)


def receive(end: socket.socket) -> "tuple[Message, list[int]] | None":
    """The next message and its descriptors, which the receiver has to close; None at the end of the connection."""
    data, fds = _receive(end)
    if not data:
        return None
    kind, body = data[:1], data[1 + COUNT_BYTES :]
    while len(fds) < int.from_bytes(data[1 : 1 + COUNT_BYTES], "big"):
        next_data, next_fds = _receive(end)
        fds += next_fds
        if not next_data:
            close(fds)
            return None
    if kind == MEMFD:
        memory = fds.pop(0)
        body = os.pread(memory, os.fstat(memory).st_size, 0)
        os.close(memory)
    return marshal.loads(body), fds


def close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _send(end: socket.socket, kind: bytes, data: bytes, fds: Sequence[int]) -> None:
    head = kind + len(fds).to_bytes(COUNT_BYTES, "big")
    end.sendmsg([head, data], _rights(fds[:MAX_FDS]), socket.MSG_NOSIGNAL)
    for start in range(MAX_FDS, len(fds), MAX_FDS):
        end.sendmsg([MORE_FDS], _rights(fds[start : start + MAX_FDS]), socket.MSG_NOSIGNAL)


def _rights(fds: Sequence[int]) -> "list[tuple[int, int, array[int]]]":
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []


def _receive(end: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, control, flags, _ = end.recvmsg(PACKET_BYTES, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # the other end was closed before it had read everything
        return b"", []
    fds = array("i")
    for _, _, rights in control:
        fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        close(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds)


def _memfd(data: bytes) -> int:
    memory = os.memfd_create("message")
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(memory, rest) :]
    except BaseException:
        os.close(memory)
        raise
    return memory
