"""Contexts for tools that run without a dispatcher."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.errors import ToolUnavailable
from app.core.ports import HttpRequest, HttpResponse, SearchResult, Workspace
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.tools import MAX_SEARCH_BYTES, Context, McpResources, Tool


@dataclass(kw_only=True)
class StubContext(Context):
    """Allows every permission and has nothing else: no network, no processes, no other tools."""

    id: str = "call_1"
    session_id: str = "ses_1"
    workspace: Workspace = field(default_factory=lambda: cast(Workspace, None))

    @property
    def session(self) -> Session:
        return Session("toy", "default")

    @property
    def back_channel(self) -> BackChannel | None:
        return None

    @property
    def mcp_resources(self) -> McpResources:
        raise ToolUnavailable("No MCP servers in this context.")

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        pass

    async def output(self, text: str, stream: str = "stdout") -> None:
        pass

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None = None) -> None:
        pass

    def is_allowed(self, needs: Sequence[Need]) -> list[bool]:
        return [True] * len(needs)

    async def elicit(self, request: dict[str, Any]) -> Answer:
        raise ToolUnavailable("No person in this context.")

    async def send(self, request: HttpRequest) -> HttpResponse:
        raise ToolUnavailable("No network in this context.")

    async def environment(self) -> dict[str, str]:
        return {}

    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = MAX_SEARCH_BYTES
    ) -> SearchResult:
        raise ToolUnavailable("No ripgrep in this context.")

    def tools(self) -> list[Tool]:
        return []

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        raise ToolUnavailable("No other tools in this context.")

    async def save_plan(self, plan: dict[str, Any]) -> None:
        pass

    def upload(self, id: str) -> BinaryIO:
        raise ToolUnavailable("No uploads in this context.")

    async def start(self, command: Command) -> Process:
        raise ToolUnavailable("No processes in this context.")

    async def open_terminal(self, command: Command, title: str) -> Terminal:
        raise ToolUnavailable("No processes in this context.")

    def terminal(self, id: int) -> Terminal:
        raise ToolUnavailable("No processes in this context.")

    def kernel(self, kind: str, memory: int | None = None) -> AbstractAsyncContextManager[Kernel]:
        raise ToolUnavailable("No processes in this context.")

    async def drop_kernel(self, kind: str) -> bool:
        return False

    def reset_timeout(self) -> None:
        pass
