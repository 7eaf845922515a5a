"""Canaries: real files, folders and listeners outside the sandbox. A probe is judged by what reached them.

Folders that must not be reachable have open permissions, so that nothing but the sandbox keeps a process out.
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
from app.sandbox.process.spawner import SpawnRequest
from app.sandbox.selftest import probes
from app.sandbox.selftest.probes import DONE, start_time

SHARED_FOLDERS = ("/tmp", "/var/tmp")
MAX_FILES = 4
BACKLOG = 16
ADDED_ENV = frozenset({"PWD", "TOOLCRIB_PROCESS"})
"""Variables that are not in the request: bwrap's own, and the mark of the process tree."""
NOTHING_YET = (errno.EAGAIN, errno.EWOULDBLOCK)

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
    """Everything that a probe may write, read or reach, and everything it must not. `undo` removes it again."""

    def __init__(self, data_dir: str | None, identity: tuple[int, int] | None, undo: ExitStack) -> None:
        self._name = f"toolcrib-canary-{secrets.token_hex(8)}"
        self._base = os.path.realpath(tempfile.mkdtemp(prefix="toolcrib-selftest-"))
        undo.callback(shutil.rmtree, self._base, ignore_errors=True)
        os.chmod(self._base, 0o755)
        self._make_folders(identity)
        self._listen(undo)
        undo.callback(self._remove_outside_files)
        self._records = {"state": self.state, **_files_in(data_dir)}

    @property
    def targets(self) -> dict[str, Any]:
        """The arguments of the probe."""
        return {
            "workspace": self.workspace,
            "outside": self._outside(),
            "records": self._records,
            "service": os.getpid(),
            "tcp": {name: listener.getsockname()[:2] for name, listener in self._tcp.items()},
            "udp": {name: listener.getsockname()[:2] for name, listener in self._udp.items()},
            "unix": {"path": f"{self.workspace}/socket", "abstract": f"@{self._name}"},
        }

    def judge(self, results: dict[str, Any], request: SpawnRequest) -> Iterator[Probe]:
        """All probes but the one that is judged after the process has ended."""
        reached = self._reached()
        yield _probe("workspace_write", _write_failures(results["write"], f"{self.workspace}/written"))
        yield _probe("outside_write", self._wrote_outside(results["outside"]))
        yield _probe("state_read", _done(results["records"]))
        yield _probe("service_environ", _saw_service(results["service"]))
        yield _probe("tcp", _done(results["tcp"], results["fastopen"]) or reached & {*self._tcp})
        yield _probe("udp", _done(results["udp"]) or reached & {*self._udp})
        yield _probe("unix_sockets", _done(results["unix"]) or reached & {*self._unix})
        yield _probe("service_signal", _signaled(results))
        yield _probe("system_calls", _allowed_calls(results["calls"]))
        yield _probe("limits", list(_loose_limits(results, request)))
        yield _probe("privileges", list(_privileged(results, request)))

    def judge_end(self, results: dict[str, Any]) -> Probe:
        """Whether what the process left behind is gone: a lock is held as long as a process with it is alive."""
        if not results["orphan"]:
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
        self.temp_dir, self._open = f"{self._base}/temporary", f"{self._base}/outside"
        modes = {self.workspace: 0o700, self.temp_dir: 0o700, self.state: 0o755, self._open: 0o777}
        for path, mode in modes.items():
            os.mkdir(path)
            os.chmod(path, mode)
        if identity is not None:
            os.chown(self.workspace, *identity)
            os.chown(self.temp_dir, *identity)
        with open(f"{self.state}/canary", "wb") as file:
            file.write(b"no sandboxed process can read this\n")

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
            self.unused_port: int = unused.getsockname()[1]
        os.chmod(f"{self.workspace}/socket", 0o777)

    def _outside(self) -> dict[str, str]:
        """Where a probe tries to write, by names without paths of this machine."""
        names = {"a folder open to all": self._open} | {path: path for path in SHARED_FOLDERS if os.path.isdir(path)}
        return {name: f"{folder}/{self._name}" for name, folder in names.items()}

    def _remove_outside_files(self) -> None:
        for path in self._outside().values():
            with suppress(OSError):
                os.unlink(path)

    def _wrote_outside(self, results: dict[str, str]) -> list[str]:
        """A write to a private folder of the same name does not count."""
        return [name for name, path in self._outside().items() if name in results and os.path.lexists(path)]

    def _reached(self) -> set[str]:
        """The listeners that were reached, whatever the probe reported."""
        return {name for name, one in (self._tcp | self._udp | self._unix).items() if _has_connection(one)}


