"""Pre-forked children: processes that wait for a spawn request and then exec its program.

What fails before the exec is reported over the socket on which the request came. When that socket closes without a
report, the program has been started.
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

    from app.sandbox.process.spawner import SpawnRequest, Stage

IGNORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Ignored by the spawner and its supervisors, or by Python; reset in the child."""

OOM_SCORE = b"500"
EXEC_FAILED = 127
WARM_UP_REQUEST = {
    **{"argv": ("true",), "env": {"PATH": "/usr/bin"}, "cwd": "/"},
    **{"pass_fds": (), "limits": {}, "isolation": None},
}


def wait_for_request(link: socket.socket) -> "NoReturn":
    """Wait for a spawn request and exec it. Without one, exit when the socket closes."""
    child = _PreforkedChild(link)
    try:
        _prepare(link)
        received = messages.receive(link)
        if received is not None:
            child.exec_request(*received)
    except BaseException as error:  # noqa: BLE001 - nothing above could handle it, so it is reported
        child.report_failure(error)
    os._exit(EXEC_FAILED)


class _PreforkedChild:
    """A child before its exec. `stage` is what it is doing, for the failure report."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._stage: Stage = "request"

    def exec_request(self, message: "messages.Message", fds: list[int]) -> None:
        """Put the descriptors in place, apply limits and isolation, and exec the program. Does not return."""
        request, pipe_ends, passed = _read(message, fds)
        placed = {*range(len(pipe_ends)), *request.pass_fds}
        if self._link.fileno() in placed:
            self._link = messages.socket_of(_dup_outside(self._link.fileno(), placed))
        passed = {number: _dup_outside(fd, placed) for number, fd in passed.items()}
        targets = dict(enumerate(_dup_outside(fd, placed) for fd in pipe_ends))
        for number, fd in (targets | {number: passed[number] for number in request.pass_fds}).items():
            os.dup2(fd, number)
        self._stage = "terminal"
        if request.has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self._stage = "limits"
        _set_limits(request.limits)
        self._stage = "cwd"
        if request.cwd_fd is not None:
            os.fchdir(passed[request.cwd_fd])
        self._stage = "isolation"
        if request.readable is not None:
            landlock.restrict_reading([passed[path] if isinstance(path, int) else path for path in request.readable])
        messages.close({*fds, *passed.values()} - placed)
        argv = apply.apply(request, self._send_listener)
        if request.isolation is None:
            syscalls.prctl(syscalls.SET_PDEATHSIG, signal.SIGKILL)  # late: a change of the user clears it
            self._stage = "cwd"
            if request.cwd_fd is None:
                os.chdir(request.cwd)
        self._stage = "program"
        _execute(argv, request.env)

    def _send_listener(self, fd: int) -> None:
        messages.send(self._link, ("listener",), [fd])

    def report_failure(self, error: BaseException) -> None:
        number = error.errno if isinstance(error, OSError) else None
        stage = error.stage if isinstance(error, apply.IsolationFailed) else self._stage
        with suppress(OSError):  # the service is gone
            messages.send(self._link, ("failed", stage, number, f"{type(error).__name__}: {error}"))


def _prepare(link: socket.socket) -> None:
    """Do in advance what is the same for all requests."""
    os.setsid()  # early, because the scheduler starts a new session with no credit
    low = 3
    for high in (link.fileno(), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, high)
        low = high + 1
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as file:
        file.write(OOM_SCORE)  # to be killed before the service and the supervisor
    _warm_up()


def _warm_up() -> None:
    """Read a request that is not executed: copy-on-write pages that were touched once are faster afterwards."""
    ours, theirs = messages.socket_pair()
    messages.send(ours, (WARM_UP_REQUEST, 1, ()), [0])
    received = messages.receive(theirs)
    assert received is not None, "it was just sent"
    _read(*received)
    messages.close(received[1])
    ours.close()
    theirs.close()
    apply.warm_up()


def _read(message: "messages.Message", fds: list[int]) -> "tuple[SpawnRequest, list[int], dict[int, int]]":
    """The request, the pipe ends, and the passed descriptors by the numbers that the request uses for them."""
    fields, pipe_count, numbers = message
    return unpack(fields), fds[:pipe_count], dict(zip(numbers, fds[pipe_count:], strict=True))


def unpack(fields: "dict[str, Any]") -> "SpawnRequest":
    """A received spawn request, as namespaces with its fields: dataclasses would take memory in every child."""
    request = SimpleNamespace(**fields)
    if request.isolation is not None:
        request.isolation = SimpleNamespace(**request.isolation)
        request.isolation.mounts = tuple([SimpleNamespace(**mount) for mount in request.isolation.mounts])
    return request  # type: ignore[return-value]


def _dup_outside(fd: int, taken: Collection[int]) -> int:
    """The same file under a number that is not taken."""
    while fd in taken:
        fd = os.dup(fd)  # the old one stays open, so that the next number is another
    return fd


def _set_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """`os.execvpe` would import modules, whose files the sandbox may hide."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError | None = None
    for folder in env.get("PATH", os.defpath).split(":"):
        program = f"{folder or '.'}/{argv[0]}"
        try:
            os.execve(program, argv, env)
        except OSError as error:  # a later folder may have it
            if failure is None and os.path.exists(program):  # a folder without search permission does not count
                failure = error
    raise failure or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
