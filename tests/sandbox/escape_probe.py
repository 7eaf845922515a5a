"""What a process behind walls tries in vain, run as a program of its own there. Out: for each try "ok" or the errno.

In: a JSON object that says where everything is.
"""

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

NUMBERS = {
    "x86_64": {
        **{"ptrace": 101, "process_vm_readv": 310, "unshare": 272, "setns": 308, "mount": 165, "keyctl": 250},
        **{"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "open_by_handle_at": 304, "clone": 56},
        **{"shmget": 29, "mq_open": 240, "chroot": 161},
    },
    "aarch64": {
        **{"ptrace": 117, "process_vm_readv": 270, "unshare": 97, "setns": 268, "mount": 40, "keyctl": 219},
        **{"bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "open_by_handle_at": 265, "clone": 220},
        **{"shmget": 194, "mq_open": 180, "chroot": 51},
    },
}[os.uname().machine] | {"io_uring_setup": 425, "fsopen": 430, "clone3": 435, "pidfd_getfd": 438, "open_tree": 428}
ATTACH, NOBODY = 16, 0x7FFFFFFF
NEWUSER, CHILD_ENDS = 0x10000000, 17
MSG_FASTOPEN, FASTOPEN_CONNECT = 0x20000000, 30
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    told = json.loads(sys.argv[1])
    tries = files(told) | processes() | calls() | sockets(told["sockets"])
    answers: dict[str, Any] = {"status": status()}
    sys.stdout.write(json.dumps(answers | {name: tried(work) for name, work in tries.items()}))


def tried(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "ok"


def status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        fields = {name: value for name, _, value in (line.partition(":") for line in file)}
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")
    return {name: fields.get(name, "").strip() for name in names} | {"fds": " ".join(os.listdir("/proc/self/fd"))}


def files(told: dict[str, Any]) -> dict[str, Callable[[], object]]:
    base, workspace = told["base"], told["workspace"]
    return {
        "write in the workspace": lambda: write(f"{workspace}/mine"),
        "write in the temporary folder": lambda: write(f"{told['temporary']}/mine"),
        "read the system": lambda: read("/etc/passwd"),
        "write outside": lambda: write(f"{base}/outside/new"),
        "change outside": lambda: write(f"{base}/outside/file"),
        "truncate outside": lambda: os.truncate(f"{base}/outside/file", 0),
        "move outside": lambda: os.rename(f"{workspace}/mine", f"{base}/outside/mine"),
        "link outside": lambda: os.link(f"{base}/outside/file", f"{workspace}/linked"),
        "read outside": lambda: read(f"{base}/outside/file"),
        "read the state": lambda: read(f"{base}/state/secret"),
        "list the state": lambda: os.listdir(f"{base}/state"),
        "remove outside": lambda: os.unlink(f"{base}/outside/file"),
        "write the system": lambda: write("/etc/toolcrib-was-here"),
        "write at the root": lambda: write("/toolcrib-was-here"),
        "write a device": lambda: write("/dev/toolcrib-was-here"),
        "list named memory": lambda: os.listdir("/dev/shm") and None,
    }


def processes() -> dict[str, Callable[[], object]]:
    service = int(os.environ["SERVICE"])
    return {
        "environment of the service": lambda: read(f"/proc/{service}/environ"),
        "memory of the service": lambda: read(f"/proc/{service}/mem"),
        "files of the service": lambda: os.readlink(f"/proc/{service}/fd/0"),
        "signal to the service": lambda: os.kill(service, 0),
    }


def calls() -> dict[str, Callable[[], object]]:
    return {
        "ptrace": lambda: call("ptrace", ATTACH, NOBODY, 0, 0),
        "process_vm_readv": lambda: call("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0),
        "pidfd_getfd": lambda: call("pidfd_getfd", os.pidfd_open(os.getpid()), 0, 0),
        "io_uring_setup": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
        "unshare": lambda: call("unshare", 0),
        "clone with a namespace": clone,
        "clone3": lambda: call("clone3", 0, 0),
        "setns": lambda: call("setns", 0, 0),
        "mount": lambda: call("mount", 0, 0, 0, 0, 0),
        "fsopen": lambda: call("fsopen", b"tmpfs", 0),
        "open_tree": lambda: call("open_tree", -100, b"/", 0),
        "chroot": lambda: call("chroot", b"/"),
        "keyctl": lambda: call("keyctl", 0, -3, 0),
        "bpf": lambda: call("bpf", 0, 0, 0),
        "perf_event_open": lambda: call("perf_event_open", 0, 0, -1, -1, 0),
        "userfaultfd": lambda: call("userfaultfd", 1),
        "open_by_handle_at": lambda: call("open_by_handle_at", -100, 0, 0),
        "TIOCSTI": lambda: fcntl.ioctl(0, TIOCSTI, b"x"),
        "TIOCLINUX": lambda: fcntl.ioctl(0, TIOCLINUX, b"x"),
        "shmget": lambda: call("shmget", 0, 4096, 0o600),
        "mq_open": lambda: call("mq_open", b"toolcrib", 0o100 | 2, 0o600, 0),
    }


def call(name: str, *arguments: Any) -> int:
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    answer: int = libc.syscall(ctypes.c_long(NUMBERS[name]), *given)
    if answer < 0:
        raise OSError(ctypes.get_errno(), name)
    return answer


def clone() -> None:
    if call("clone", NEWUSER | CHILD_ENDS, 0, 0, 0, 0) == 0:
        os._exit(0)


def sockets(at: dict[str, Any]) -> dict[str, Callable[[], object]]:
    stream, datagram, raw = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
    v4, v6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
    return {
        "TCP": lambda: connect(v4, stream, at["tcp4"]),
        "TCP over IPv6": lambda: connect(v6, stream, at["tcp6"]),
        "UDP": lambda: send(v4, at["udp4"]),
        "UDP over IPv6": lambda: send(v6, at["udp6"]),
        "unix socket": lambda: connect(unix, stream, at["path"]),
        "abstract socket": lambda: connect(unix, stream, at["abstract"]),
        "datagram of a pair": lambda: socket.socketpair(unix, datagram)[0].sendto(b"x", at["datagrams"]),
        "Fast Open by sendto": lambda: socket.socket(v4).sendto(b"x", MSG_FASTOPEN, tuple(at["tcp4"])),
        "Fast Open by sendmsg": lambda: socket.socket(v4).sendmsg([b"x"], [], MSG_FASTOPEN, tuple(at["tcp4"])),
        "Fast Open by option": lambda: fast_open(at["tcp4"]),
        "MPTCP": lambda: socket.socket(v4, stream, 262),
        "SCTP": lambda: socket.socket(v4, stream, 132),
        "raw socket": lambda: socket.socket(v4, raw, 1),
        "packet socket": lambda: socket.socket(socket.AF_PACKET, raw, 0),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, raw, 0),
        "audit by netlink": lambda: socket.socket(socket.AF_NETLINK, raw, 9),
        "bind": lambda: socket.socket(v4).bind(("127.0.0.1", 0)),
        "listen": lambda: socket.socket(v4).listen(),
        "pair": socket.socketpair,
        "proxy": lambda: hello(at["proxy"]),
    }


def connect(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as mine:
        mine.settimeout(2)
        mine.connect(tuple(address) if isinstance(address, list) else address)


def send(family: int, address: list[Any]) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as mine:
        mine.sendto(b"x", tuple(address))


def fast_open(address: list[Any]) -> None:
    with socket.socket() as mine:
        mine.setsockopt(socket.IPPROTO_TCP, FASTOPEN_CONNECT, struct.pack("i", 1))
        mine.connect(tuple(address))
        mine.send(b"x")


def hello(address: list[Any]) -> None:
    with socket.create_connection(tuple(address), 5) as mine:
        if mine.recv(100) != b"hello from outside":
            raise OSError(errno.EPROTO, "somebody else answers")


def read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def write(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")


if __name__ == "__main__":
    main()