def _probe(name: str, failures: Iterable[str]) -> Probe:
    if listed := sorted(failures):
        return Probe(name, False, f"{FAILURES[name]}: {', '.join(listed)}.")
    return Probe(name, True, DETAILS[name])


def _files_in(folder: str | None) -> dict[str, str]:
    """The data directory and the first files in it, if it exists."""
    if folder is None or not os.path.isdir(folder):
        return {}
    with os.scandir(folder) as entries:
        files = islice((entry.path for entry in entries if entry.is_file(follow_symlinks=False)), MAX_FILES)
        return {"the data directory": folder} | {f"record {n}": path for n, path in enumerate(files, 1)}


def _listener(undo: ExitStack, family: int, kind: int, address: Any) -> socket.socket:
    one = socket.socket(family, kind)
    undo.callback(one.close)
    one.setblocking(False)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen(BACKLOG)
    return one


def _has_connection(one: socket.socket) -> bool:
    try:
        if one.type == socket.SOCK_DGRAM:
            one.recv(1)
        else:
            one.accept()[0].close()
    except OSError as error:
        return error.errno not in NOTHING_YET
    return True


def _write_failures(outcome: str, path: str) -> list[str]:
    if outcome == DONE and os.path.isfile(path):
        return []
    return [outcome if outcome != DONE else "the written file does not exist"]


def _done(*attempts: dict[str, str]) -> set[str]:
    return {name for attempt in attempts for name, outcome in attempt.items() if outcome == DONE}


def _saw_service(results: dict[str, str | None]) -> set[str]:
    """In a PID namespace the service's process id may be that of another process; then nothing of it was seen."""
    if results["began"] is not None and results["began"] != start_time(f"/proc/{os.getpid()}"):
        return set()
    return {name for name in ("environ", "mem", "root", "fd") if results[name] == DONE}


def _signaled(results: dict[str, Any]) -> set[str]:
    """In a PID namespace no process id is that of the service or the supervisor."""
    if results["pids"] is not None and results["pids"] != os.readlink("/proc/self/ns/pid"):
        return set()
    return _done(results["signals"])


def _allowed_calls(results: dict[str, str]) -> set[str]:
    """An unknown `ptrace` request is answered with EPERM by the filter only."""
    denied = {"ptrace": {"EPERM"}, "io_uring": {"EPERM", "ENOSYS"}}
    return {name for name, outcome in results.items() if outcome == DONE or outcome not in denied.get(name, {outcome})}


def _loose_limits(results: dict[str, Any], request: SpawnRequest) -> Iterator[str]:
    for name, limit in request.limits.items():
        if results["limits"].get(name) not in range(limit + 1):
            yield name
    if results["size"] != "EFBIG":
        yield "a file larger than the limit"
    if "NPROC" in request.limits and results["fork"] != "EAGAIN":
        yield "one process more than the limit"


def _privileged(results: dict[str, Any], request: SpawnRequest) -> Iterator[str]:
    status = results["status"]
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        if int(status.get(name, "1"), 16):
            yield name
    yield from (
        f"{name} is not {value}" for name, value in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status.get(name) != value
    )
    if int(status.get("Seccomp_filters", "1")) <= int(probes.status().get("Seccomp_filters", "0")):
        yield "no seccomp filter besides those of the service"
    if request.identity is not None and results["uid"] != request.identity[0]:
        yield "another user"
    if extra := [fd for fd in results["fds"] if fd > 2]:
        yield f"open files {extra}"
    if foreign := [name for name in results["environ"] if name not in request.env and name not in ADDED_ENV]:
        yield f"variables {foreign}"
