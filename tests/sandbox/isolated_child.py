"""A service in small, run as a program of its own: it listens, forks one child into an enclosure, and tells.

In: the root of the sources and a JSON object. Out: on the descriptor that the object names, another one with the
child's exit code, what failed before it began, and by what the service was reached.
"""

import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
from typing import TYPE_CHECKING, Any

sys.path.insert(0, sys.argv[1])

from app.sandbox import syscalls
from app.sandbox.isolation import apply
from app.sandbox.isolation.seccomp import ALLOW, ANY_BIT, EQUAL, ERRNO, NUMBER, SYSCALLS, Assembler, argument, install
from app.sandbox.process.preforked import unpack
from app.sandbox.syscalls import prctl

if TYPE_CHECKING:  # it is started without the packages that the spawner's client needs
    from app.sandbox.process.spawner import SpawnRequest

SECONDS = 0.1
NEWUSER = 0x10000000


def main() -> None:
    told = json.loads(sys.argv[2])
    order = order_of(told["order"])
    if told.get("without_user_namespaces"):
        forbid_user_namespaces()
    if told.get("user"):
        become_ordinary(*told["user"])
    ears = listen(told.get("sockets"))
    order.env["SERVICE"] = str(os.getpid())
    apply.prepare()
    tell, told_by_child = os.pipe()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        os.close(tell)
        os.close(told["report"])
        start(order, ears, theirs, told_by_child)
    os.close(told_by_child)
    theirs.close()
    listener = handed_out(ours)
    if listener is not None:
        answer(listener)
    _, status = os.waitpid(child, 0)
    stage = os.read(tell, 1000).decode()
    reached, _, _ = select.select(ears.values(), [], [], SECONDS)
    heard = [name for name, ear in ears.items() if ear in reached]
    os.write(told["report"], json.dumps({"code": exit_code(status), "failure": stage, "heard": heard}).encode())


def order_of(told: dict[str, Any]) -> "SpawnRequest":
    if told["isolation"]:
        told["isolation"] = {key: _tuple(value) for key, value in told["isolation"].items()}
    return unpack({key: _tuple(value) for key, value in told.items()})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def become_ordinary(user: int, group: int) -> None:
    if os.geteuid() == 0:
        syscalls.become_user(user, group)
        prctl(4, 1)  # as a process that has never been anybody else


def listen(paths: dict[str, Any] | None) -> dict[str, socket.socket]:
    """Everything by which a process could get through to the service."""
    if not paths:
        return {}
    ears = {name: socket.socket(family, kind) for name, (family, kind) in KINDS.items()}
    for name, address in paths.items():
        ears[name].bind(tuple(address) if isinstance(address, list) else address)
        if ears[name].type == socket.SOCK_STREAM:
            ears[name].listen(8)
    for name in ("path", "datagrams"):
        os.chmod(paths[name], 0o777)
    return ears


KINDS = {
    "tcp4": (socket.AF_INET, socket.SOCK_STREAM),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM),
    "udp4": (socket.AF_INET, socket.SOCK_DGRAM),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM),
    "path": (socket.AF_UNIX, socket.SOCK_STREAM),
    "abstract": (socket.AF_UNIX, socket.SOCK_STREAM),
    "datagrams": (socket.AF_UNIX, socket.SOCK_DGRAM),
}


def start(order: "SpawnRequest", ears: dict[str, socket.socket], line: socket.socket, tell: int) -> None:
    """What the spawner does in a child."""
    for ear in ears.values():
        ear.close()
    os.setsid()
    if order.has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT):  # whoever runs the tests may ignore some
        signal.signal(number, signal.SIG_DFL)
    try:
        argv = apply.apply(order, lambda fd: hand_out(line, fd))
        os.execvpe(argv[0], argv, order.env)
    except OSError as error:
        os.write(tell, f"{getattr(error, 'stage', 'exec')}: {error}".encode())
        os._exit(127)


def hand_out(line: socket.socket, fd: int) -> None:
    socket.send_fds(line, [b"x"], [fd])


def handed_out(line: socket.socket) -> socket.socket | None:
    _, fds, _, _ = socket.recv_fds(line, 1, 1)
    return socket.socket(fileno=fds[0]) if fds else None


def answer(listener: socket.socket) -> None:
    listener.settimeout(10)
    try:
        caller, _ = listener.accept()
    except TimeoutError:
        return
    with caller:
        caller.sendall(b"hello from outside")


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def forbid_user_namespaces() -> None:
    """As containers do by default."""
    numbers, steps = SYSCALLS[os.uname().machine], Assembler()
    steps.load(NUMBER)
    steps.jump(EQUAL, numbers["clone3"], no="others")
    steps.ret(ERRNO | 38)
    steps.label("others")
    steps.jump(EQUAL, numbers["clone"], yes="flags")
    steps.jump(EQUAL, numbers["unshare"], yes="flags")
    steps.ret(ALLOW)
    steps.label("flags")
    steps.load(argument(0))
    steps.jump(ANY_BIT, NEWUSER, no="fine")
    steps.ret(ERRNO | 1)
    steps.label("fine")
    steps.ret(ALLOW)
    prctl(syscalls.NO_NEW_PRIVS, 1)
    install(steps.assemble())


if __name__ == "__main__":
    main()
