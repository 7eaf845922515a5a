"""Neighbourhood: everything that has to do with MCP servers, put together from the settings.

What reads their configuration, and what speaks to them, is loaded when there is one.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from app.config import LlmSetting, Settings
from app.core.calls import CallRequest
from app.core.custom_tools import SecretHeader
from app.core.errors import Misconfigured, StoreError, ToolUnavailable
from app.core.mcp_servers import AnyServer
from app.core.ports import Clock, Workspace
from app.core.principals import ADMIN_PRINCIPAL
from app.core.redaction import Redactor
from app.core.results import Result
from app.core.sandbox import Processes, SandboxedProcesses
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Alias, Tool
from app.core.util.json_codec import Raw
from app.custom import json_schema
from app.dispatch.call_records import outcome
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.session.sessions import Sessions
from app.dispatch.tools.registry import Registry
from app.mcp.client import tools
from app.mcp.client.interfaces import ChangeFeed, Connection, Log, ServerRequestHandler, Upstream
from app.mcp.client.manager import ServerManager
from app.mcp.client.oauth.http import OAuthHttp
from app.mcp.client.oauth.manager import OAuthManager
from app.mcp.client.oauth.registration import RedirectTarget
from app.mcp.client.oauth.tokens import TokenClient
from app.mcp.client.publish_tools import ToolPublisher
from app.mcp.client.resources import Resources
from app.mcp.client.sampling import Gateway
from app.mcp.client.server_requests import ServerRequests
from app.mcp.client.upstream import UpstreamDeps
from app.net.outbound import CheckedOutbound
from app.net.resolver import Resolver
from app.net.secret_placeholders import Find, require_writable, value_for
from app.net.tls import trust_public_cas
from app.store.mcp import TokenStore, load_grants
from app.store.principals import Keyring
from app.store.vault import Vault
from app.store.writer import Writer

if TYPE_CHECKING:
    from app.mcp.client.connection import Connector

EVERYWHERE = ("0.0.0.0/0", "::/0")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpDeps:
    """What servers are reached with."""

    find: Find
    processes: Processes
    walled: SandboxedProcesses
    workspaces: Callable[[Session], Workspace]
    url: Callable[[], str | None]
    """Where this service listens, once it does."""


class McpSetup:
    """The servers, how they are reached, what they have, and who answers what they ask."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        writer: Writer,
        *,
        clock: Clock,
        redactor: Redactor,
        reach: McpDeps,
    ) -> None:
        self.bulletin = ChangeFeed()
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._redactor = redactor
        self._reach = reach
        self._keyring: Keyring | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        reception = self._open_reception()
        for tool in reception.tools:
            registry.add(tool)
        around = UpstreamDeps(
            open_link=self._open_link,
            guests=reception.visitor,
            clock=clock,
            redactor=redactor,
            idle=settings.terminal_idle,
            bulletin=self.bulletin,
        )
        shelves = ToolPublisher(registry, partial(_make, reception))
        self.book = ServerManager(shelves, writer, around, principals=self._principals)
        registry.pending_server = self.book.expected
        self.resources = Resources(self.book, reception)

    async def load(
        self, engine: AsyncEngine, vault: Vault, keyring: Keyring, sessions: Sessions, dispatcher: Dispatcher
    ) -> OAuthManager:
        """Take up all servers with what they listed last. None is connected to before `book.begin`."""
        self._keyring = keyring
        self._dispatcher = dispatcher
        part = self._redactor.part("mcp_tokens")
        stored = await load_grants(engine, vault)
        tokens = TokenStore(self._writer, vault, self._clock, part, stored=stored)
        self._desk = self._open_desk(tokens)
        self.book.on_remove.append(self._desk.forget)
        sessions.on_delete.append(self.book.end_session)
        await self.book.load(engine, *self._configured())
        return self._desk

    def schedule_reload(self) -> None:
        """Read the configured servers anew without anybody waiting for it; the log tells what came of it."""
        task = asyncio.create_task(self._reload())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End what is connected, when no call needs it any more."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self.resources.close()
        await self.book.close()
        if self._keyring is not None:
            await self._desk.close()

    async def _reload(self) -> None:
        try:
            await self.book.configure(*await asyncio.to_thread(self._configured))
        except (Misconfigured, StoreError) as error:
            log.error("the MCP servers of the configuration stay as they were: %s", error)
        else:
            log.info("the MCP servers of the configuration were read anew")

    def _configured(self) -> tuple[list[AnyServer], dict[str, str]]:
        """The configured servers, and why some cannot be had. What is secret in them is redacted from here on."""
        if not self._settings.mcp.servers and self._settings.mcp_config is None:
            return [], {}
        from app import mcp_config

        found = mcp_config.read(self._settings)
        found.tell()
        self._redactor.part("mcp_config").replace(found.clear)
        return found.servers, found.unusable

    def _open_reception(self) -> ServerRequests:
        llm = self._settings.llm
        return ServerRequests(
            submit=self._submit,
            bulletin=self.bulletin,
            root_of=lambda session: self._reach.workspaces(session).root,
            roots=[str(root) for root in self._settings.mcp.roots],
            gateway=None if llm is None else self._gateway(llm),
        )

    def _gateway(self, llm: LlmSetting) -> Gateway:
        """Where it is, is the operator's word: no policy of a session counts, and it may be next door."""
        outbound = CheckedOutbound(self._reach.find, private_networks=EVERYWHERE)
        return Gateway(llm.url, llm.model, partial(outbound.send, owner=ADMIN_PRINCIPAL), llm.secret, llm.timeout)

    @cached_property
    def _links(self) -> "Connector":
        from app.mcp.client.connection import Connector, ConnectorDeps
        from app.mcp.client.transports.http import HttpDeps

        reach, resolver = self._reach, Resolver(self._settings.private_networks)
        ways = HttpDeps(find=resolver.find, header=self._header, trust=trust_public_cas, credentials=self._desk)
        means = ConnectorDeps(
            processes=reach.processes,
            walled=reach.walled,
            workspaces=reach.workspaces,
            secret=self._secret,
            ways=ways,
        )
        return Connector(means)

    def _open_desk(self, tokens: TokenStore) -> OAuthManager:
        courier = OAuthHttp(Resolver(self._settings.private_networks).find, trust_public_cas)
        cashier = TokenClient(tokens, courier, self._clock, partial(value_for, self._reach.find))
        return OAuthManager(tokens, cashier, self._clock, home=self._home, reconnect=self.book.reconnect)

    def _home(self) -> RedirectTarget:
        """Where people come back to after signing in elsewhere."""
        settings = self._settings
        listens = self._reach.url() or f"http://127.0.0.1:{settings.port}"
        base = (settings.public_url or listens).rstrip("/").removesuffix(settings.root_path) + settings.root_path
        return RedirectTarget.at(base, is_public=settings.public_url is not None)

    def _open_link(
        self, server: AnyServer, guest: ServerRequestHandler, *, owner: str | None, session: Session | None, log: Log
    ) -> AbstractAsyncContextManager[Connection]:
        return self._links.open(server, guest, owner=owner, session=session, log=log)

    async def _submit(self, tool: str, arguments: Raw) -> Result:
        """A call of the admin's own, for what belongs to nobody else."""
        request = CallRequest(tool=tool, arguments=arguments)
        live = self._dispatcher.submit(request, Session(ADMIN_PRINCIPAL, DEFAULT_SESSION))
        try:
            await live.wait()
        except asyncio.CancelledError:
            await self._dispatcher.cancel(live)
            raise
        if live.record.failure is not None:
            raise ToolUnavailable(f"The call of {tool} could not be recorded.") from live.record.failure
        return outcome(live.call)

    def _secret(self, owner: str | None, name: str) -> str | None:
        found = self._reach.find(owner or ADMIN_PRINCIPAL, name)
        return None if found is None else found[1]

    def _header(self, owner: str | None, header: SecretHeader, host: str) -> str:
        """A secret as a header carries it. Raises a `CallError` where it is not meant for this host."""
        value = value_for(self._reach.find, owner or ADMIN_PRINCIPAL, header.secret, host)
        require_writable(header.secret, value)
        match header.form:
            case "bearer":
                return f"Bearer {value}"
            case "basic":
                return f"Basic {base64.b64encode(value.encode()).decode()}"
        return value

    def _principals(self) -> Iterable[str]:
        return self._keyring.principals if self._keyring else ()


def _make(reception: ServerRequests, upstream: Upstream, raw: Raw, name: str, aliases: tuple[Alias, ...]) -> Tool:
    """This is done beside the loop, so what checks arguments is loaded here and not by the first call."""
    json_schema.load_validator()
    parser, checker = json_schema.make_parser, json_schema.make_checker
    return tools.make(upstream, raw, name, aliases, parser=parser, checker=checker, reception=reception)
