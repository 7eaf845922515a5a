"""Probes: what is tried from behind the walls. It tells what happened and judges nothing; that is done outside.

Its source is handed to an interpreter behind the walls, so that its file need not be seen there. It knows nothing but
the standard library.
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

DONE = "done"
FASTOPEN = 0x20000000
CLONE_NEWUSER = 0x10000000
NO_REQUEST = 0x4242
NUMBERS = {"x86_64": (101, 425, 272), "aarch64": (117, 425, 97)}
LAST_SECONDS = 60
SECONDS = 1.0


def outcome(attempt: Callable[[], object]) -> str:
    """`done`, or the name of what the kernel said."""
    try:
        attempt()
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return DONE


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """All that is to be known, in an order in which one thing does not spoil another."""
    workspace = asked["workspace"]
    return {
        "orphan": orphan(workspace + "/alive"),
        "uid": os.getuid(),
        "pids": outcome_of(lambda: os.readlink("/proc/self/ns/pid")),
        "status": status(),
        "fds": fds(),
        "environ": sorted(os.environ),
        "write": outcome(lambda: write(workspace + "/written")),
        "outside": each(asked["outside"], write),
        "records": each(asked["records"], look),
        "service": service(asked["service"]),
        "tcp": each(asked["tcp"], tcp),
        "fastopen": each(asked["tcp"], fast),
        "udp": each(asked["udp"], udp),
        "unix": each(asked["unix"], unix),
        "signals": signals(asked["service"]),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in asked["limits"]},
        "size": outcome(lambda: oversize(workspace + "/large")),
        "fork": outcome(fork_too_many),
        "calls": calls(),
    }


def each(things: dict[str, Any], attempt: Callable[[Any], object]) -> dict[str, str]:
    """The same attempt on several things, by their names."""
    return {name: outcome(partial(attempt, thing)) for name, thing in things.items()}


def outcome_of(attempt: Callable[[], str]) -> str | None:
    try:
        return attempt()
    except OSError:
        return None


def write(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"written from behind the walls\n")
    os.close(fd)


def look(path: str) -> None:
    """Read a file, or list a folder. One that is empty shows nothing, so it may be what hides the real one."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            file.read(1)
    elif not os.listdir(path):
        raise FileNotFoundError(errno.ENOENT, "empty")


def service(pid: int) -> dict[str, str | None]:
    """What can be seen of the service. Where processes have numbers of their own, its number may be another's."""
    base = f"/proc/{pid}"
    return {
        "began": outcome_of(lambda: began(base)),
        "environ": outcome(lambda: read(base + "/environ")),
        "mem": outcome(lambda: os.close(os.open(base + "/mem", os.O_RDONLY))),
        "root": outcome(lambda: os.listdir(base + "/root/")),
        "fd": outcome(lambda: [os.readlink(f"{base}/fd/{name}") for name in os.listdir(base + "/fd")]),
    }


def began(base: str) -> str:
    """When a process began, in ticks of the kernel's clock: with its number, what tells it from all others."""
    return read(base + "/stat").rpartition(b")")[2].split()[19].decode()


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(65_536)


def tcp(to: list[Any]) -> None:
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET) as connection:
        connection.settimeout(SECONDS)
        connection.connect(tuple(to))


def fast(to: list[Any]) -> None:
    """Data along with the first packet: no `connect` is said."""
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET) as connection:
        connection.settimeout(SECONDS)
        connection.sendto(b"x", FASTOPEN, tuple(to))


def udp(to: list[Any]) -> None:
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", tuple(to))


def unix(to: str) -> None:
    """By a path, or by a name of no file system, which is written with an `@`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect("\0" + to[1:] if to.startswith("@") else to)


def signals(pid: int) -> dict[str, str]:
    """The service, and whoever keeps this process: it could leave its keeper behind if it could end it."""
    return {"service": outcome(lambda: os.kill(pid, 0)), "keeper": outcome(lambda: os.kill(os.getppid(), 0))}


def calls() -> dict[str, str]:
    """System calls as raw as they come. `ptrace` is asked for what it does not know: whoever lets it in says so."""
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace, io_uring, unshare = NUMBERS[platform.machine()]

    def call(*numbers: int) -> None:
        if libc.syscall(*(ctypes.c_long(number) for number in numbers)) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    return {
        "ptrace": outcome(lambda: call(ptrace, NO_REQUEST, os.getpid(), 0, 0)),
        "io_uring": outcome(lambda: call(io_uring, 0, 0)),
        "unshare": outcome(lambda: call(unshare, CLONE_NEWUSER)),
    }


def orphan(path: str) -> bool:
    """Leave a process behind, two generations down and in a session of its own, that holds a lock while it lives."""
    told, tell = os.pipe()
    if child := os.fork():
        os.close(tell)
        os.waitpid(child, 0)
        held = os.read(told, 1) == b"1"
        os.close(told)
        return held
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(LAST_SECONDS)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(tell, b"1")
    os.close(tell)
    while True:
        time.sleep(LAST_SECONDS)


def status() -> dict[str, str]:
    lines = read("/proc/self/status").decode().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def fds() -> list[int]:
    """Open descriptors, without the one that looks."""
    found = []
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found


def oversize(path: str) -> None:
    """One byte behind the largest file there may be."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, b"x", limit)
    finally:
        os.unlink(path)
        os.close(fd)


def fork_too_many() -> None:
    """One more process than there may be, once that is none: limits that the kernel does not count with do nothing."""
    resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        os._exit(0)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)  # noqa: T201
    signal.alarm(LAST_SECONDS)
    signal.pause()
