"""Seccomp: the system calls that nothing behind walls may use, in whichever tier.

Most calls are allowed: this is no list of what programs need, but of what leads past the other walls: other
processes' memory, new namespaces and mounts, rings that do input and output unseen, keys, handles and kernel modules,
input pushed into a terminal, and sockets. `clone3` shows its flags by a pointer that a filter cannot follow; it is
answered as not there, and the C library takes `clone` instead. A call in another architecture's words ends the process.

Sockets, by the network behind the walls:

    none       not one. Only pairs of connected ones, which lead nowhere else.
    allowlist  TCP and nothing beside it: no UDP, MPTCP, SCTP or raw sockets. Also no Fast Open, by which data reaches a
               port without the `connect` that Landlock watches, and outside a network namespace no `listen`.
    full       the internet families, and what tells of routes.

A unix socket is nobody's: neither the network namespace nor a read-only file system stops one that has a path. A pair
of them must be of a connected kind, because one of datagrams can still send to every address.

A small assembler for the programs by which the kernel filters system calls (classic BPF).

A program reads numbers of the call it judges, jumps forward, and returns a verdict.
"""

import ctypes
import errno
import os
import struct
from functools import cache

from app.sandbox.isolation.syscall_table import ARCHITECTURES, NUMBERS
from app.sandbox.syscalls import answered, libc

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from typing import Literal

    Network = Literal["none", "allowlist", "full"]


LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
FARTHEST = 255

NUMBER, ARCHITECTURE = 0, 4
"""Where in what the kernel shows these two are found."""


def argument(index: int) -> int:
    """Where the low half of an argument is found; both architectures begin with the low half."""
    return 16 + 8 * index


class Assembler:
    """Steps in their order. A jump names labels that are set later; without a label it goes to the next step."""

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

    def answer(self, verdict: int) -> None:
        self._steps.append((RETURN, verdict, None, None))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._steps)

    def name(self) -> str:
        """A label that nobody else has."""
        self._count += 1
        return f"#{self._count}"

    def assemble(self) -> bytes:
        return b"".join(
            struct.pack("<HBBI", code, self._distance(index, yes), self._distance(index, no), value)
            for index, (code, value, yes, no) in enumerate(self._steps)
        )

    def _distance(self, index: int, label: str | None) -> int:
        distance = self._labels[label] - index - 1 if label else 0
        if not 0 <= distance <= FARTHEST:
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
"""What all processes of a user share unless they have an IPC namespace of their own."""

X32 = 0x40000000
NAMESPACES = 0x7E020000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
KIND, STREAM, SEQPACKET = 0xF, 1, 5
ANY_PROTOCOL, TCP = 0, 6
TCP_FASTOPEN_CONNECT = 30
MSG_FASTOPEN = 0x20000000
FLAGS_OF = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}

PR_SET_SECCOMP, FILTER = 22, 2
STEP_BYTES = 8


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


@cache
def program(network: "Network", *, has_namespaces: bool, machine: str = os.uname().machine) -> bytes:
    """The filter for a network; `has_namespaces` says that IPC and network are its own."""
    if machine not in NUMBERS:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    rules = _Rules(NUMBERS[machine])
    rules.begin(machine)
    for name in DENIED if has_namespaces else DENIED + SHARED:
        rules.deny(name)
    rules.deny("clone3", errno.ENOSYS)
    rules.deny_bits("clone", 0, NAMESPACES)
    rules.deny_values("ioctl", 1, (TIOCSTI, TIOCLINUX))
    rules.pairs()
    if network == "none":
        rules.deny("socket")
    elif network == "allowlist":
        rules.tcp_only(may_listen=has_namespaces)
    else:
        rules.internet()
    rules.steps.answer(ALLOW)
    return rules.steps.assemble()


def install(program: bytes) -> None:
    """For good, for this thread and whatever it starts. It has given up new privileges before. Raises `OSError`."""
    steps = ctypes.create_string_buffer(program, len(program))
    about = _Program(len(program) // STEP_BYTES, ctypes.addressof(steps))
    answered(libc().prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(about), 0, 0))


