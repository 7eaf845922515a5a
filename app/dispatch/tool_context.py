"""The line as it is lent to a running tool: progress, output, permission, and calls of other tools."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, BinaryIO, Protocol

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.calls import CallRequest
from app.core.errors import ToolUnavailable
from app.core.mcp_resources import McpResources
from app.core.network_policy import BoundSecret, SessionSecrets
from app.core.ports import HttpRequest, HttpResponse, Outbound, Searcher, SearchResult, Uploads
from app.core.principals import ADMIN_PRINCIPAL, Key
from app.core.results import Result
from app.core.rules import Action, Need
from app.core.sandbox import Command, Process, SandboxedProcesses
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.tools import Tool
from app.dispatch.call_records import outcome
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall, LiveCalls
from app.dispatch.permission.stage import PermissionRequest, PermissionStage
from app.dispatch.prepared_call import PreparedCall
from app.dispatch.session.repl_kernels import Kernels, Start
from app.dispatch.session.terminals import Terminals
from app.dispatch.tools.listing import audience_of, suits
from app.dispatch.tools.registry import Registry

MAX_DEPTH = 8


class Callers(Protocol):
    """The part of the dispatcher a tool needs to call tools."""

    @property
    def running(self) -> LiveCalls: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def outbound(self) -> Outbound: ...

    @property
    def searcher(self) -> Searcher: ...

    @property
    def uploads(self) -> Uploads: ...

    @property
    def walled(self) -> SandboxedProcesses: ...

    @property
    def terminals(self) -> Terminals: ...

    @property
    def kernels(self) -> Kernels: ...

    @property
    def neighbours(self) -> McpResources: ...

    @property
    def hooks(self) -> Hooks: ...

    def secret(self, principal: str, name: str) -> str | None: ...

    def tools(self, session: Session, key: Key | None) -> list[Tool]: ...

    def submit(self, request: CallRequest, session: Session, *, parent: LiveCall | None) -> LiveCall: ...


class CallContext:
    """The `Line` port for one running call. What a tool left behind has nothing to say once the call has ended."""

    __slots__ = ("_asks", "_callers", "_journal", "_live", "_step", "_tool")

    def __init__(
        self, live: LiveCall, step: PreparedCall, journal: Journal, asks: PermissionStage, callers: Callers
    ) -> None:
        self._live = live
        self._step = step
        self._tool = step.tool
        self._journal = journal
        self._asks = asks
        self._callers = callers

    def progress(self, title: str | None, metadata: dict[str, Any] | None) -> None:
        if not self._live.call.is_final:
            self._journal.progress(self._live, title, metadata)

    async def output(self, text: str, stream: str) -> None:
        if not self._live.call.is_final:
            await self._journal.output(self._live, text, stream)

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None) -> None:
        self._require_life("ask for anything")
        given = self._live.request.arguments or self._live.request.input
        await self._asks.require(self._live, PermissionRequest(self._tool, given, lambda: needs, metadata))

    async def send(self, request: HttpRequest) -> HttpResponse:
        """With the secrets of the tool's owner, and those of the session where its headers name them.

        Where a redirect leads is judged like where it began.
        """
        self._require_life("send requests")
        return await self._callers.outbound.send(
            request,
            owner=self._tool.owner or ADMIN_PRINCIPAL,
            policies=[self._live.session.network_policy],
            agree=lambda host: self.require([Need("network", host)], {"redirect": True}),
            lent=_lent(self._live.session),
        )

    async def environment(self) -> dict[str, str]:
        """What the session has, secrets by their values, and what `shell.env` hooks make of it."""
        live = self._live
        env = {name: self._value(value) for name, value in live.session.env.items()}
        tell = partial(self._journal.tell_hook, live)
        return await self._callers.hooks.environment(
            live.call, self._tool, live.session, self._step.workspace.root, env, tell
        )

    async def search(self, path: str, arguments: Sequence[str], seconds: float, limit: int) -> SearchResult:
        step = self._step
        return await self._callers.searcher.search(
            step.workspace, path, arguments, approved=step.approved, seconds=seconds, limit=limit
        )

    def may(self, needs: Sequence[Need]) -> list[bool]:
        """A person's yes to what the call needed does not reach further; only rules count."""
        if not needs:
            return []
        verdicts = self._asks.permissions.verdicts(self._tool, needs, self._live.session, _key(self._live))
        return [verdict.action is Action.ALLOW for verdict in verdicts]

    def _value(self, given: Any) -> str:
        if isinstance(given, str):
            return given
        value = self._callers.secret(self._live.session.principal, given["secret"])
        if value is None:
            raise ToolUnavailable(f"The session's environment names the secret {given['secret']}, which is not there.")
        return value

    def tools(self) -> list[Tool]:
        """What the caller sees, without what its model has no use for and what is known to be unavailable."""
        session, probes = self._live.session, self._callers.registry.probes
        seen = self._callers.tools(session, _key(self._live))
        known = ((tool, probes.known(tool)) for tool in seen if suits(tool, audience_of(session)))
        return [tool for tool, ready in known if ready is None or ready.reason is None]

    async def keep_plan(self, plan: dict[str, Any]) -> None:
        await self._journal.keep_plan(self._live, plan)

    def upload(self, id: str) -> BinaryIO:
        return self._callers.uploads.open(id)

    async def start(self, command: Command) -> Process:
        self._require_life("start processes")
        tell = partial(self._journal.tell_decision, self._live)
        return await self._callers.walled.start(command, self._live.session, self._step.workspace, tell)

    async def open_terminal(self, command: Command, shown: str) -> Terminal:
        self._require_life("start processes")
        return await self._callers.terminals.open(self._live, self._step.workspace, command, shown)

    def terminal(self, id: int) -> Terminal:
        return self._callers.terminals.get(self._live, id)

    def kernel(self, kind: str, memory: int | None) -> AbstractAsyncContextManager[Kernel]:
        self._require_life("start processes")
        tell = partial(self._journal.tell_decision, self._live)
        start = Start(self._step.workspace, self.environment, tell)
        return self._callers.kernels.held(self._live, kind, memory, start)

    async def drop_kernel(self, kind: str) -> bool:
        session = self._live.session
        return await self._callers.kernels.drop(session.principal, session.id, kind)

    async def elicit(self, shows: dict[str, Any]) -> Answer:
        self._require_life("ask for anything")
        return await self._asks.elicit(self._live, shows)

    def go_on(self) -> None:
        if self._live.limit is not None and self._live.request.timeout is None:
            self._live.limit.restart()

    @property
    def session(self) -> Session:
        return self._live.session

    @property
    def attendant(self) -> BackChannel | None:
        return self._live.attendant

    @property
    def neighbours(self) -> McpResources:
        return self._callers.neighbours

    def _require_life(self, wish: str) -> None:
        if self._live.call.is_final:
            raise ToolUnavailable(f"This call has ended and cannot {wish} any more.")

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        """A child goes the whole line like any call, inside its parent's pass."""
        self._require_life("call tools")
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


def _key(live: LiveCall) -> Key | None:
    """The key that the call came with, or the call that made it."""
    while live.key is None and live.parent is not None:
        live = live.parent
    return live.key


def _lent(session: Session) -> SessionSecrets | None:
    """What `domain_secrets` names stands in a request's headers as `$NAME`, as a model would write it."""
    policy = session.network_policy
    if policy is None or not policy.domain_secrets:
        return None
    placed = (BoundSecret(one.name, one.domain, f"${one.name}") for one in policy.domain_secrets)
    return SessionSecrets(session.principal, tuple(placed))


def _depth(live: LiveCall) -> int:
    return 1 + _depth(live.parent) if live.parent else 1
