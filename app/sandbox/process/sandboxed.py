"""Starts the processes of models in the sandbox, with their temporary folders."""

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace

from app.core.errors import CallError, FileFailed, SandboxUnavailable, ToolUnavailable
from app.core.network_policy import NetworkPolicy
from app.core.ports import Workspace
from app.core.sandbox import Backend, Command, Egress, Isolation, Network, NetworkDecision, Process, SandboxInspector
from app.core.sessions import Profile, Session, narrower
from app.sandbox.files.openat2 import O_PATH
from app.sandbox.files.roots import path_of
from app.sandbox.isolation.planner import FindSecret, ProcessLocation, SpawnPlanner, allow_proxy, network_of
from app.sandbox.process.local_process import LocalProcess, SpawnedProcess
from app.sandbox.process.spawner import NotStarted, Spawner, SpawnRequest

DEGRADED = (
    "This session may reach only listed hosts, and the sandbox of this machine (landlock) cannot distinguish hosts. "
    "The operator can allow user namespaces, so that bubblewrap is used, or set `sandbox.egress_degraded_ok`."
)
UNREACHABLE = (
    "Processes run as another user here, who cannot enter a folder above the workspace. The operator can open it "
    "(`chmod o+x`), put workspaces elsewhere, or run the service as an ordinary user."
)
NOT_ENFORCED = (
    "This session asks for {restriction}, but this service runs processes without a sandbox and cannot enforce it; "
    "use a session without that, or ask the operator for a sandbox."
)
ESCALATED = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL, is_escalated=True)
TEMP_PREFIX = "toolcrib"


