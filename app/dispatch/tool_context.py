"""`CallContext`: the `Context` of one running call, implemented with the dispatcher's parts."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.errors import ToolUnavailable
from app.core.network_policy import BoundSecret, SessionSecrets
from app.core.ports import HttpRequest, HttpResponse, Outbound, Searcher, SearchResult, Uploads
from app.core.principals import ADMIN_PRINCIPAL, Key
from app.core.results import Result
from app.core.rules import Action, Need
from app.core.sandbox import Command, Process, SandboxedProcesses
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.tools import MAX_SEARCH_BYTES, Context, McpResources, Tool
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.stage import PermissionRequest, PermissionStage
from app.dispatch.prepared_call import PreparedCall
from app.dispatch.session.repl_kernels import Kernels, Start
from app.dispatch.session.terminals import Terminals
from app.dispatch.tools.listing import audience_of, suits, visible
from app.dispatch.tools.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """What running tools use outside their workspace, passed in by the composition root."""

    outbound: Outbound
    searcher: Searcher
    uploads: Uploads
    processes: SandboxedProcesses
    terminals: Terminals
    kernels: Kernels
    mcp_resources: McpResources
    #: The value of a principal's secret by its name.
    secret: Callable[[str, str], str | None]


@dataclass(slots=True, kw_only=True)
class CallContext(Context):
    """What a tool left running after its call has ended can do nothing any more."""

    live: LiveCall
    prepared: PreparedCall
    resources: ToolResources
    journal: Journal
    permission: PermissionStage
    hooks: Hooks
    registry: Registry
    #: Runs another tool as a child of this call.
    call_tool: Callable[[LiveCall, str, dict[str, Any]], Awaitable[Result]]

    @property
    def session(self) -> Session:
        return self.live.session

    @property
    def back_channel(self) -> BackChannel | None:
        return self.live.back_channel

    @property
    def mcp_resources(self) -> McpResources:
        return self.resources.mcp_resources

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        if not self.live.call.is_final:
            self.journal.progress(self.live, title, metadata)

    async def output(self, text: str, stream: str = "stdout") -> None:
        if not self.live.call.is_final:
            await self.journal.output(self.live, text, stream)

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None = None) -> None:
        self._require_running("ask for anything")
        payload = self.live.request.arguments or self.live.request.input
        request = PermissionRequest(self.prepared.tool, payload, lambda: needs, metadata)
        await self.permission.require(self.live, request)

    def is_allowed(self, needs: Sequence[Need]) -> list[bool]:
        """Only rules count: what a person approved for this call does not cover more."""
        if not needs:
            return []
        verdicts = self.permission.permissions.verdicts(self.prepared.tool, needs, self.live.session, _key(self.live))
        return [verdict.action is Action.ALLOW for verdict in verdicts]

    async def elicit(self, request: dict[str, Any]) -> Answer:
        self._require_running("ask for anything")
        return await self.permission.elicit(self.live, request)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """With the secrets of the tool's owner, and those of the session where its headers name them.

        The host a redirect leads to needs the same permission.
        """
        self._require_running("send requests")
        return await self.resources.outbound.send(
            request,
            owner=self.prepared.tool.owner or ADMIN_PRINCIPAL,
            policies=[self.live.session.network_policy],
            agree=lambda host: self.require([Need("network", host)], {"redirect": True}),
            lent=_session_secrets(self.live.session),
        )

    async def environment(self) -> dict[str, str]:
        """The session's variables, secrets by their values, and what `shell.env` hooks add."""
        live = self.live
        env = {name: self._value(value) for name, value in live.session.env.items()}
        return await self.hooks.environment(
            live.call,
            self.prepared.tool,
            live.session,
            self.workspace.root,
            env,
            partial(self.journal.publish_hook, live),
        )

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        name = value["secret"]
        secret = self.resources.secret(self.live.session.principal, name)
        if secret is None:
            raise ToolUnavailable(f"The session's environment names the secret {name}, which does not exist.")
        return secret

    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = MAX_SEARCH_BYTES
    ) -> SearchResult:
        return await self.resources.searcher.search(
            self.workspace, path, arguments, approved=self.approved, seconds=seconds, limit=limit
        )

    def tools(self) -> list[Tool]:
        """What the caller sees, without tools that do not suit its model or are known to be unavailable."""
        session, availability = self.live.session, self.registry.availability
        seen = visible(self.registry.all(session.principal), session, _key(self.live), self.permission.permissions)
        known = ((tool, availability.known(tool)) for tool in seen if suits(tool, audience_of(session)))
        return [tool for tool, ready in known if ready is None or ready.reason is None]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        self._require_running("call tools")
        return await self.call_tool(self.live, tool, arguments)

    async def save_plan(self, plan: dict[str, Any]) -> None:
        await self.journal.save_plan(self.live, plan)

    def upload(self, id: str) -> BinaryIO:
        return self.resources.uploads.open(id)

    async def start(self, command: Command) -> Process:
        self._require_running("start processes")
        report = partial(self.journal.publish_network_decision, self.live)
        return await self.resources.processes.start(command, self.live.session, self.workspace, report)

    async def open_terminal(self, command: Command, title: str) -> Terminal:
        self._require_running("start processes")
        return await self.resources.terminals.open(self.live, self.workspace, command, title)

    def terminal(self, id: int) -> Terminal:
        return self.resources.terminals.get(self.live, id)

    def kernel(self, kind: str, memory: int | None = None) -> AbstractAsyncContextManager[Kernel]:
        self._require_running("start processes")
        report = partial(self.journal.publish_network_decision, self.live)
        return self.resources.kernels.held(self.live, kind, memory, Start(self.workspace, self.environment, report))

    async def drop_kernel(self, kind: str) -> bool:
        return await self.resources.kernels.drop(self.live.session.principal, self.live.session.id, kind)

    def reset_timeout(self) -> None:
        if self.live.execution.time_limit is not None and self.live.request.timeout is None:
            self.live.execution.time_limit.restart()

    def _require_running(self, action: str) -> None:
        if self.live.call.is_final:
            raise ToolUnavailable(f"This call has ended and cannot {action} any more.")


def _key(live: LiveCall) -> Key | None:
    """The key of the call, or of the call that made it."""
    while live.key is None and live.parent is not None:
        live = live.parent
    return live.key


def _session_secrets(session: Session) -> SessionSecrets | None:
    """Secrets named by `domain_secrets`; a request's headers hold them as `$NAME`, as a model would write it."""
    policy = session.network_policy
    if policy is None or not policy.domain_secrets:
        return None
    bound = (BoundSecret(one.name, one.domain, f"${one.name}") for one in policy.domain_secrets)
    return SessionSecrets(session.principal, tuple(bound))
