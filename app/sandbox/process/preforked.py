"""Seeds: processes that wait for an order and become what it says. They are there before they are needed.

Whatever goes wrong before the program begins is told over the line the order came on; that nothing is told, and the
line ends, means that it has begun.
"""

import errno
import fcntl
import os
import resource
import signal
import socket
import termios
from collections.abc import Collection
from contextlib import suppress
from types import SimpleNamespace

from app.sandbox import syscalls
from app.sandbox.isolation import apply, landlock
from app.sandbox.process import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from app.sandbox.process.spawn_request import SpawnRequest, Stage

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What the spawner and its keepers are deaf to, or Python is."""

FIRST_TO_DIE = b"500"
FAILED = 127
REHEARSED = {"argv": ("true",), "env": {"PATH": "/usr/bin"}, "cwd": "/", "passed": (), "limits": {}, "enclosure": None}


def grow(line: socket.socket) -> "NoReturn":
    """Wait for an order and become it. Without one, end with the line."""
    seed = _PreforkedChild(line)
    try:
        _prepare(line)
        received = messages.receive(line)
        if received is not None:
            seed.become(*received)
    except BaseException as error:  # noqa: BLE001 - nobody is here to handle it, so it is told
        seed.fail(error)
    os._exit(FAILED)


class _PreforkedChild:
    """A process on its way. `stage` is what it is at, for the one who asks what went wrong."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._stage: Stage = "order"

    def become(self, message: "messages.Message", files: list[int]) -> None:
        """Put its descriptors in place, take up its walls, and be the program. It does not come back from that."""
        order, ends, given = _read(message, files)
        placed = {*range(len(ends)), *order.passed}
        self._line = _moved(self._line, placed)
        given = {number: _away(fd, placed) for number, fd in given.items()}
        _place(dict(enumerate(_away(fd, placed) for fd in ends)) | {number: given[number] for number in order.passed})
        self._stage = "terminal"
        if order.has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self._stage = "limits"
        _limit(order.limits)
        self._stage = "folder"
        if order.folder is not None:
            os.fchdir(given[order.folder])
        self._stage = "walls"
        if order.readable is not None:
            landlock.restrict_reading([given[place] if isinstance(place, int) else place for place in order.readable])
        messages.close({*files, *given.values()} - placed)
        argv = apply.enter(order, self._hand_out)
        if order.enclosure is None:
            syscalls.prctl(syscalls.SET_PDEATHSIG, signal.SIGKILL)  # late: it is forgotten when the user changes
            self._stage = "folder"
            if order.folder is None:
                os.chdir(order.cwd)
        self._stage = "program"
        _execute(argv, order.env)

    def _hand_out(self, fd: int) -> None:
        messages.send(self._line, ("listener",), [fd])

    def fail(self, error: BaseException) -> None:
        number = error.errno if isinstance(error, OSError) else None
        stage = error.stage if isinstance(error, apply.IsolationFailed) else self._stage
        with suppress(OSError):  # nobody listens any more
            messages.send(self._line, ("failed", stage, number, f"{type(error).__name__}: {error}"))


def _prepare(line: socket.socket) -> None:
    """Do ahead what is the same for all orders."""
    os.setsid()  # to the scheduler that is a party of its own, which begins with nothing: better now than later
    low = 3
    for high in (line.fileno(), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, high)
        low = high + 1
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as file:
        file.write(FIRST_TO_DIE)  # when the machine has no memory left, before those who watch over it
    _rehearse()


def _rehearse() -> None:
    """Read an order that leads to nothing: memory that was touched once is this process's own, and quicker then."""
    ours, theirs = messages.pair()
    messages.send(ours, (REHEARSED, 1, ()), [0])
    received = messages.receive(theirs)
    assert received is not None, "it was just sent"
    _read(*received)
    messages.close(received[1])
    ours.close()
    theirs.close()
    apply.rehearse()


def _read(message: "messages.Message", files: list[int]) -> "tuple[SpawnRequest, list[int], dict[int, int]]":
    """The order, the ends of pipes, and the descriptors that the order speaks of by the numbers they had."""
    fields, ends, numbers = message
    return unpack(fields), files[:ends], dict(zip(numbers, files[ends:], strict=True))


def unpack(fields: "dict[str, Any]") -> "SpawnRequest":
    """An order as it came over the line. Values that look like it, because what makes real ones takes memory."""
    order = SimpleNamespace(**fields)
    if order.enclosure is not None:
        order.enclosure = SimpleNamespace(**order.enclosure)
        order.enclosure.places = tuple([SimpleNamespace(**place) for place in order.enclosure.places])
    return order  # type: ignore[return-value]


def _place(wanted: dict[int, int]) -> None:
    """Put descriptors where the program expects them."""
    for number, fd in wanted.items():
        os.dup2(fd, number)


def _moved(line: socket.socket, taken: Collection[int]) -> socket.socket:
    return messages.end_of(_away(line.fileno(), taken)) if line.fileno() in taken else line


def _away(fd: int, taken: Collection[int]) -> int:
    """The same where it is in nobody's way."""
    while fd in taken:
        fd = os.dup(fd)  # the old one stays, so that the next is another
    return fd


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(which)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (value, value))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Python's own would import something, and behind walls its files may not be read."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError | None = None
    for folder in env.get("PATH", os.defpath).split(":"):
        program = f"{folder or '.'}/{argv[0]}"
        try:
            os.execve(program, argv, env)
        except OSError as error:  # there may be another further on
            if failure is None and os.path.exists(program):  # a folder that cannot be entered does not count
                failure = error
    raise failure or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
