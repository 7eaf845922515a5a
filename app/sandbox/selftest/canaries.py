"""Canaries: real files, folders and listeners outside the walls. What was tried is judged by what reached them.

Folders that are meant to be out of reach are open to everybody, so that nothing but the walls keeps a process out.
"""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any

from app.core.sandbox import Probe
from app.sandbox.process.spawn_request import SpawnRequest
from app.sandbox.selftest import probes
from app.sandbox.selftest.probes import DONE, began

SHARED = ("/tmp", "/var/tmp")
MOST_RECORDS = 4
BACKLOG = 16
ADDED = frozenset({"PWD", "TOOLCRIB_PROCESS"})
"""Variables that come along without being ordered: bwrap's own, and the mark by which trees are found."""
LATE = (errno.EAGAIN, errno.EWOULDBLOCK)

DETAILS = {
    "workspace_write": "The workspace can be written.",
    "outside_write": "Nothing outside the workspace can be written.",
    "state_read": "The service's records cannot be read.",
    "service_environ": "The environment and memory of the service cannot be seen.",
    "tcp": "No TCP connection can be made.",
    "udp": "No UDP packet can be sent.",
    "unix_sockets": "No Unix socket can be reached.",
    "service_signal": "The service cannot be signaled.",
    "system_calls": "ptrace, io_uring and new namespaces are denied.",
    "tree_kill": "Whatever a process leaves behind ends with it.",
    "limits": "The limits bite.",
    "privileges": "No privileges, no foreign variables and no open files come along.",
}
FAILURES = {
    "workspace_write": "The workspace cannot be written",
    "outside_write": "Written outside the workspace",
    "state_read": "The service's records can be read",
    "service_environ": "Seen of the service",
    "tcp": "TCP gets out",
    "udp": "UDP gets out",
    "unix_sockets": "Unix sockets can be reached",
    "service_signal": "Can be signaled",
    "system_calls": "System calls that are let through",
    "limits": "Limits that do not bite",
    "privileges": "What is too much",
}
NAMES = tuple(DETAILS)


