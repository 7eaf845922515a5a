"""Seccomp: the system calls that no sandboxed program may use, with either backend.

Most calls are allowed: this is no list of what programs need, but of what bypasses the rest of the isolation: other
processes' memory, new namespaces and mounts, io_uring, keys, file handles and kernel modules, input pushed into a
terminal, and sockets. `clone3` passes its flags by a pointer that a filter cannot follow; it answers ENOSYS, and the C
library uses `clone` instead. A call of another architecture kills the process.

Sockets, by the network of the sandbox:

    none       none. Only connected socket pairs, which lead nowhere else.
    allowlist  TCP only: no UDP, MPTCP, SCTP or raw sockets. Also no Fast Open, by which data reaches a port without the
               `connect` that Landlock checks, and outside a network namespace no `listen`.
    full       the internet families, and netlink routes.

Unix sockets are denied: neither the network namespace nor a read-only file system stops one that has a path. A socket
pair must be connection-oriented, because a datagram one can still send to any address.
"""

import ctypes
import errno
import os
import struct
from functools import cache

from app.sandbox.syscalls import check_errno, libc

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from typing import Literal

    Network = Literal["none", "allowlist", "full"]

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH values."""

_COMMON = {
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433},
    **{"clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443},
    **{"open_tree_attr": 467},
}

SYSCALLS = {
    "x86_64": {
        **_COMMON,
        **{"ioctl": 16, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "sendto": 44, "sendmsg": 46},
        **{"listen": 50, "socketpair": 53, "setsockopt": 54, "clone": 56, "semget": 64, "semop": 65, "semctl": 66},
        **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "ptrace": 101, "syslog": 103, "pivot_root": 155},
        **{"chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169},
        **{"init_module": 175, "delete_module": 176, "quotactl": 179, "semtimedop": 220, "mq_open": 240},
        **{"mq_unlink": 241, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272},
        **{"perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "sendmmsg": 307, "setns": 308},
        **{"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313},
        **{"kexec_file_load": 320, "bpf": 321, "userfaultfd": 323},
    },
    "aarch64": {
        **_COMMON,
        **{"ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89},
        **{"unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117},
        **{"reboot": 142, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188},
        **{"msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194},
        **{"shmctl": 195, "shmat": 196, "socket": 198, "socketpair": 199, "listen": 201, "sendto": 206},
        **{"setsockopt": 208, "sendmsg": 211, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220},
        **{"swapon": 224, "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265},
        **{"setns": 268, "sendmmsg": 269, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294},
    },
}

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MAX_JUMP = 255

NUMBER, ARCHITECTURE = 0, 4
"""Offsets in `struct seccomp_data`."""


def argument(index: int) -> int:
    """The offset of the low half of an argument; both architectures are little-endian."""
    return 16 + 8 * index


class Assembler:
    """Assembles a classic BPF program. A jump names labels that are set later; without one it goes to the next step."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}
        self._count = 0

    def load(self, offset: int) -> None:
        self._steps.append((LOAD, offset, None, None))

    def mask(self, bits: int) -> None:
        self._steps.append((AND, bits, None, None))

    def jump(self, code: int, value: int, *, yes: str | None = None, no: str | None = None) -> None:
        self._steps.append((code, value, yes, no))

    def ret(self, verdict: int) -> None:
        self._steps.append((RETURN, verdict, None, None))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._steps)

    def new_label(self) -> str:
        self._count += 1
        return f"#{self._count}"

    def assemble(self) -> bytes:
        return b"".join(
            struct.pack("<HBBI", code, self._distance(index, yes), self._distance(index, no), value)
            for index, (code, value, yes, no) in enumerate(self._steps)
        )

    def _distance(self, index: int, label: str | None) -> int:
        distance = self._labels[label] - index - 1 if label else 0
        if not 0 <= distance <= MAX_JUMP:
            raise ValueError(f"the jump from step {index} to {label} is {distance} steps")
        return distance


