"""The wire between the service and those who start processes for it: whole messages, and open files with them.

Both ends are ours; what a message says is a tuple of plain values. One that is too long for a packet goes as a file
in memory, so that no message is ever sent in part.
"""

import errno
import marshal
import os
import socket
from array import array
from collections.abc import Iterable, Sequence

MAX_INLINE_BYTES = 8 * 1024
MOST_FILES = 200  # the kernel takes a few more with one packet
PACKET = MAX_INLINE_BYTES + 64
SPACE = socket.CMSG_SPACE(MOST_FILES * array("i").itemsize)
INLINE, SPILLED, MORE = b"i", b"s", b"+"
COUNT_BYTES = 2

TYPE_CHECKING = False  # the real one takes memory that the spawner can do without
if TYPE_CHECKING:
    from typing import Any

    Message = tuple[Any, ...]


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def end_of(fd: int) -> socket.socket:
    """One end of a pair, by its descriptor."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def send(end: socket.socket, message: "Message", files: Sequence[int] = ()) -> None:
    """Raises `OSError` when nobody is at the other end, `BlockingIOError` when that one does not keep up."""
    data = marshal.dumps(message)
    if len(data) <= MAX_INLINE_BYTES:
        _send(end, INLINE, data, files)
        return
    memory = _memory(data)
    try:
        _send(end, SPILLED, b"", (memory, *files))
    finally:
        os.close(memory)


def receive(end: socket.socket) -> "tuple[Message, list[int]] | None":
    """The next message and the files that came with it, which are the receiver's now; None at the end."""
    data, files = _receive(end)
    if not data:
        return None
    kind, body = data[:1], data[1 + COUNT_BYTES :]
    while len(files) < int.from_bytes(data[1 : 1 + COUNT_BYTES], "big"):
        data_of_more, more = _receive(end)
        files += more
        if not data_of_more:
            close(files)
            return None
    if kind == SPILLED:
        memory = files.pop(0)
        body = os.pread(memory, os.fstat(memory).st_size, 0)
        os.close(memory)
    return marshal.loads(body), files


def close(files: Iterable[int]) -> None:
    for fd in files:
        os.close(fd)


def _send(end: socket.socket, kind: bytes, data: bytes, files: Sequence[int]) -> None:
    head = kind + len(files).to_bytes(COUNT_BYTES, "big")
    end.sendmsg([head, data], _rights(files[:MOST_FILES]), socket.MSG_NOSIGNAL)
    for start in range(MOST_FILES, len(files), MOST_FILES):
        end.sendmsg([MORE], _rights(files[start : start + MOST_FILES]), socket.MSG_NOSIGNAL)


def _rights(files: Sequence[int]) -> "list[tuple[int, int, array[int]]]":
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []


def _receive(end: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, others, flags, _ = end.recvmsg(PACKET, SPACE, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # the other end was closed with something of ours unread
        return b"", []
    files = array("i")
    for _, _, rights in others:
        files.frombytes(rights[: len(rights) - len(rights) % files.itemsize])
    if flags & socket.MSG_CTRUNC:
        close(files)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(files)


def _memory(data: bytes) -> int:
    memory = os.memfd_create("order")
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(memory, rest) :]
    except BaseException:
        os.close(memory)
        raise
    return memory
