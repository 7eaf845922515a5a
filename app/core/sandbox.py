"""Sandboxed processes: how they are isolated, the ports that start and control them, and the self-test's report."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from app.core.network_policy import BoundSecret, NetworkPolicy
from app.core.ports import Workspace
from app.core.sessions import Profile, Session
from app.core.util.clocks import rfc3339

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


class Backend(StrEnum):
    """What isolates processes, from the strongest to none."""

    BWRAP = "bwrap"
    LANDLOCK = "landlock"
    NONE = "none"


class Network(StrEnum):
    NONE = "none"
    ALLOWLIST = "allowlist"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a process is isolated. `is_degraded`: the restriction to listed hosts is weaker than it should be."""

    backend: Backend
    profile: Profile
    network: Network
    is_degraded: bool = False
    is_escalated: bool = False

    def view(self) -> dict[str, Any]:
        """As shown in the record of a call."""
        body: dict[str, Any] = {"backend": self.backend, "profile": self.profile, "network": self.network}
        if self.is_degraded:
            body["degraded"] = True
        return body | {"escalated": True} if self.is_escalated else body


NO_ISOLATION = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)


class WindowSize(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


PLAIN_OUTPUT_ENV = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
}
"""For programs whose output is read without a screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to be started in the sandbox of a session. Without `has_stdin` and `tty` it has no input."""

    argv: tuple[str, ...]
    #: A path in the workspace.
    folder: str = "."
    #: Added to the variables that every process gets.
    env: Mapping[str, str] = field(default_factory=dict)
    has_stdin: bool = False
    #: The size of its terminal, which is stdin, stdout and stderr in one.
    tty: WindowSize | None = None
    #: Descriptors 3 and 4 are a second input and output, for programs of the service.
    has_channel: bool = False
    #: These can only narrow what the operator set.
    memory: int | None = None
    profile: Profile | None = None
    #: Without a sandbox, because a person who may decide that has approved it.
    is_escalated: bool = False


class ExitStatus(NamedTuple):
    """How a process ended: its exit code (128 + the number for a signal), and the limit that it exceeded."""

    code: int
    limit: Literal["memory", "processes"] | None = None