DENIED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "mount_setattr"),
    *("open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "fanotify_init"),
    *("open_by_handle_at", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("swapon", "swapoff", "reboot", "acct", "quotactl", "quotactl_fd", "syslog"),
)
SHARED = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
"""Shared by all processes of a user that have no IPC namespace of their own."""

X32 = 0x40000000
NAMESPACE_FLAGS = 0x7E020000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
TYPE_MASK, STREAM, SEQPACKET = 0xF, 1, 5
ANY_PROTOCOL, TCP = 0, 6
TCP_FASTOPEN_CONNECT = 30
MSG_FASTOPEN = 0x20000000
FLAGS_ARGUMENT = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
STEP_BYTES = 8


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


@cache
def program(network: "Network", *, has_namespaces: bool, machine: str = os.uname().machine) -> bytes:
    """The filter for a network; `has_namespaces`: the process has its own IPC and network namespaces."""
    if machine not in SYSCALLS:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    rules = _Rules(SYSCALLS[machine])
    rules.begin(machine)
    for name in DENIED if has_namespaces else DENIED + SHARED:
        rules.deny(name)
    rules.deny("clone3", errno.ENOSYS)
    rules.deny_bits("clone", 0, NAMESPACE_FLAGS)
    rules.deny_values("ioctl", 1, (TIOCSTI, TIOCLINUX))
    rules.allow_connected_pairs()
    if network == "none":
        rules.deny("socket")
    elif network == "allowlist":
        rules.allow_tcp_only(may_listen=has_namespaces)
    else:
        rules.allow_internet()
    rules.steps.ret(ALLOW)
    return rules.steps.assemble()


def install(program: bytes) -> None:
    """Install a filter for this thread and what it starts; no_new_privs must be set. Raises `OSError`."""
    steps = ctypes.create_string_buffer(program, len(program))
    description = _Program(len(program) // STEP_BYTES, ctypes.addressof(steps))
    check_errno(libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(description), 0, 0))


class _Rules:
    """Builds the program rule by rule. A rule that looks at arguments always returns a verdict."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.steps = Assembler()
        self._numbers = numbers

    def begin(self, machine: str) -> None:
        steps = self.steps
        steps.load(ARCHITECTURE)
        steps.jump(EQUAL, ARCHITECTURES[machine], yes="ours")
        steps.ret(KILL)
        steps.label("ours")
        steps.load(NUMBER)
        if machine == "x86_64":  # the x32 ABI of the same processor
            steps.jump(AT_LEAST, X32, no="not x32")
            self._refuse()
            steps.label("not x32")

    def deny(self, name: str, reason: int = errno.EPERM) -> None:
        after = self._for_call(name)
        self._refuse(reason)
        self.steps.label(after)

    def deny_bits(self, name: str, index: int, bits: int) -> None:
        after, clean = self._for_call(name), self.steps.new_label()
        self.steps.load(argument(index))
        self.steps.jump(ANY_BIT, bits, no=clean)
        self._refuse()
        self._allow_from(clean)
        self.steps.label(after)

    def deny_values(self, name: str, index: int, values: tuple[int, ...]) -> None:
        after, denied = self._for_call(name), self.steps.new_label()
        self.steps.load(argument(index))
        for value in values:
            self.steps.jump(EQUAL, value, yes=denied)
        self.steps.ret(ALLOW)
        self.steps.label(denied)
        self._refuse()
        self.steps.label(after)

    def allow_connected_pairs(self) -> None:
        after = self._for_call("socketpair")
        self._require(0, (AF_UNIX,))
        self._require(1, (STREAM, SEQPACKET), TYPE_MASK)
        self.steps.ret(ALLOW)
        self.steps.label(after)

    def allow_tcp_only(self, *, may_listen: bool) -> None:
        after = self._for_call("socket")
        self._require(0, (AF_INET, AF_INET6))
        self._require(1, (STREAM,), TYPE_MASK)
        self._require(2, (ANY_PROTOCOL, TCP))
        self.steps.ret(ALLOW)
        self.steps.label(after)
        for name, index in FLAGS_ARGUMENT.items():
            self.deny_bits(name, index, MSG_FASTOPEN)
        self._deny_fast_open()
        if not may_listen:
            self.deny("listen")

    def allow_internet(self) -> None:
        after, internet = self._for_call("socket"), self.steps.new_label()
        self.steps.load(argument(0))
        self.steps.jump(EQUAL, AF_INET, yes=internet)
        self.steps.jump(EQUAL, AF_INET6, yes=internet)
        self._require(0, (AF_NETLINK,))
        self._require(2, (NETLINK_ROUTE,))
        self._allow_from(internet)
        self.steps.label(after)

    def _deny_fast_open(self) -> None:
        after, other = self._for_call("setsockopt"), self.steps.new_label()
        self.steps.load(argument(1))
        self.steps.jump(EQUAL, TCP, no=other)
        self.steps.load(argument(2))
        self.steps.jump(EQUAL, TCP_FASTOPEN_CONNECT, no=other)
        self._refuse()
        self._allow_from(other)
        self.steps.label(after)

    def _for_call(self, name: str) -> str:
        """The following steps are for this call; the label for all other calls, to be set at their end."""
        after = self.steps.new_label()
        self.steps.jump(EQUAL, self._numbers[name], no=after)
        return after

    def _require(self, index: int, values: tuple[int, ...], mask: int | None = None) -> None:
        """Refuse unless an argument has one of these values."""
        fine = self.steps.new_label()
        self.steps.load(argument(index))
        if mask is not None:
            self.steps.mask(mask)
        for value in values:
            self.steps.jump(EQUAL, value, yes=fine)
        self._refuse()
        self.steps.label(fine)

    def _refuse(self, reason: int = errno.EPERM) -> None:
        self.steps.ret(ERRNO | reason)

    def _allow_from(self, label: str) -> None:
        self.steps.label(label)
        self.steps.ret(ALLOW)