class _Rules:
    """Rules on the way to becoming a program. One that looks at arguments answers in every case."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.steps = Assembler()
        self._numbers = numbers

    def begin(self, machine: str) -> None:
        steps = self.steps
        steps.load(ARCHITECTURE)
        steps.jump(EQUAL, ARCHITECTURES[machine], yes="ours")
        steps.answer(KILL)
        steps.label("ours")
        steps.load(NUMBER)
        if machine == "x86_64":  # the same processor's second set of numbers
            steps.jump(AT_LEAST, X32, no="not x32")
            self._refuse()
            steps.label("not x32")

    def deny(self, name: str, reason: int = errno.EPERM) -> None:
        after = self._only(name)
        self._refuse(reason)
        self.steps.label(after)

    def deny_bits(self, name: str, index: int, bits: int) -> None:
        after, clean = self._only(name), self.steps.name()
        self.steps.load(argument(index))
        self.steps.jump(ANY_BIT, bits, no=clean)
        self._refuse()
        self._allow_from(clean)
        self.steps.label(after)

    def deny_values(self, name: str, index: int, values: tuple[int, ...]) -> None:
        after, denied = self._only(name), self.steps.name()
        self.steps.load(argument(index))
        for value in values:
            self.steps.jump(EQUAL, value, yes=denied)
        self.steps.answer(ALLOW)
        self.steps.label(denied)
        self._refuse()
        self.steps.label(after)

    def pairs(self) -> None:
        after = self._only("socketpair")
        self._require(0, (AF_UNIX,))
        self._require(1, (STREAM, SEQPACKET), KIND)
        self.steps.answer(ALLOW)
        self.steps.label(after)

    def tcp_only(self, *, may_listen: bool) -> None:
        after = self._only("socket")
        self._require(0, (AF_INET, AF_INET6))
        self._require(1, (STREAM,), KIND)
        self._require(2, (ANY_PROTOCOL, TCP))
        self.steps.answer(ALLOW)
        self.steps.label(after)
        for name, index in FLAGS_OF.items():
            self.deny_bits(name, index, MSG_FASTOPEN)
        self._no_fast_open()
        if not may_listen:
            self.deny("listen")

    def internet(self) -> None:
        after, internet = self._only("socket"), self.steps.name()
        self.steps.load(argument(0))
        self.steps.jump(EQUAL, AF_INET, yes=internet)
        self.steps.jump(EQUAL, AF_INET6, yes=internet)
        self._require(0, (AF_NETLINK,))
        self._require(2, (NETLINK_ROUTE,))
        self._allow_from(internet)
        self.steps.label(after)

    def _no_fast_open(self) -> None:
        after, other = self._only("setsockopt"), self.steps.name()
        self.steps.load(argument(1))
        self.steps.jump(EQUAL, TCP, no=other)
        self.steps.load(argument(2))
        self.steps.jump(EQUAL, TCP_FASTOPEN_CONNECT, no=other)
        self._refuse()
        self._allow_from(other)
        self.steps.label(after)

    def _only(self, name: str) -> str:
        """What follows is for this call; answers with the label for all others, to be set at its end."""
        after = self.steps.name()
        self.steps.jump(EQUAL, self._numbers[name], no=after)
        return after

    def _require(self, index: int, values: tuple[int, ...], mask: int | None = None) -> None:
        """Refuse unless an argument has one of these values."""
        fine = self.steps.name()
        self.steps.load(argument(index))
        if mask is not None:
            self.steps.mask(mask)
        for value in values:
            self.steps.jump(EQUAL, value, yes=fine)
        self._refuse()
        self.steps.label(fine)

    def _refuse(self, reason: int = errno.EPERM) -> None:
        self.steps.answer(ERRNO | reason)

    def _allow_from(self, label: str) -> None:
        self.steps.label(label)
        self.steps.answer(ALLOW)
