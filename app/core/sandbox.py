"""Walls: what stands between a process that a model started and the rest of the machine, and what runs behind them.

Profiles: where a process that a model started may write besides its own temporary folder.

Inspections: whether the walls hold, tried from behind them and not believed, and what is told of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from app.core.network_policy import NetworkPolicy
from app.core.ports import Workspace
from app.core.sandbox_profile import Profile
from app.core.sessions import Session

GRACE = 2.0
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
    def walls(self) -> Isolation: ...

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

    def listen(self, take: Callable[[OutputChunk], None]) -> None:
        """From now on `take` gets what it writes, the moment it comes; `read` only waits for the end."""
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

    async def end(self, grace: float = GRACE) -> ExitStatus:
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


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """A secret that goes along with requests to one domain, and what stands for it behind the walls."""

    name: str
    domain: str
    placeholder: str


@dataclass(frozen=True, slots=True)
class SessionSecrets:
    """Secrets of a session that requests of its tools may take along, by what stands for them."""

    owner: str
    placed: tuple[BoundSecret, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGrant:
    """What a process behind walls may reach: hosts that every policy allows and at least one of them lists.

    With a `token`, who does not show it as the password of the proxy is sent away. Every decision is told.
    """

    owner: str
    policies: Sequence[NetworkPolicy | None]
    tell: Callable[[NetworkDecision], None]
    secrets: tuple[BoundSecret, ...] = ()
    token: str | None = None


class Egress(Protocol):
    """The one way out of the walls: a proxy that judges every connection."""

    def serve(self, listener: int, leave: EgressGrant) -> AbstractAsyncContextManager[None]:
        """Accept on a listening socket, by its descriptor, which is taken over. At the end every connection is cut."""
        ...


class SandboxedProcesses(Protocol):
    """Starts what a model wrote, behind walls, or not at all."""

    def walls(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        """What would stand around a process of this session; None while that is not known, or nothing would."""
        ...

    async def start(
        self, command: Command, session: Session, workspace: Workspace, tell: Callable[[NetworkDecision], None]
    ) -> Process:
        """Raises `SandboxUnavailable`, `FileFailed` for a folder or program that is not there, `OutsideWorkspace`."""
        ...
