"""ripgrep, the trusted program that searches workspaces: the one on PATH, else the one that was installed with us."""

from collections.abc import Collection, Sequence

from app.core.errors import ToolUnavailable
from app.core.ports import Found, Processes, Workspace


class Ripgrep:
    """The `Searcher` port."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def search(
        self,
        workspace: Workspace,
        path: str,
        arguments: Sequence[str],
        *,
        approved: Collection[str] | None,
        seconds: float,
        limit: int,
    ) -> Found:
        raise ToolUnavailable("There is no ripgrep on this machine.")
