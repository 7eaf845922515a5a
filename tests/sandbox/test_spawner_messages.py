"""Messages between the service and those who start processes for it."""

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.sandbox.process import messages

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = messages.socket_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 100, messages.MAX_INLINE_BYTES, 5_000_000])
def test_a_message_arrives_whole_whatever_its_size(pair: Pair, size: int) -> None:
    message = ("order", {"a": ("x" * size, "\udcff"), "b": None}, 1.5, [True])
    before = os.listdir("/proc/self/fd")

    messages.send(pair[0], message)
    messages.send(pair[0], ("next",))

    assert messages.receive(pair[1]) == (message, [])
    assert messages.receive(pair[1]) == (("next",), [])
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("size", [1, 1_000_000])
@pytest.mark.parametrize("count", [1, messages.MAX_FDS, 2 * messages.MAX_FDS + 1])
def test_files_come_with_it_and_are_closed_in_programs(pair: Pair, tmp_path: Path, size: int, count: int) -> None:
    files = []
    for number in range(count):
        (tmp_path / str(number)).write_text(str(number))
        files.append(os.open(tmp_path / str(number), os.O_RDONLY))

    messages.send(pair[0], ("x" * size,), files)
    messages.close(files)
    received = messages.receive(pair[1])

    assert received is not None
    message, got = received
    assert message == ("x" * size,)
    assert [os.pread(fd, 9, 0).decode() for fd in got] == [str(number) for number in range(count)]
    assert not any(os.get_inheritable(fd) for fd in got)
    messages.close(got)


def test_the_end_is_told_also_when_something_was_left_unread(pair: Pair) -> None:
    messages.send(pair[1], ("unread",))
    pair[1].close()
    assert messages.receive(pair[0]) == (("unread",), [])
    assert messages.receive(pair[0]) is None

    ours, theirs = messages.socket_pair()
    with ours:
        messages.send(ours, ("never read",))
        theirs.close()
        assert messages.receive(ours) is None
        with pytest.raises(ConnectionError):
            messages.send(ours, ("to nobody",))


def test_files_for_which_there_is_no_room_are_an_error_and_not_lost_in_silence(pair: Pair) -> None:
    messages.send(pair[0], ("files",), [0, 0, 0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            messages.receive(pair[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    again = os.dup(0)
    os.close(again)
    assert again == lowest
