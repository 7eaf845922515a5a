"""Processes without a sandbox, for tests of what starts them."""

import os
from collections.abc import Callable

from app.core.ports import Workspace
from app.core.sandbox import NO_ISOLATION, PLAIN_OUTPUT_ENV, Command, Isolation, NetworkDecision, Process
from app.core.sessions import Session
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import Spawner, SpawnRequest


class BareProcesses:
    """The `SandboxedProcesses` port without a sandbox."""

    def __init__(self, spawner: Spawner | None = None) -> None:
        self._spawner = spawner or Spawner()

    def isolation(self, session: Session, *, is_escalated: bool = False) -> Isolation | None:
        return NO_ISOLATION

    async def start(
        self, command: Command, session: Session, workspace: Workspace, tell: Callable[[NetworkDecision], None]
    ) -> Process:
        plain = PLAIN_OUTPUT_ENV if command.tty is None else {}
        order = SpawnRequest(
            argv=command.argv,
            env={"PATH": os.environ["PATH"], "HOME": workspace.root} | plain | dict(command.env),
            cwd=os.path.join(workspace.root, workspace.folder(command.folder)),
            memory=command.memory,
            has_terminal=command.tty is not None,
        )
        spawned = await self._spawner.start(
            order, tty=command.tty, has_stdin=command.has_stdin, has_channel=command.has_channel
        )
        return LocalProcess(spawned, NO_ISOLATION)
