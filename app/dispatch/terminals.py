"""Terminals: the processes of sessions that go on between calls, each with its number."""

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.ports import Workspace
from app.core.terminals import Terminal, TerminalView
from app.core.walls import Command, WalledProcesses
from app.dispatch.running import LiveCall


class Terminals:
    """All terminals of all sessions."""

    def __init__(self, walled: WalledProcesses) -> None:
        self._walled = walled

    async def open(self, live: LiveCall, workspace: Workspace, command: Command, shown: str) -> Terminal:
        raise ToolUnavailable("There are no terminals yet.")

    def get(self, live: LiveCall, id: int) -> Terminal:
        raise InvalidArgs(f"Unknown process id {id}")

    def list(self, principal: str, session: str) -> list[TerminalView]:
        return []

    async def end_session(self, principal: str, session: str) -> None:
        """The session is deleted, and so is what runs in it."""

    async def close(self) -> None:
        """The service stops."""