class SandboxedProcessStarter:
    """The `SandboxedProcesses` port. Calls that come before the first self-test has ended wait for it."""

    def __init__(
        self,
        spawner: Spawner,
        planner: SpawnPlanner,
        inspector: SandboxInspector,
        egress: Egress,
        *,
        policy: NetworkPolicy | None,
        find_secret: FindSecret,
    ) -> None:
        self._spawner = spawner
        self._planner = planner
        self._inspector = inspector
        self._egress = egress
        self._policy = policy
        self._find_secret = find_secret
        self._temp_dirs = TempDirs(planner.data_dir, planner.identity)

    def sweep(self) -> None:
        """Remove what a service that was killed left behind."""
        self._temp_dirs.sweep()

    def close(self) -> None:
        self._temp_dirs.close()

    def isolation(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        if is_escalated:
            return ESCALATED
        report = self._inspector.report
        if report is None or report.backend is None:
            return None
        try:
            return self._isolation(report.backend, session)
        except SandboxUnavailable:
            return None

    async def start(
        self, command: Command, session: Session, workspace: Workspace, report: Callable[[NetworkDecision], None]
    ) -> Process:
        isolation = ESCALATED if command.is_escalated else await self._choose(command, session)
        location = await asyncio.to_thread(self._locate, workspace, command.folder)
        async with AsyncExitStack() as undo:
            if isolation.backend is not Backend.BWRAP:
                location = replace(location, temp_dir=self._temp_dirs.new())
                undo.push_async_callback(self._temp_dirs.drop, str(location.temp_dir))
            access = allow_proxy(isolation, session, self._policy, self._find_secret, report)
            if access.grant is not None and access.listener is not None:
                await undo.enter_async_context(self._egress.serve(access.listener, access.grant))
            spawned = await self._spawn(command, self._planner.request(command, isolation, location, access))
            process = SandboxedProcess(spawned, isolation, undo.pop_all())
        if access.grant is not None and spawned.listener is not None:
            await process.hold(self._egress.serve(spawned.listener, access.grant))
        return process

    async def _spawn(self, command: Command, request: SpawnRequest) -> SpawnedProcess:
        try:
            return await self._spawner.start(
                request, tty=command.tty, has_stdin=command.has_stdin, has_channel=command.has_channel
            )
        except OSError as error:
            raise _to_call_error(error, command) from error

    async def _choose(self, command: Command, session: Session) -> Isolation:
        report = await self._inspector.known()
        if report.backend is None:
            raise SandboxUnavailable(f"No process is started here. {report.reason} `toolcrib doctor` tells more.")
        return self._isolation(report.backend, session, command.profile)

    def _isolation(self, backend: Backend, session: Session, profile: Profile | None = None) -> Isolation:
        settings = self._planner.settings
        profile = narrower(settings.profile, session.profile, profile)
        if backend is Backend.NONE:
            _require_unrestricted(session, profile)
            return Isolation(backend, Profile.WORKSPACE_WRITE, Network.FULL)
        network = network_of(settings.network, (self._policy, session.network_policy))
        is_degraded = backend is Backend.LANDLOCK and network is Network.ALLOWLIST
        if is_degraded and not settings.egress_degraded_ok:
            raise SandboxUnavailable(DEGRADED)
        return Isolation(backend, profile, network, is_degraded)

    def _locate(self, workspace: Workspace, folder: str) -> ProcessLocation:
        """Where the process starts. The folder may be replaced until then: the sandbox holds all the same."""
        with workspace.hold(".") as (fd, _):
            home, closed = path_of(fd) or os.path.realpath(workspace.root), workspace.closed_below(fd)
            status = os.fstat(fd)
        if not self._planner.reaches(home):
            raise SandboxUnavailable(UNREACHABLE)
        return ProcessLocation(
            workspace=home,
            root=workspace.root,
            cwd=workspace.root if folder == "." else _folder(workspace, folder),
            inode=(status.st_dev, status.st_ino),
            hidden=() if closed is None else (os.path.join(home, closed),),
        )


def _folder(workspace: Workspace, path: str) -> str:
    """The absolute path of a folder in the workspace or in an extra root."""
    with workspace.hold(path) as (_, is_file):
        if is_file:
            raise FileFailed(errno.ENOTDIR, path, f"{path} is a file; a process needs a folder to work in.")
        return os.path.normpath(os.path.join(workspace.root, workspace.name(path)))


def _require_unrestricted(session: Session, profile: Profile) -> None:
    """Without a sandbox no restriction can be enforced, so a session that has one is refused."""
    policy = session.network_policy
    if profile is Profile.READ_ONLY:
        raise SandboxUnavailable(NOT_ENFORCED.format(restriction="processes that only read"))
    if policy is not None and policy.type != "open":
        raise SandboxUnavailable(NOT_ENFORCED.format(restriction="processes that do not reach every host"))


def _to_call_error(error: OSError, command: Command) -> CallError:
    number, program = error.errno or errno.EIO, command.argv[0]
    stage = error.stage if isinstance(error, NotStarted) else None
    if stage == "cwd":
        return FileFailed(number, command.folder)
    if stage == "program":
        reason = "there is no such program" if number == errno.ENOENT else os.strerror(number)
        return FileFailed(number, program, f"{program} cannot be started: {reason}.")
    if stage is None:
        return ToolUnavailable(f"No process can be started now: {os.strerror(number)}.")
    return SandboxUnavailable(f"The sandbox for a process could not be set up: {os.strerror(number)}.")


class SandboxedProcess(LocalProcess):
    """The `Process` port, with the resources that were opened for the process."""

    def __init__(self, spawned: SpawnedProcess, isolation: Isolation, undo: AsyncExitStack) -> None:
        super().__init__(spawned, isolation)
        self._undo = undo
        self._closing: asyncio.Task[None] | None = None

    async def hold(self, context: AbstractAsyncContextManager[None]) -> None:
        """Enter a context until the process is closed. If that fails, the process is closed."""
        try:
            await self._undo.enter_async_context(context)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await super().close()
        finally:
            await self._undo.aclose()


class TempDirs:
    """The temporary folders of processes, one for each, removed when it ends.

    All of a service are in one folder, whose name is made from the data directory. Only one service can use that, so
    what an earlier one left behind can be removed.
    """

    def __init__(self, data_dir: str, identity: tuple[int, int] | None) -> None:
        self._prefix = f"{TEMP_PREFIX}-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}-"
        self._identity = identity
        self._base: str | None = None

    def new(self) -> str:
        """A folder that only its process can read, by its path without symlinks."""
        if self._base is None or not os.path.isdir(self._base):
            self._base = os.path.realpath(tempfile.mkdtemp(prefix=self._prefix))
            os.chmod(self._base, 0o711)  # processes can enter it, but not list the folders of others
        path = f"{self._base}/{secrets.token_hex(8)}"
        os.mkdir(path, 0o700)
        if self._identity is not None:
            os.chown(path, *self._identity)
        return path

    async def drop(self, path: str) -> None:
        """Remove the folder of a process that has ended. Most are empty."""
        try:
            os.rmdir(path)
        except OSError:
            await asyncio.to_thread(self.remove, path)

    @staticmethod
    def remove(path: str) -> None:
        """By descriptors, so that no link in it leads out. What cannot be removed is left to the next start."""
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):  # a process may have taken away the permissions of its own folders
            _grant_access(path)
            shutil.rmtree(path, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a service that was killed left behind: only its own folders, and no link is followed."""
        with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
            for path in [entry.path for entry in entries if entry.name.startswith(self._prefix)]:
                status = os.lstat(path)
                if path != self._base and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    self.remove(path)

    def close(self) -> None:
        if self._base is not None:
            self.remove(self._base)
            self._base = None


def _grant_access(path: str) -> None:
    """Make every folder below a path accessible to the service before it is entered. No link is followed."""
    with suppress(OSError):
        os.chmod(path, 0o700)
    for _, folders, _, parent in os.fwalk(path):
        for name in folders:
            with suppress(OSError):
                fd = os.open(name, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                try:
                    os.chmod(f"/proc/self/fd/{fd}", 0o700)
                finally:
                    os.close(fd)
