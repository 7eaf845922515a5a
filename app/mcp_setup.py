"""Builds the MCP client from the settings: its servers, OAuth, and the handling of server requests.

The modules that read the configuration and open connections are imported when there is a server.
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
from app.mcp.client.resources import Resources, prompt_tool
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

ANY_ADDRESS = ("0.0.0.0/0", "::/0")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpDeps:
    """What the MCP client needs of the service."""

    find: Find
    processes: Processes
    sandboxed: SandboxedProcesses
    workspaces: Callable[[Session], Workspace]
    url: Callable[[], str | None]
    """The URL that this service listens on, once it does."""


class McpSetup:
    """The MCP client: `servers`, their `resources`, and the `changes` they report."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        writer: Writer,
        *,
        clock: Clock,
        redactor: Redactor,
        deps: McpDeps,
    ) -> None:
        self.changes = ChangeFeed()
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._redactor = redactor
        self._deps = deps
        self._keyring: Keyring | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        server_requests = ServerRequests(
            submit=self._submit,
            changes=self.changes,
            root_of=lambda session: deps.workspaces(session).root,
            roots=[str(root) for root in settings.mcp.roots],
            gateway=None if settings.llm is None else self._gateway(settings.llm),
        )
        for tool in (*server_requests.tools, prompt_tool()):
            registry.add(tool)
        upstream_deps = UpstreamDeps(
            open_connection=self._open_connection,
            handler_for=server_requests.handler_for,
            clock=clock,
            redactor=redactor,
            idle_seconds=settings.terminal_idle,
            changes=self.changes,
        )
        publisher = ToolPublisher(registry, partial(_make_tool, server_requests))
        self.servers = ServerManager(publisher, writer, upstream_deps, principals=self._principals)
        registry.pending_server = self.servers.pending_server
        self.resources = Resources(self.servers, server_requests)

    async def load(
        self, engine: AsyncEngine, vault: Vault, keyring: Keyring, sessions: Sessions, dispatcher: Dispatcher
    ) -> OAuthManager:
        """Load all servers with their last catalogs. `servers.start` connects to them."""
        self._keyring = keyring
        self._dispatcher = dispatcher
        registrar = self._redactor.part("mcp_tokens")
        stored = await load_grants(engine, vault)
        tokens = TokenStore(self._writer, vault, self._clock, registrar, stored=stored)
        http = OAuthHttp(Resolver(self._settings.private_networks).find, trust_public_cas)
        client = TokenClient(tokens, http, self._clock, partial(value_for, self._deps.find))
        self._oauth = OAuthManager(
            tokens, client, self._clock, redirect=self._redirect_target, reconnect=self.servers.reconnect
        )
        self.servers.on_remove.append(self._oauth.forget)
        sessions.on_delete.append(self.servers.end_session)
        await self.servers.load(engine, *self._read_config())
        return self._oauth

    def schedule_reload(self) -> None:
        """Read the configured servers again in the background; the result is logged."""
        task = asyncio.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections, when no call needs them any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.resources.close()
        await self.servers.close()
        if self._keyring is not None:
            await self._oauth.close()

    async def _reload(self) -> None:
        try:
            await self.servers.configure(*await asyncio.to_thread(self._read_config))
        except (Misconfigured, StoreError) as error:
            log.error("the configured MCP servers are not reloaded: %s", error)
        else:
            log.info("the configured MCP servers were reloaded")

    def _read_config(self) -> tuple[list[AnyServer], dict[str, str]]:
        """The configured servers, and why some are disabled. The secrets in them are redacted from here on."""
        if not self._settings.mcp.servers and self._settings.mcp_config is None:
            return [], {}
        from app import mcp_config

        config = mcp_config.read(self._settings)
        config.log_findings()
        self._redactor.part("mcp_config").replace(config.plaintext_secrets)
        return config.servers, config.unusable

    def _gateway(self, llm: LlmSetting) -> Gateway:
        """The operator configured it: no network policy applies, and it may have a private address."""
        outbound = CheckedOutbound(self._deps.find, private_networks=ANY_ADDRESS)
        return Gateway(llm.url, llm.model, partial(outbound.send, owner=ADMIN_PRINCIPAL), llm.secret, llm.timeout)

    @cached_property
    def _connector(self) -> "Connector":
        from app.mcp.client.connection import Connector, ConnectorDeps
        from app.mcp.client.transports.http import HttpDeps

        deps, resolver = self._deps, Resolver(self._settings.private_networks)
        return Connector(
            ConnectorDeps(
                processes=deps.processes,
                sandboxed=deps.sandboxed,
                workspaces=deps.workspaces,
                secret=self._secret,
                http=HttpDeps(find=resolver.find, header=self._header, trust=trust_public_cas, credentials=self._oauth),
            )
        )

    def _open_connection(
        self, server: AnyServer, handler: ServerRequestHandler, *, owner: str | None, session: Session | None, log: Log
    ) -> AbstractAsyncContextManager[Connection]:
        return self._connector.open(server, handler, owner=owner, session=session, log=log)

    def _redirect_target(self) -> RedirectTarget:
        settings = self._settings
        listens = self._deps.url() or f"http://127.0.0.1:{settings.port}"
        base = (settings.public_url or listens).rstrip("/").removesuffix(settings.root_path) + settings.root_path
        return RedirectTarget.at(base, is_public=settings.public_url is not None)

    async def _submit(self, tool: str, arguments: Raw) -> Result:
        """Run a call of the admin, for a server request that belongs to no other call."""
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
        found = self._deps.find(owner or ADMIN_PRINCIPAL, name)
        return None if found is None else found[1]

    def _header(self, owner: str | None, header: SecretHeader, host: str) -> str:
        """A secret as a header value. Raises a `CallError` where it is not meant for this host."""
        value = value_for(self._deps.find, owner or ADMIN_PRINCIPAL, header.secret, host)
        require_writable(header.secret, value)
        match header.form:
            case "bearer":
                return f"Bearer {value}"
            case "basic":
                return f"Basic {base64.b64encode(value.encode()).decode()}"
        return value

    def _principals(self) -> Iterable[str]:
        return self._keyring.principals if self._keyring else ()


def _make_tool(
    server_requests: ServerRequests, upstream: Upstream, raw: Raw, name: str, aliases: tuple[Alias, ...]
) -> Tool:
    """Runs in a thread, so the validator library is imported here and not by the first call."""
    json_schema.load_validator()
    return tools.make(
        upstream,
        raw,
        name,
        aliases,
        parser=json_schema.make_parser,
        checker=json_schema.make_checker,
        server_requests=server_requests,
    )
