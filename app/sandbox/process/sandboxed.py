"""Walled processes: what a model wrote, behind what this machine can put around it, or not at all."""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from app.core.errors import CallError, FileFailed, SandboxUnavailable, ToolUnavailable
from app.core.network_policy import NetworkPolicy
from app.core.ports import Workspace
from app.core.sandbox import Backend, Command, Egress, Isolation, Network, NetworkDecision, Process, SandboxInspector
from app.core.sessions import Profile, Session, narrower
from app.sandbox.files.roots import whereabouts
from app.sandbox.isolation.planner import ProcessLocation, SpawnPlanner, network_of
from app.sandbox.isolation.proxy_access import Secrets, open_exit
from app.sandbox.process.child import LocalProcess
from app.sandbox.process.spawn_request import NotStarted, SpawnRequest
from app.sandbox.process.spawner import Spawned, Spawner
from app.sandbox.process.temp_dirs import TemporaryFolders

DEGRADED = (
    "This session may reach only listed hosts, which the walls of this machine (landlock) cannot tell apart. The "
    "operator can allow user namespaces, so that bubblewrap is used, or accept it with `sandbox.egress_degraded_ok`."
)
UNREACHABLE = (
    "Processes become another user here, and a folder above the workspace lets that user not through. The operator can "
    "open it (`chmod o+x`), put workspaces elsewhere, or run the service as an ordinary user."
)
TOO_NARROW = (
    "This session asks for {wish}, and this service runs processes without any walls that could keep to it; "
    "use a session without that, or ask the operator for a sandbox."
)
ESCALATED = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL, is_escalated=True)


class SandboxedProcessStarter:
    """The `WalledProcesses` port. Who comes before the walls were inspected for the first time waits for that."""

    def __init__(
        self,
        spawner: Spawner,
        planner: SpawnPlanner,
        inspector: SandboxInspector,
        egress: Egress,
        *,
        policy: NetworkPolicy | None,
        secret: Secrets,
    ) -> None:
        self._spawner = spawner
        self._planner = planner
        self._inspector = inspector
        self._egress = egress
        self._policy = policy
        self._secret = secret
        self._folders = TemporaryFolders(planner.data_dir, planner.identity)

    def sweep(self) -> None:
        """Take away what a service that was killed left behind."""
        self._folders.sweep()

    def close(self) -> None:
        self._folders.close()

    def isolation(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        if is_escalated:
            return ESCALATED
        report = self._inspector.report
        if report is None or report.backend is None:
            return None
        try:
            return self._walls(report.backend, session)
        except SandboxUnavailable:
            return None

    async def start(
        self, command: Command, session: Session, workspace: Workspace, tell: Callable[[NetworkDecision], None]
    ) -> Process:
        walls = ESCALATED if command.is_escalated else await self._choose(command, session)
        stand = await asyncio.to_thread(self._stand, workspace, command.folder)
        async with AsyncExitStack() as undo:
            if walls.backend is not Backend.BWRAP:
                stand = replace(stand, temporary=self._folders.new())
                undo.push_async_callback(self._folders.drop, str(stand.temporary))
            way = open_exit(walls, session, self._policy, self._secret, tell)
            if way.leave is not None and way.listener is not None:
                await undo.enter_async_context(self._egress.serve(way.listener, way.leave))
            spawned = await self._spawn(command, self._planner.order(command, walls, stand, way))
            child = SandboxedProcess(spawned, walls, undo.pop_all())
        if way.leave is not None and spawned.listener is not None:
            await child.hold(self._egress.serve(spawned.listener, way.leave))
        return child

    async def _spawn(self, command: Command, order: SpawnRequest) -> Spawned:
        try:
            return await self._spawner.start(
                order, tty=command.tty, has_stdin=command.has_stdin, has_channel=command.has_channel
            )
        except OSError as error:
            raise _explained(error, command) from error

    async def _choose(self, command: Command, session: Session) -> Isolation:
        report = await self._inspector.known()
        if report.backend is None:
            raise SandboxUnavailable(f"No process is started here. {report.reason} `toolcrib doctor` tells more.")
        return self._walls(report.backend, session, command.profile)

    def _walls(self, backend: Backend, session: Session, profile: Profile | None = None) -> Isolation:
        settings = self._planner.settings
        profile = narrower(settings.profile, session.profile, profile)
        if backend is Backend.NONE:
            _require_wide(session, profile)
            return Isolation(backend, Profile.WORKSPACE_WRITE, Network.FULL)
        network = network_of(settings.network, (self._policy, session.network_policy))
        is_degraded = backend is Backend.LANDLOCK and network is Network.ALLOWLIST
        if is_degraded and not settings.egress_degraded_ok:
            raise SandboxUnavailable(DEGRADED)
        return Isolation(backend, profile, network, is_degraded)

    def _stand(self, workspace: Workspace, folder: str) -> ProcessLocation:
        """Where the process begins. What the folder becomes until then is no matter: the walls are there already."""
        with workspace.hold(".") as (fd, _):
            home, closed = whereabouts(fd) or os.path.realpath(workspace.root), workspace.closed_below(fd)
            about = os.fstat(fd)
        if not self._planner.reaches(home):
            raise SandboxUnavailable(UNREACHABLE)
        return ProcessLocation(
            workspace=home,
            root=workspace.root,
            cwd=workspace.root if folder == "." else _folder(workspace, folder),
            inode=(about.st_dev, about.st_ino),
            hidden=() if closed is None else (os.path.join(home, closed),),
        )


def _folder(workspace: Workspace, path: str) -> str:
    """A folder in the workspace or in an extra root, by its whole path."""
    with workspace.hold(path) as (_, is_file):
        if is_file:
            raise FileFailed(errno.ENOTDIR, path, f"{path} is a file; a process needs a folder to work in.")
        return os.path.normpath(os.path.join(workspace.root, workspace.name(path)))


def _require_wide(session: Session, profile: Profile) -> None:
    """Without walls nothing can be narrowed, and nobody is to believe that it was."""
    policy = session.network_policy
    if profile is Profile.READ_ONLY:
        raise SandboxUnavailable(TOO_NARROW.format(wish="processes that only read"))
    if policy is not None and policy.type != "open":
        raise SandboxUnavailable(TOO_NARROW.format(wish="processes that do not reach every host"))


def _explained(error: OSError, command: Command) -> CallError:
    """What the model can do about it, or nothing that it could."""
    number, program = error.errno or errno.EIO, command.argv[0]
    stage = error.stage if isinstance(error, NotStarted) else None
    if stage == "folder":
        return FileFailed(number, command.folder)
    if stage == "program":
        told = "there is no such program" if number == errno.ENOENT else os.strerror(number)
        return FileFailed(number, program, f"{program} cannot be started: {told}.")
    if stage is None:
        return ToolUnavailable(f"No process can be started now: {os.strerror(number)}.")
    return SandboxUnavailable(f"The walls around a process could not be built: {os.strerror(number)}.")


class SandboxedProcess(LocalProcess):
    """The `Process` port, with what was made for a process and goes with it."""

    def __init__(self, spawned: Spawned, walls: Isolation, undo: AsyncExitStack) -> None:
        super().__init__(spawned, walls)
        self._undo = undo
        self._closing: asyncio.Task[None] | None = None

    async def hold(self, context: AbstractAsyncContextManager[None]) -> None:
        """Until the process is closed. Where that cannot be, there is no process either."""
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