class Canaries:
    """Everything that a probe may write, read or reach, and everything it must not. `undo` takes it all away again."""

    def __init__(self, records: str | None, identity: tuple[int, int] | None, undo: ExitStack) -> None:
        self._name = f"toolcrib-canary-{secrets.token_hex(8)}"
        self._base = os.path.realpath(tempfile.mkdtemp(prefix="toolcrib-selftest-"))
        undo.callback(shutil.rmtree, self._base, ignore_errors=True)
        os.chmod(self._base, 0o755)
        self._make_folders(identity)
        self._listen(undo)
        undo.callback(self._tidy)
        self._records = {"state": self.state, **_records(records)}

    @property
    def proxy(self) -> int:
        """A port where nobody listens, for walls that need one to let a process through to."""
        return self._unused

    @property
    def asked(self) -> dict[str, Any]:
        """What the probe is told."""
        return {
            "workspace": self.workspace,
            "outside": self._outside(),
            "records": self._records,
            "service": os.getpid(),
            "tcp": {name: one.getsockname()[:2] for name, one in self._tcp.items()},
            "udp": {name: one.getsockname()[:2] for name, one in self._udp.items()},
            "unix": {"path": f"{self.workspace}/socket", "abstract": f"@{self._name}"},
        }

    def judge(self, told: dict[str, Any], order: SpawnRequest) -> Iterator[Probe]:
        """All but what is seen only once the process is gone."""
        arrived = self._arrived()
        yield _probe("workspace_write", _is_written(told["write"], f"{self.workspace}/written"))
        yield _probe("outside_write", self._wrote_outside(told["outside"]))
        yield _probe("state_read", _done(told["records"]))
        yield _probe("service_environ", _saw_service(told["service"]))
        yield _probe("tcp", _done(told["tcp"], told["fastopen"]) or arrived & {*self._tcp})
        yield _probe("udp", _done(told["udp"]) or arrived & {*self._udp})
        yield _probe("unix_sockets", _done(told["unix"]) or arrived & {*self._unix})
        yield _probe("service_signal", _signaled(told))
        yield _probe("system_calls", _passed(told["calls"]))
        yield _probe("limits", list(_loose(told, order)))
        yield _probe("privileges", list(_privileged(told, order)))

    def judge_end(self, told: dict[str, Any]) -> Probe:
        """Whether what the process left behind is gone: a lock is held as long as anybody is alive who has it."""
        if not told["orphan"]:
            return Probe("tree_kill", False, "No process could be left behind, so its end cannot be seen.")
        fd = os.open(f"{self.workspace}/alive", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Probe("tree_kill", False, "A process in a session of its own outlived the one that started it.")
        finally:
            os.close(fd)
        return Probe("tree_kill", True, DETAILS["tree_kill"])

    def _make_folders(self, identity: tuple[int, int] | None) -> None:
        self.workspace, self.state = f"{self._base}/workspace", f"{self._base}/state"
        self.temporary, self._open = f"{self._base}/temporary", f"{self._base}/outside"
        modes = {self.workspace: 0o700, self.temporary: 0o700, self.state: 0o755, self._open: 0o777}
        for path, mode in modes.items():
            os.mkdir(path)
            os.chmod(path, mode)
        if identity is not None:
            os.chown(self.workspace, *identity)
            os.chown(self.temporary, *identity)
        with open(f"{self.state}/canary", "wb") as file:
            file.write(b"nobody behind walls reads this\n")

    def _listen(self, undo: ExitStack) -> None:
        kinds = (("v4", socket.AF_INET, "127.0.0.1"), ("v6", socket.AF_INET6, "::1"))
        self._tcp, self._udp, self._unix = dict[str, socket.socket](), dict[str, socket.socket](), {}
        for name, family, address in kinds:
            with suppress(OSError):  # a machine without IPv6
                self._tcp[f"tcp {name}"] = _listener(undo, family, socket.SOCK_STREAM, (address, 0))
                self._udp[f"udp {name}"] = _listener(undo, family, socket.SOCK_DGRAM, (address, 0))
        for name, address in (("socket file", f"{self.workspace}/socket"), ("abstract socket", f"\0{self._name}")):
            self._unix[name] = _listener(undo, socket.AF_UNIX, socket.SOCK_STREAM, address)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self._unused: int = unused.getsockname()[1]
        os.chmod(f"{self.workspace}/socket", 0o777)

    def _outside(self) -> dict[str, str]:
        """Where a probe tries to write, by words that tell nothing of this machine."""
        names = {"a folder open to all": self._open} | {path: path for path in SHARED if os.path.isdir(path)}
        return {name: f"{folder}/{self._name}" for name, folder in names.items()}

    def _tidy(self) -> None:
        for path in self._outside().values():
            with suppress(OSError):
                os.unlink(path)

    def _wrote_outside(self, told: dict[str, str]) -> list[str]:
        """What a process wrote into a folder of its own with the same name did not arrive."""
        return [name for name, path in self._outside().items() if name in told and os.path.lexists(path)]

    def _arrived(self) -> set[str]:
        """Which listeners somebody came to, whatever was told."""
        return {name for name, one in (self._tcp | self._udp | self._unix).items() if _has_visitor(one)}


def _probe(name: str, wrong: Iterable[str]) -> Probe:
    if found := sorted(wrong):
        return Probe(name, False, f"{FAILURES[name]}: {', '.join(found)}.")
    return Probe(name, True, DETAILS[name])


def _records(folder: str | None) -> dict[str, str]:
    """The service's own records, as far as they are there: the folder and the first of what is in it."""
    if folder is None or not os.path.isdir(folder):
        return {}
    with os.scandir(folder) as entries:
        files = islice((entry.path for entry in entries if entry.is_file(follow_symlinks=False)), MOST_RECORDS)
        return {"the data directory": folder} | {f"record {n}": path for n, path in enumerate(files, 1)}


def _listener(undo: ExitStack, family: int, kind: int, address: Any) -> socket.socket:
    one = socket.socket(family, kind)
    undo.callback(one.close)
    one.setblocking(False)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen(BACKLOG)
    return one


def _has_visitor(one: socket.socket) -> bool:
    try:
        if one.type == socket.SOCK_DGRAM:
            one.recv(1)
        else:
            one.accept()[0].close()
    except OSError as error:
        return error.errno not in LATE
    return True


def _is_written(told: str, path: str) -> list[str]:
    if told == DONE and os.path.isfile(path):
        return []
    return [told if told != DONE else "what was written is not there"]


def _done(*attempts: dict[str, str]) -> set[str]:
    return {name for attempt in attempts for name, told in attempt.items() if told == DONE}


def _saw_service(told: dict[str, str | None]) -> set[str]:
    """Under the service's number there may be another process: then nothing of the service was seen."""
    if told["began"] is not None and told["began"] != began(f"/proc/{os.getpid()}"):
        return set()
    return {name for name in ("environ", "mem", "root", "fd") if told[name] == DONE}


def _signaled(told: dict[str, Any]) -> set[str]:
    """Where processes have numbers of their own, none of them is the service's or its keeper's."""
    if told["pids"] is not None and told["pids"] != os.readlink("/proc/self/ns/pid"):
        return set()
    return _done(told["signals"])


def _passed(told: dict[str, str]) -> set[str]:
    """`ptrace` is denied by nobody else with EPERM when it is asked for what it does not know."""
    denied = {"ptrace": {"EPERM"}, "io_uring": {"EPERM", "ENOSYS"}}
    return {name for name, said in told.items() if said == DONE or said not in denied.get(name, {said})}


def _loose(told: dict[str, Any], order: SpawnRequest) -> Iterator[str]:
    for name, limit in order.limits.items():
        if told["limits"].get(name) not in range(limit + 1):
            yield name
    if told["size"] != "EFBIG":
        yield "a file larger than the largest"
    if "NPROC" in order.limits and told["fork"] != "EAGAIN":
        yield "one process more than the most"


def _privileged(told: dict[str, Any], order: SpawnRequest) -> Iterator[str]:
    status = told["status"]
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        if int(status.get(name, "1"), 16):
            yield name
    yield from (
        f"{name} is not {value}" for name, value in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status.get(name) != value
    )
    if int(status.get("Seccomp_filters", "1")) <= int(probes.status().get("Seccomp_filters", "0")):
        yield "no filter but those of the service itself"
    if order.identity is not None and told["uid"] != order.identity[0]:
        yield "another user"
    if more := [fd for fd in told["fds"] if fd > 2]:
        yield f"open files {more}"
    if foreign := [name for name in told["environ"] if name not in order.env and name not in ADDED]:
        yield f"variables {foreign}"
