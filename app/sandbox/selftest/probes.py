"""The probe program: tries to break out of the sandbox, and reports what happened. It is judged outside.

Its source is passed to an interpreter in the sandbox, so that its file need not be visible there. It imports only the
standard library.
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
UNKNOWN_PTRACE_REQUEST = 0x4242
SYSCALLS = {"x86_64": (101, 425, 272), "aarch64": (117, 425, 97)}
LIFE_SECONDS = 60
TIMEOUT_SECONDS = 1.0


def outcome(attempt: Callable[[], object]) -> str:
    """`done`, or the name of the error."""
    try:
        attempt()
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return DONE


def main(targets: dict[str, Any]) -> dict[str, Any]:
    """All attempts, in an order in which none affects a later one."""
    workspace = targets["workspace"]
    return {
        "orphan": orphan(workspace + "/alive"),
        "uid": os.getuid(),
        "pids": text_or_none(lambda: os.readlink("/proc/self/ns/pid")),
        "status": status(),
        "fds": fds(),
        "environ": sorted(os.environ),
        "write": outcome(lambda: write(workspace + "/written")),
        "outside": each(targets["outside"], write),
        "records": each(targets["records"], look),
        "service": service(targets["service"]),
        "tcp": each(targets["tcp"], tcp),
        "fastopen": each(targets["tcp"], tcp_fast_open),
        "udp": each(targets["udp"], udp),
        "unix": each(targets["unix"], unix),
        "signals": signals(targets["service"]),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in targets["limits"]},
        "size": outcome(lambda: oversize(workspace + "/large")),
        "fork": outcome(fork_too_many),
        "calls": calls(),
    }


def each(targets: dict[str, Any], attempt: Callable[[Any], object]) -> dict[str, str]:
    """The same attempt on several targets, by their names."""
    return {name: outcome(partial(attempt, target)) for name, target in targets.items()}


def text_or_none(attempt: Callable[[], str]) -> str | None:
    try:
        return attempt()
    except OSError:
        return None


def write(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"written in the sandbox\n")
    os.close(fd)


def look(path: str) -> None:
    """Read a file, or list a folder. An empty folder may be the one that hides the real one."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            file.read(1)
    elif not os.listdir(path):
        raise FileNotFoundError(errno.ENOENT, "empty")


def service(pid: int) -> dict[str, str | None]:
    """What can be seen of the service. In a PID namespace its process id may be that of another process."""
    base = f"/proc/{pid}"
    return {
        "began": text_or_none(lambda: start_time(base)),
        "environ": outcome(lambda: read(base + "/environ")),
        "mem": outcome(lambda: os.close(os.open(base + "/mem", os.O_RDONLY))),
        "root": outcome(lambda: os.listdir(base + "/root/")),
        "fd": outcome(lambda: [os.readlink(f"{base}/fd/{name}") for name in os.listdir(base + "/fd")]),
    }


def start_time(base: str) -> str:
    """When a process started, in clock ticks: with its process id, this identifies it."""
    return read(base + "/stat").rpartition(b")")[2].split()[19].decode()


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(65_536)


def tcp(to: list[Any]) -> None:
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(tuple(to))


def tcp_fast_open(to: list[Any]) -> None:
    """Data along with the first packet, without `connect`."""
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.sendto(b"x", FASTOPEN, tuple(to))


def udp(to: list[Any]) -> None:
    with socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", tuple(to))


def unix(to: str) -> None:
    """By a path, or by an abstract name, which is written with an `@`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect("\0" + to[1:] if to.startswith("@") else to)


def signals(pid: int) -> dict[str, str]:
    """The service and the supervisor: a process that could kill its supervisor could escape its tree."""
    return {"service": outcome(lambda: os.kill(pid, 0)), "supervisor": outcome(lambda: os.kill(os.getppid(), 0))}


def calls() -> dict[str, str]:
    """Raw system calls. The `ptrace` request is unknown: the kernel and the filter answer differently."""
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace, io_uring, unshare = SYSCALLS[platform.machine()]

    def call(*numbers: int) -> None:
        if libc.syscall(*(ctypes.c_long(number) for number in numbers)) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    return {
        "ptrace": outcome(lambda: call(ptrace, UNKNOWN_PTRACE_REQUEST, os.getpid(), 0, 0)),
        "io_uring": outcome(lambda: call(io_uring, 0, 0)),
        "unshare": outcome(lambda: call(unshare, CLONE_NEWUSER)),
    }


def orphan(path: str) -> bool:
    """Leave a process behind, two generations down and in a session of its own, that holds a lock while it lives."""
    reads, writes = os.pipe()
    if child := os.fork():
        os.close(writes)
        os.waitpid(child, 0)
        has_lock = os.read(reads, 1) == b"1"
        os.close(reads)
        return has_lock
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(LIFE_SECONDS)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(writes, b"1")
    os.close(writes)
    while True:
        time.sleep(LIFE_SECONDS)


def status() -> dict[str, str]:
    lines = read("/proc/self/status").decode().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def fds() -> list[int]:
    """Open descriptors."""
    found = []
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found


def oversize(path: str) -> None:
    """Write one byte beyond the largest allowed file size."""
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
    """Fork with a limit of one process: shows whether the kernel enforces the limit for this user."""
    resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        os._exit(0)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)  # noqa: T201
    signal.alarm(LIFE_SECONDS)
    signal.pause()
