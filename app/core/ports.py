"""The ports: Protocols of what the service needs from outside. The composition root passes the implementations in."""

import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, NamedTuple, Protocol

from app.core.calls import Call
from app.core.network_policy import NetworkPolicy, SessionSecrets
from app.core.sessions import Session

MAX_LOADED_BYTES = 64 * 1024 * 1024
EntryKind = Literal["file", "directory", "symlink", "other"]


class Clock(Protocol):
    """Wall-clock time for records, monotonic time for durations."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class Registrar(Protocol):
    """Who keeps secret values out of everything that is shown or kept."""

    def replace(self, values: Iterable[str]) -> None:
        """From now on exactly these values are redacted."""
        ...


class Sealer(Protocol):
    """Keeps bytes so that only this service can read them; `about` names what they belong to."""

    def seal(self, data: bytes, about: str) -> bytes: ...

    def open(self, sealed: bytes, about: str) -> bytes:
        """The bytes again. Raises `SealBroken` when they were changed, moved, or sealed with another key."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory."""

    name: str
    kind: EntryKind


@dataclass(frozen=True, slots=True)
class Stamp:
    """A state of a file. Changing the file, or replacing it by another one, changes the stamp."""

    device: int
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, about: os.stat_result) -> "Stamp":
        return cls(about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)

    @property
    def etag(self) -> str:
        """The state in a word, for those who compare it elsewhere. It tells nothing of the machine."""
        state = f"{self.device}:{self.inode}:{self.mtime_ns}:{self.size}"
        return hashlib.sha256(state.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole file as it was read; `mode` are its permission bits."""

    data: bytes
    stamp: Stamp
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to become of one path: `data` is its new content, None takes it away.

    `before` is the state it must still have then; None: there must be nothing yet. `mode` are the permission bits
    of a file that is new; None is the usual ones. One that is there keeps its own.
    """

    path: str
    data: bytes | BinaryIO | None
    before: Stamp | None
    mode: int | None = None


class PathScope(Protocol):
    """What `needs` may ask before anything runs."""

    def name(self, path: str) -> str:
        """The canonical workspace-relative path ("." is the root), symlinks resolved.

        Raises `OutsideWorkspace`. A path that does not exist is named by its nearest existing folder. What is in an
        extra root of the operator has an absolute name.
        """
        ...

    def folder(self, path: str) -> str:
        """The canonical name of the folder that a path is in, or is."""
        ...


class Workspace(PathScope, Protocol):
    """A folder tools may touch, and nothing outside it. Every path goes through the race-free opener."""

    @property
    def root(self) -> str:
        """The absolute path, for messages meant for the model."""
        ...

    @property
    def lane(self) -> str:
        """The name of the gate that orders work in this workspace."""
        ...

    def display(self, path: str) -> str:
        """The absolute form of a path as the caller gave it, for showing."""
        ...

    def open(self, path: str, *, approved: Collection[str] | None = None) -> BinaryIO:
        """Open a regular file for reading.

        With `approved`, the file that was opened must have one of these canonical names.
        Raises `OutsideWorkspace` or `FileFailed` (ENOENT, EACCES, EISDIR, EINVAL for pipes and devices …).
        """
        ...

    def scan(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[Entry]:
        """The entries of one directory, sorted by name; symlinks are listed, not followed."""
        ...

    def hold(self, path: str, *, approved: Collection[str] | None = None) -> AbstractContextManager[tuple[int, bool]]:
        """A directory or a regular file, open as long as the context lasts: its descriptor, and whether it is a file.

        Raises what `open` raises.
        """
        ...

    def closed_below(self, fd: int) -> str | None:
        """Where the service's records are below a folder that is held, seen from it; None where they are not."""
        ...

    def times(self, path: str, names: Iterable[str], *, approved: Collection[str] | None = None) -> list[int]:
        """When these files below one directory were changed, in nanoseconds; 0 for those that are gone."""
        ...

    def load(self, path: str, *, approved: Collection[str] | None = None, limit: int = MAX_LOADED_BYTES) -> Snapshot:
        """A whole regular file, and the state it was in. Raises `TooLarge` besides what `open` raises."""
        ...

    def stamp(self, path: str, *, approved: Collection[str] | None = None) -> Stamp | None:
        """The state of a regular file; None when there is nothing of that name."""
        ...

    def commit(self, changes: Sequence[Change], *, approved: Collection[str] | None = None) -> None:
        """Make all these changes, or none of them: what was made before one fails is put back.

        Each file is there whole at any moment, old or new; folders are made where they are missing. Raises
        `FileFailed` (ESTALE when a file is not in the state that is expected, EEXIST when it is there already, EROFS
        in a root for reading …), `PermissionDenied` in `.git`, `InvalidArgs` when a file is to be changed twice.
        """
        ...


class Upload(Protocol):
    """A file on its way in. What the disk refuses is `FileFailed`."""

    @property
    def id(self) -> str:
        """The unguessable id by which a call names it."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """It is whole now, and on the disk."""
        ...


class Uploads(Protocol):
    """Where files wait that came over HTTP, until the call that writes them has ended."""

    def begin(self) -> Upload:
        """Raises `TooBusy` when there is no room for one more."""
        ...

    def open(self, id: str) -> BinaryIO:
        """One that is whole. Raises `FileFailed` when it is not there."""
        ...

    def discard(self, id: str) -> None:
        """Take it away, whole or not; one that is not there is fine."""
        ...

    def sweep(self, kept: Collection[str]) -> int:
        """Take away all but these, which an earlier start left; the answer is how many."""
        ...


class WorkspaceLocator(Protocol):
    """The folders sessions work in. What is asked for badly raises `InvalidSession`."""

    @property
    def home(self) -> str:
        """The service's own workspace, symlinks resolved: that of every session without another one."""
        ...

    def of(self, session: Session) -> Workspace:
        """Where a session works. Raises `ToolUnavailable` when that is not there any more."""
        ...

    def real(self, path: str) -> str:
        """A path as paths are compared: absolute, symlinks resolved. Whether it exists is not said."""
        ...

    def locate(self, principal: str, asked: str) -> str | None:
        """Where a folder is that a session of this principal may have; None for the service's own workspace.

        Whether it exists is not said. A relative path starts in the service's own workspace.
        """
        ...

    def enter(self, root: str) -> None:
        """Open a folder that was located or made, for the sessions to come."""
        ...

    def make(self, principal: str, id: str) -> str:
        """Make a fresh folder for a session that brings none."""
        ...

    def discard(self, root: str) -> None:
        """Take back a folder that was just made and is not used after all; one with something in it stays."""
        ...


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What ripgrep answered: its exit code (1: nothing found), and its output up to a limit.

    `name` is the canonical name of what was searched, and the names in the output are relative to it; `is_file`: that
    was one file, and they mean nothing. `is_cut`: there was more, and which part of it came first is chance unless it
    was asked to sort. Code 2 without output on stderr: some files could not be read.
    """

    code: int
    stdout: bytes
    stderr: bytes
    is_file: bool
    is_cut: bool = False
    name: str = "."


class Searcher(Protocol):
    """Runs ripgrep inside a workspace. It sees what it is pointed at, and what lies below that."""

    async def search(
        self,
        workspace: Workspace,
        path: str,
        arguments: Sequence[str],
        *,
        approved: Collection[str] | None,
        seconds: float,
        limit: int,
    ) -> SearchResult:
        """Search a folder or one file with these arguments of `rg`. Ripgrep is stopped when it has said enough.

        Raises `ToolUnavailable` when there is no ripgrep, `TimedOut`, `TooLarge` when it took too much memory, and
        what opening the path raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A secret that goes along with a request, by name: only the wire out ever sees its value."""

    secret: str
    into: Literal["header", "query", "cookie"] = "header"
    name: str = "Authorization"
    form: Literal["plain", "bearer", "basic"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request to the world."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[SecretUse, ...] = ()
    body: bytes | None = None
    timeout: float = 30.0
    limit: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What the world answered; `is_cut` when there was more than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    is_cut: bool = False


Agree = Callable[[str], Awaitable[None]]
"""Asked before a redirect to another host is followed; raises what keeps it from being."""


class Outbound(Protocol):
    """The wire out. Every address is checked, and the checked one is connected to; redirects go hop by hop."""

    async def send(
        self,
        request: HttpRequest,
        *,
        owner: str,
        policies: Sequence[NetworkPolicy | None] = (),
        agree: Agree | None = None,
        lent: SessionSecrets | None = None,
    ) -> HttpResponse:
        """Send it with the secrets of this owner. Placeholders of lent secrets in its headers become their values
        where the host is within their domain, and stay what they are elsewhere. Raises `NetworkError`,
        `NetworkTimeout`, `DNSError`, `PermissionDenied` when a policy or a secret's domains do not allow the host,
        `ToolUnavailable` when a secret is missing, `InvalidArgs` for what cannot be a request."""
        ...


class TraceContext(NamedTuple):
    """W3C trace context, as the two headers say it."""

    traceparent: str
    tracestate: str | None = None


class Trace(Protocol):
    """One call as those who follow requests through many services see it: one stage after the other, then its end."""

    @property
    def context(self) -> TraceContext:
        """What a request that belongs to this call brings along."""
        ...

    def stage(self, name: str) -> None:
        """The stage before is over and this one begins; the one under way goes on."""
        ...

    def end(self, call: Call, failure: BaseException | None) -> None:
        """The call is over; with `failure`, its record could not be written."""
        ...


class Tracer(Protocol):
    """Traces calls, never their arguments or results."""

    def begin(self, call: Call, origin: TraceContext | None) -> Trace:
        """Follow a call from its first stage on, as part of where it came from. What is no trace context is none."""
        ...
