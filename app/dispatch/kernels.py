"""Kernels: the interpreters of sessions, each started when it is first needed."""

from collections.abc import Mapping

from app.core.errors import ToolUnavailable
from app.core.kernels import Kernel, Recipe
from app.core.ports import Workspace
from app.core.walls import WalledProcesses
from app.dispatch.running import LiveCall


class Kernels:
    """All kernels of all sessions, at most one of a kind in each."""

    def __init__(self, walled: WalledProcesses, recipes: Mapping[str, Recipe]) -> None:
        self._walled = walled
        self._recipes = recipes

    async def get(self, live: LiveCall, workspace: Workspace, kind: str, memory: int | None) -> Kernel:
        raise ToolUnavailable("There are no interpreters yet.")

    async def drop(self, principal: str, session: str, kind: str) -> bool:
        return False

    async def end_session(self, principal: str, session: str) -> None:
        """The session is deleted, and so is what runs in it."""

    async def close(self) -> None:
        """The service stops."""
