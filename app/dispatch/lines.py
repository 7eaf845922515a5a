"""The line as it is lent to a running tool: progress, output, permission, and calls of other tools."""

import asyncio
from typing import Any, Protocol

from app.core.calls import CallRequest
from app.core.errors import ToolUnavailable
from app.core.ports import Incoming, Outbound, Outgoing
from app.core.results import Result
from app.core.rules import Need
from app.core.sessions import Session
from app.core.tools import Tool
from app.dispatch.calls import outcome
from app.dispatch.journal import Journal
from app.dispatch.permissions import Permissions
from app.dispatch.running import LiveCall, Running

MAX_DEPTH = 8


class Callers(Protocol):
    """The part of the dispatcher a tool needs to call tools."""

    @property
    def running(self) -> Running: ...

    def submit(self, request: CallRequest, session: Session, *, parent: LiveCall | None) -> LiveCall: ...


class LentLine:
    """The `Line` port for one running call. What a tool left behind has nothing to say once the call has ended."""

    __slots__ = ("_callers", "_journal", "_live", "_outbound", "_owner", "_permissions")

    def __init__(
        self,
        live: LiveCall,
        journal: Journal,
        permissions: Permissions,
        callers: Callers,
        outbound: Outbound | None,
        owner: str,
    ) -> None:
        """`owner` is whose secrets go along with requests."""
        self._live = live
        self._journal = journal
        self._permissions = permissions
        self._callers = callers
        self._outbound = outbound
        self._owner = owner

    def progress(self, title: str | None, metadata: dict[str, Any] | None) -> None:
        if not self._live.call.is_final:
            self._journal.progress(self._live, title, metadata)

    async def output(self, text: str, stream: str) -> None:
        if not self._live.call.is_final:
            await self._journal.output(self._live, text, stream)

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None) -> None:
        await self._permissions.require(needs)

    async def send(self, request: Outgoing) -> Incoming:
        """With the secrets of the tool's owner. Where a redirect leads is judged like where it began."""
        if self._outbound is None:
            raise ToolUnavailable("This service sends no requests.")
        if self._live.call.is_final:
            raise ToolUnavailable("This call has ended and cannot send requests any more.")
        return await self._outbound.send(
            request,
            owner=self._owner,
            policies=[self._live.session.network_policy],
            agree=lambda host: self.require([Need("network", host)], {"redirect": True}),
        )

    async def environment(self) -> dict[str, str]:
        return {}

    def tools(self) -> list[Tool]:
        return []

    async def keep_plan(self, plan: dict[str, Any]) -> None:
        await self._journal.keep_plan(self._live, plan)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        """A child goes the whole line like any call, inside its parent's pass."""
        if self._live.call.is_final:
            raise ToolUnavailable("This call has ended and cannot call tools any more.")
        if _depth(self._live) >= MAX_DEPTH:
            raise ToolUnavailable(f"Tools called each other {MAX_DEPTH} deep; that is where it ends.")
        request = CallRequest(tool=tool, arguments=arguments, message_id=self._live.call.message_id)
        child = self._callers.submit(request, self._live.session, parent=self._live)
        try:
            await child.wait()
        except asyncio.CancelledError:
            await self._callers.running.cancel(child, self._live.stop)
            raise
        if self._live.held is not None:
            await self._live.held.come_back()  # it may have stepped aside for the child
        if child.failure is not None:
            raise ToolUnavailable(f"The call of {tool} could not be recorded.") from child.failure
        return outcome(child.call)


def _depth(live: LiveCall) -> int:
    return 1 + _depth(live.parent) if live.parent else 1