class OutputChunk(NamedTuple):
    """A piece of output. A terminal has one stream, `stdout`."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Process(Protocol):
    """A running process, until its output is read. Everything it started ends with it."""

    @property
    def isolation(self) -> Isolation: ...

    @property
    def ended(self) -> ExitStatus | None:
        """None while the first process lives."""
        ...

    async def read(self, until: Literal["stdout", "stderr"] | None = None) -> OutputChunk | None:
        """The next output; None at the end, or at the end of the named stream. Output that is not read blocks it.

        After its end this waits only a moment for pipes that other processes hold open. One reader at a time; a read
        that is canceled loses nothing.
        """
        ...

    def listen(self, listener: Callable[[OutputChunk], None]) -> None:
        """From now on `listener` gets all output at once; `read` only waits for the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its input. Raises `BrokenPipeError` when it has none or does not read any more."""
        ...

    def write_now(self, data: bytes) -> int:
        """Write as much input as there is room for, unless another write is waiting; the number of bytes written.
        Raises `BrokenPipeError` as `write` does."""
        ...

    def close_input(self) -> None:
        """End its input: end of file, or Ctrl-D on a terminal."""
        ...

    async def send(self, line: bytes) -> None:
        """Send a line on its channel. Raises `BrokenPipeError` when it does not read any more."""
        ...

    async def receive(self) -> bytes | None:
        """The next line of its channel, without the newline; None at the end."""
        ...

    async def wait(self) -> ExitStatus:
        """Wait for the end of the first process."""
        ...

    def signal(self, number: int) -> None:
        """Signal the group of the first process; on a terminal the foreground group."""
        ...

    def resize(self, window: WindowSize) -> None: ...

    async def end(self, grace: float = GRACE_SECONDS) -> ExitStatus:
        """SIGTERM to the whole tree, and SIGKILL after `grace` seconds (0: at once).

        Nothing of it is alive when this returns, even when the caller is canceled.
        """
        ...

    async def close(self) -> None:
        """Kill what is left, and release pipes and folders. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """Whether a connection of a sandboxed process was allowed."""

    host: str
    port: int
    is_allowed: bool
    reason: str

    def view(self) -> dict[str, Any]:
        verdict = "allow" if self.is_allowed else "deny"
        return {"host": self.host, "port": self.port, "verdict": verdict, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGrant:
    """What a sandboxed process may reach: hosts that every policy allows and at least one of them lists.

    A client has to send the `token`, if there is one, as its proxy password. Every decision is reported.
    """

    owner: str
    policies: Sequence[NetworkPolicy | None]
    report: Callable[[NetworkDecision], None]
    secrets: tuple[BoundSecret, ...] = ()
    token: str | None = None


class Egress(Protocol):
    """The egress proxy, the only way out of the sandbox. It checks every connection."""

    def serve(self, listener: int, grant: EgressGrant) -> AbstractAsyncContextManager[None]:
        """Accept on a listening socket, whose descriptor it closes. At the end all connections are closed."""
        ...


class SandboxedProcesses(Protocol):
    """Starts the processes of models, in the sandbox or not at all."""

    def isolation(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        """How a process of this session would be isolated; None while that is unknown, or no process can be started."""
        ...

    async def start(
        self, command: Command, session: Session, workspace: Workspace, report: Callable[[NetworkDecision], None]
    ) -> Process:
        """Raises `SandboxUnavailable`, `FileFailed` for a folder or program that is not there, `OutsideWorkspace`."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended: its exit code (negative: the signal), and its output up to a limit.

    `is_cut`: it was ended because it wrote more than the limit.
    """

    code: int
    stdout: bytes
    stderr: bytes
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfinement:
    """Restricts a trusted program that processes untrusted input, where the kernel supports that.

    It can read only these (open descriptors or paths), what is below them, itself and the system's libraries;
    `memory` is its address space limit in bytes.
    """

    readable: tuple[int | str, ...]
    memory: int


class Processes(Protocol):
    """Starts the operator's own programs: each in a process group of its own, killed when its time is over."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Process:
        """Start a long-running process with input and output. Closing it ends its whole tree.

        Raises `OSError` when it cannot be started.
        """
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        pass_fds: Collection[int] = (),
        confines: FolderConfinement | None = None,
        seconds: float,
        limit: int = 1024 * 1024,
        until_full: bool = False,
    ) -> Finished:
        """Run a program to its end, or `until_full`: until it has written more than the limit.

        `cwd` may be `/proc/self/fd/N`, a folder that is open here; the descriptors in `pass_fds` stay open in it.
        Raises `TimeoutError`, or `OSError` when it cannot be started.
        """
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt to break out of the sandbox. `detail` says what happened, without paths of this machine."""

    name: str
    ok: bool
    detail: str

    def view(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class BackendTrial:
    """A backend that was tested. `reason` is why it is not used; None if it passed. `said`: stderr of the probe."""

    backend: Backend
    reason: str | None = None
    probes: tuple[Probe, ...] = ()
    said: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.reason is None

    def view(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "ok": self.ok,
            "reason": self.reason,
            "said": self.said,
            "probes": [probe.view() for probe in self.probes],
            "duration_ms": round(self.seconds * 1000, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """The sandbox features of this machine. None: not checked, because no sandbox is configured."""

    landlock_abi: int = 0
    has_seccomp: bool = False
    has_user_namespaces: bool | None = None
    bwrap_path: str | None = None
    bwrap_version: str | None = None

    def view(self) -> dict[str, Any]:
        bwrap = {"path": self.bwrap_path, "version": self.bwrap_version} if self.bwrap_path else None
        return {
            "landlock_abi": self.landlock_abi,
            "seccomp": self.has_seccomp,
            "user_namespaces": self.has_user_namespaces,
            "bwrap": bwrap,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """Which backend isolates processes, why, and what it does not protect.

    `backend` None: no process is started. `uid` is the user of processes; None: the user of the service. `profile` and
    `network` are the operator's; sessions can only narrow them.
    """

    backend: Backend | None
    requested: str
    reason: str
    profile: Profile
    network: Network
    is_degraded: bool = False
    uid: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    unprotected: tuple[str, ...] = ()
    trials: tuple[BackendTrial, ...] = ()
    machine: MachineInfo = MachineInfo()
    checked_at: int = 0

    def summary(self) -> dict[str, Any]:
        """For clients that may read calls: nothing about this machine that is not in the record of a call."""
        return {
            "backend": self.backend,
            "reason": self.reason,
            "profile": self.profile,
            "network": self.network,
            "degraded": self.is_degraded,
            "unprotected": list(self.unprotected),
            "checked_at": rfc3339(self.checked_at),
        }

    def view(self) -> dict[str, Any]:
        """For the operator."""
        return self.summary() | {
            "requested": self.requested,
            "uid": self.uid,
            "limits": dict(self.limits),
            "tried": [trial.view() for trial in self.trials],
            **self.machine.view(),
        }


class SandboxInspector(Protocol):
    """Runs the self-test of the sandbox and has its report."""

    @property
    def report(self) -> SandboxReport | None:
        """The latest report; None before the first self-test has ended."""
        ...

    async def known(self) -> SandboxReport:
        """The latest report, after waiting for the first one."""
        ...

    async def renew(self) -> SandboxReport:
        """Run the self-test now. Concurrent callers get the same report."""
        ...
