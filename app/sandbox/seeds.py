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

from app.sandbox import enclosure, landlock, syscalls, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from app.sandbox.orders import Order, Stage

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What the spawner and its keepers are deaf to, or Python is."""

CHANNEL = 3
FIRST_TO_DIE = b"500"
FAILED = 127


def grow(line: socket.socket) -> "NoReturn":
    """Wait for an order and become it. Without one, end with the line."""
    _offer_itself_first()
    seed = _Seed(line)
    try:
        received = wire.receive(line)
        if received is not None:
            seed.become(*received)
    except BaseException as error:  # noqa: BLE001 - nobody is here to handle it, so it is told
        seed.fail(error)
    os._exit(FAILED)


class _Seed:
    """A process on its way. `stage` is what it is at, for the one who asks what went wrong."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._stage: Stage = "order"

    def become(self, message: "wire.Message", files: list[int]) -> None:
        fields, ends, numbers = message
        order = unpack(fields)
        given = dict(zip(numbers, files[ends:], strict=True))
        if order.has_session:
            os.setsid()
        else:
            os.setpgid(0, 0)
        kept = {number: given[number] for number in order.passed} | dict(enumerate(files[:ends]))
        self._line = _place(kept, self._line)
        self._enter(order, given, kept)

    def _enter(self, order: "Order", given: dict[int, int], kept: Collection[int]) -> None:
        self._stage = "terminal"
        if order.has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self._stage = "limits"
        _limit(order.limits)
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        self._stage = "folder"
        if order.folder is not None:
            os.fchdir(given[order.folder])
        self._stage = "walls"
        if order.readable is not None:
            landlock.restrict_reading([given[place] if isinstance(place, int) else place for place in order.readable])
        _close_all_but({*kept, self._line.fileno()})
        argv = enclosure.enter(order, self._hand_out)
        syscalls.prctl(syscalls.SET_PDEATHSIG, signal.SIGKILL)  # the kernel forgets it when the user changes
        self._begin(order, argv)

    def _begin(self, order: "Order", argv: list[str]) -> None:
        self._stage = "folder"
        if order.folder is None and (order.enclosure is None or order.enclosure.backend != "bwrap"):
            os.chdir(order.cwd)
        self._stage = "program"
        _execute(argv, order.env)

    def _hand_out(self, fd: int) -> None:
        wire.send(self._line, ("listener",), [fd])

    def fail(self, error: BaseException) -> None:
        number = error.errno if isinstance(error, OSError) else None
        with suppress(OSError):  # nobody listens any more
            wire.send(self._line, ("failed", self._stage, number, f"{type(error).__name__}: {error}"))


def unpack(fields: "dict[str, Any]") -> "Order":
    """An order as it came over the line. Values that look like it, because what makes real ones takes memory."""
    order = SimpleNamespace(**fields)
    if order.enclosure is not None:
        order.enclosure = SimpleNamespace(**order.enclosure)
        order.enclosure.places = tuple(SimpleNamespace(**place) for place in order.enclosure.places)
    return order  # type: ignore[return-value]


def _offer_itself_first() -> None:
    """When the machine has no memory left, what was started here goes before those who watch over it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as file:
        file.write(FIRST_TO_DIE)


def _place(wanted: dict[int, int], line: socket.socket) -> socket.socket:
    """Put descriptors where the program expects them, and the line where it is in nobody's way."""
    line = wire.end_of(_away(line.fileno(), wanted))
    moved = {number: _away(fd, wanted) for number, fd in wanted.items()}
    for number, fd in moved.items():
        os.dup2(fd, number)
    return line


def _away(fd: int, taken: Collection[int]) -> int:
    while fd in taken:
        fd = os.dup(fd)  # the old one stays, so that the next is another
    return fd


def _limit(limits: dict[str, int]) -> None:
    for name, value in {**limits, "CORE": 0}.items():
        which = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(which)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (value, value))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Python's own would import something, and behind walls its files may not be read."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder or '.'}/{argv[0]}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # there may be another further on
            failure = failure if failure.errno != errno.ENOENT else error
    raise failure


def _close_all_but(kept: Collection[int]) -> None:
    low = 0
    for high in sorted({*kept, os.sysconf("SC_OPEN_MAX")}):
        if high > low:
            os.closerange(low, high)
        low = high + 1
