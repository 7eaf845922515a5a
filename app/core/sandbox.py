"""Walls: what stands between a process that a model started and the rest of the machine, and what runs behind them.

Profiles: where a process that a model started may write besides its own temporary folder.

Inspections: whether the walls hold, tried from behind them and not believed, and what is told of it.
"""

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
"""Seconds between a kind signal and the last one."""


class Backend(StrEnum):
    """What makes the walls, from the strongest to none at all."""

    BWRAP = "bwrap"
    LANDLOCK = "landlock"
    NONE = "none"


class Network(StrEnum):
    NONE = "none"
    ALLOWLIST = "allowlist"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What stands around a process. `is_degraded`: what lets only listed hosts through is weaker than it should be."""

    backend: Backend
    profile: Profile
    network: Network
    is_degraded: bool = False
    is_escalated: bool = False

    def view(self) -> dict[str, Any]:
        """As the record of a call tells it."""
        body: dict[str, Any] = {"backend": self.backend, "profile": self.profile, "network": self.network}
        if self.is_degraded:
            body["degraded"] = True
        return body | {"escalated": True} if self.is_escalated else body


NO_ISOLATION = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)


class WindowSize(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to be started behind a session's walls.

    `folder` is a path in the workspace. `env` comes on top of what every process gets. Without `has_stdin` and `tty`
    it reads nothing; with `tty` it has a terminal for all of input and output. With `has_channel` its descriptors 3
    and 4 are a second way in and out, for programs of our own. `memory` and `profile` can only narrow what the
    operator set. `is_escalated`: no walls, because somebody who may has said so.
    """

    argv: tuple[str, ...]
    folder: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    has_stdin: bool = False
    tty: WindowSize | None = None
    has_channel: bool = False
    memory: int | None = None
    profile: Profile | None = None
    is_escalated: bool = False


class ExitStatus(NamedTuple):
    """How a process ended: its exit code (128 and the number for a signal), and the limit that ended it, if one did."""

    code: int
    limit: Literal["memory", "processes"] | None = None


class OutputChunk(NamedTuple):
    """What a process wrote, as it came. A terminal has one stream, `stdout`."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Process(Protocol):
    """A process behind walls, as long as it lives and a moment longer. Everything it started ends with it."""

    @property
    def isolation(self) -> Isolation: ...

    @property
    def ended(self) -> ExitStatus | None:
        """None while the first process lives."""
        ...

    async def read(self, until: Literal["stdout", "stderr"] | None = None) -> OutputChunk | None:
        """What it wrote next; None when there will be no more, or no more of the stream named. What is not read makes
        it wait.

        After its end this waits no longer than a moment for what others hold open. One reader at a time; a read that
        is canceled loses nothing.
        """
        ...

    def listen(self, listener: Callable[[OutputChunk], None]) -> None:
        """From now on `listener` gets what it writes, the moment it comes; `read` only waits for the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input. Raises `BrokenPipeError` when it takes none (any more)."""
        ...

    def write_now(self, data: bytes) -> int:
        """Give it as much input as it has room for, while nobody else is writing; the answer is how many bytes that
        were. Raises `BrokenPipeError` as `write` does."""
        ...

    def close_input(self) -> None:
        """It gets no more input: the end of the file, or on a terminal Ctrl-D."""
        ...

    async def send(self, line: bytes) -> None:
        """A line into its channel. Raises `BrokenPipeError` when nobody reads there any more."""
        ...

    async def receive(self) -> bytes | None:
        """The next line of its channel, without its end; None when there will be no more."""
        ...

    async def wait(self) -> ExitStatus:
        """Wait for the end of the first process."""
        ...

    def signal(self, number: int) -> None:
        """To the group of the first process; on a terminal to that in the foreground."""
        ...

    def resize(self, window: WindowSize) -> None: ...

    async def end(self, grace: float = GRACE_SECONDS) -> ExitStatus:
        """A kind signal to the whole tree, then after `grace` seconds one that cannot be refused (0: at once).

        When this comes back nothing of it is alive. It is done to its end, whoever cancels it.
        """
        ...

    async def close(self) -> None:
        """Kill what is left, and let go of pipes and folders. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """What became of a connection that a process behind walls wanted."""

    host: str
    port: int
    is_allowed: bool
    reason: str

    def view(self) -> dict[str, Any]:
        verdict = "allow" if self.is_allowed else "deny"
        return {"host": self.host, "port": self.port, "verdict": verdict, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGrant:
    """What a process behind walls may reach: hosts that every policy allows and at least one of them lists.

    With a `token`, who does not show it as the password of the proxy is sent away. Every decision is told.
    """

    owner: str
    policies: Sequence[NetworkPolicy | None]
    report: Callable[[NetworkDecision], None]
    secrets: tuple[BoundSecret, ...] = ()
    token: str | None = None


class Egress(Protocol):
    """The one way out of the walls: a proxy that judges every connection."""

    def serve(self, listener: int, leave: EgressGrant) -> AbstractAsyncContextManager[None]:
        """Accept on a listening socket, by its descriptor, which is taken over. At the end every connection is cut."""
        ...


class SandboxedProcesses(Protocol):
    """Starts what a model wrote, behind walls, or not at all."""

    def isolation(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        """What would stand around a process of this session; None while that is not known, or nothing would."""
        ...

    async def start(
        self, command: Command, session: Session, workspace: Workspace, tell: Callable[[NetworkDecision], None]
    ) -> Process:
        """Raises `SandboxUnavailable`, `FileFailed` for a folder or program that is not there, `OutsideWorkspace`."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended: its exit code (negative: the signal), and what it wrote, up to a limit.

    `is_cut`: it was to be ended as soon as it had written more than that, and had.
    """

    code: int
    stdout: bytes
    stderr: bytes
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfinement:
    """How far a program reaches that works on what others wrote, as far as the kernel can see to it.

    It opens nothing for reading but these (open descriptors or paths), what is below them, itself and the system's
    libraries; `memory` is the most address space it gets, in bytes.
    """

    readable: tuple[int | str, ...]
    memory: int


class Processes(Protocol):
    """Starts the operator's own programs: each in a group of its own, killed whole when its time is over."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Process:
        """Start one that stays, with input and output. Who closes it ends its whole tree.

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
        """Run it to its end, or `until_full`: until it has written more than the limit.

        `cwd` may be `/proc/self/fd/N`, a folder that is held open here; what is in `pass_fds` stays open there, too.
        Raises `TimeoutError`, or `OSError` when it cannot be started.
        """
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that was tried behind walls. `detail` says what happened, without paths of this machine."""

    name: str
    ok: bool
    detail: str

    def view(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class BackendTrial:
    """A backend that was tried. `reason` is why it is not used; None when it may be. `said`: by its program."""

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
    """What the machine has to build walls with. None is what nobody looked for, because no walls were asked for."""

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
    """What stands around processes here, why, and what it does not keep out.

    `backend` None: nothing does, and no process is started. `uid` is whom processes become; None: whoever the service
    is. `profile` and `network` are the operator's; sessions can only narrow them.
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
        """For everybody who may read calls: nothing of this machine but what a call's record tells, too."""
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
    """Knows whether the walls hold."""

    @property
    def report(self) -> SandboxReport | None:
        """The newest; None before the first is done."""
        ...

    async def known(self) -> SandboxReport:
        """The newest, waiting for the first."""
        ...

    async def renew(self) -> SandboxReport:
        """Try everything again, now. Who asks while that goes on gets the same answer."""
        ...
