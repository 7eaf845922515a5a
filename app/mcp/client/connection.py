"""Opens connections to MCP servers over every transport and in both protocol generations."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Unpack

from app.core.errors import CallError
from app.core.mcp_servers import HttpServer, SecretValue, StdioServer
from app.core.ports import Workspace
from app.core.principals import ADMIN_PRINCIPAL
from app.core.sandbox import Command, NetworkDecision, Process, Processes, SandboxedProcesses
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.util.json_codec import Raw
from app.mcp.client.handshake import ENVELOPE, LOG_LEVEL, NoReply, VersionUnsupported, discover, initialize
from app.mcp.client.interfaces import (
    CannotConnect,
    Connection,
    ConnectionLost,
    JsonRpcError,
    Log,
    RequestOptions,
    ServerInfo,
    ServerRequestHandler,
)
from app.mcp.client.jsonrpc import JsonRpcPeer, OnNotification, Transport
from app.mcp.client.subscriptions import Subscriptions
from app.mcp.client.transports.header_params import HEADER_MISMATCH
from app.mcp.client.transports.http import HttpDeps, Unreachable, open_endpoint
from app.mcp.client.transports.sse import SseTransport
from app.mcp.client.transports.stdio import RedactingLog, StdioTransport
from app.mcp.client.transports.streamable_http import StreamableHttpTransport

PROBE_SECONDS = 10.0
MAX_PAGES = 100
LEGACY_SSE_STATUSES = (400, 404, 405)
"""How a server of the SSE transport answers a POST to its stream."""
WRONG_ERA = "The server does not speak the {} protocol, which its `era` requires."
SUBSCRIBE = {"resources/subscribe": Subscriptions.watch, "resources/unsubscribe": Subscriptions.unwatch}

Secret = Callable[[str | None, str], str | None]
"""The value of an owner's secret (None: the operator's), by name."""


class McpConnection:
    """The `Connection` port. `resources/subscribe` and `resources/unsubscribe` work in both generations."""

    def __init__(self, peer: JsonRpcPeer, server_info: ServerInfo, handler: ServerRequestHandler, log: Log) -> None:
        self.server_info = server_info
        self.lost = peer.lost
        self.notify = peer.notify
        self._peer = peer
        self._log_level: Raw = {LOG_LEVEL: "info"} if server_info.has("logging") else {}
        self._subscriptions = Subscriptions(peer, self._listen, handler, log)

    async def request(self, method: str, params: Raw | None = None, **options: Unpack[RequestOptions]) -> Raw:
        if self.server_info.is_modern:
            if method in SUBSCRIBE:  # 2026-07-28 has no such requests
                await SUBSCRIBE[method](self._subscriptions, str((params or {}).get("uri")))
                return {}
            params = self._with_meta(params or {})
        try:
            result = await self._peer.request(method, params, **options)
        except JsonRpcError as error:
            if error.code != HEADER_MISMATCH or method != "tools/call":
                raise
            await self._list_tools()  # the tool has new header parameters; the server has not executed the call
            result = await self._peer.request(method, params, **options)
        if method == "tools/list":
            self._peer.transport.set_tools(result.get("tools"))
        return result

    def start(self) -> None:
        self._peer.transport.start()
        if self.server_info.is_modern:
            self._subscriptions.start(self.server_info)

    async def close(self) -> None:
        await self._subscriptions.close()

    def _with_meta(self, params: Raw) -> Raw:
        """The request's own `_meta` takes precedence."""
        return params | {"_meta": {**self._log_level, **ENVELOPE, **(params.get("_meta") or {})}}

    async def _listen(self, notifications: Raw, on_notification: OnNotification) -> Raw:
        params = self._with_meta({"notifications": notifications})
        return await self._peer.request("subscriptions/listen", params, on_notification=on_notification)

    async def _list_tools(self) -> None:
        page: Raw = {}
        for _ in range(MAX_PAGES):
            result = await self.request("tools/list", page)
            if not isinstance(cursor := result.get("nextCursor"), str):
                return
            page = {"cursor": cursor}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDeps:
    """What a `Connector` needs of the service."""

    processes: Processes
    sandboxed: SandboxedProcesses
    workspaces: Callable[[Session], Workspace]
    secret: Secret
    http: HttpDeps


@dataclass(frozen=True, slots=True)
class _Target:
    """The server to connect to, and for which owner and session."""

    server: StdioServer | HttpServer
    handler: ServerRequestHandler
    owner: str | None
    session: Session | None
    log: RedactingLog
    env: Mapping[str, str]

    @property
    def address(self) -> str:
        """Identifies the server."""
        if isinstance(self.server, HttpServer):
            return self.server.url
        return "\0".join((self.server.command, *self.server.args))

    def log_network_decision(self, decision: NetworkDecision) -> None:
        verdict = "allowed" if decision.is_allowed else "refused"
        self.log.write(f"Network access to {decision.host}:{decision.port} was {verdict}: {decision.reason}\n")


class Connector:
    """Makes connections: `open` is the `OpenConnection` port."""

    def __init__(self, deps: ConnectorDeps) -> None:
        self._deps = replace(deps, http=replace(deps.http, trust=cache(deps.http.trust)))
        #: Servers that did not answer `server/discover`; they get `initialize` at once.
        self._silent: set[str] = set()

    @asynccontextmanager
    async def open(
        self,
        server: StdioServer | HttpServer,
        handler: ServerRequestHandler,
        *,
        owner: str | None,
        session: Session | None,
        log: Log,
    ) -> AsyncIterator[Connection]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(server.startup_timeout) as timeout:
                    env, secrets = self._environment(server, owner)
                    target = _Target(server, handler, owner, session, RedactingLog(log, secrets), env)
                    connection = await self._connect(target, stack)
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise CannotConnect(f"initialize timed out after {server.startup_timeout:g} s.") from None
            yield connection

    async def _connect(self, target: _Target, stack: AsyncExitStack) -> McpConnection:
        """A program that exits because of `server/discover` is started again, and gets `initialize` at once."""
        try:
            return await self._try_connect(target, stack)
        except VersionUnsupported as error:
            return await self._try_legacy_sse(target, stack, error)
        except NoReply:
            self._silent.add(target.address)
        try:
            return await self._try_connect(target, stack)
        except BaseException:  # then `server/discover` was not the reason
            self._silent.discard(target.address)
            raise

    async def _try_legacy_sse(
        self, target: _Target, stack: AsyncExitStack, refusal: VersionUnsupported
    ) -> McpConnection:
        """A server that refuses POST may have the SSE transport. If it has not, the first refusal is reported."""
        if target.server.kind != "http" or refusal.status not in LEGACY_SSE_STATUSES:
            raise refusal
        sse = replace(target, server=target.server.model_copy(update={"kind": "sse"}))
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._try_connect(sse, stack)
        except (TimeoutError, CannotConnect):
            raise refusal from None

    async def _try_connect(self, target: _Target, stack: AsyncExitStack) -> McpConnection:
        try:
            async with AsyncExitStack() as attempt:
                peer = JsonRpcPeer(target.handler, target.log)
                attempt.push_async_callback(peer.close)
                peer.transport = await attempt.enter_async_context(self._open_transport(target, peer))
                attempt.push_async_callback(peer.close)  # pending requests end before the transport is closed
                server_info = await self._handshake(target, peer)
                connection = McpConnection(peer, server_info, target.handler, target.log)
                attempt.push_async_callback(connection.close)
                connection.start()
                await asyncio.sleep(0)  # subscriptions/listen is sent before any other request
                await stack.enter_async_context(attempt.pop_all())
                return connection
        except Unreachable as error:
            raise CannotConnect(str(error), is_final=error.is_final) from None
        except (ConnectionLost, JsonRpcError) as error:
            raise CannotConnect(str(error)) from None

    async def _handshake(self, target: _Target, peer: JsonRpcPeer) -> ServerInfo:
        era = target.server.era
        server_info, is_silent = None, target.address in self._silent and era != "newer"
        if target.server.kind != "sse" and era != "older" and not is_silent:
            server_info, is_silent = await self._discover(target, peer)
        if server_info is not None:
            return server_info
        if era == "newer":
            raise CannotConnect(WRONG_ERA.format(era), is_final=not is_silent)
        server_info = await initialize(peer)
        if server_info is None and era == "older":
            raise CannotConnect(WRONG_ERA.format(era), is_final=True)
        if server_info is None:  # it supports 2026-07-28 and only answered late
            self._silent.discard(target.address)
            server_info, _ = await self._discover(target, peer)
        elif is_silent and not peer.late_answers:
            self._silent.add(target.address)
        if server_info is None:
            raise CannotConnect("The server contradicts itself about the protocol versions it supports.")
        return server_info

    async def _discover(self, target: _Target, peer: JsonRpcPeer) -> tuple[ServerInfo | None, bool]:
        """The server's info if it supports 2026-07-28, and whether it did not answer at all."""
        try:
            return await discover(peer, min(PROBE_SECONDS, target.server.startup_timeout / 3)), False
        except NoReply:
            return None, True
        except ConnectionLost:
            if target.server.kind == "stdio" and target.address not in self._silent:
                raise NoReply from None
            raise

    @asynccontextmanager
    async def _open_transport(self, target: _Target, peer: JsonRpcPeer) -> AsyncIterator[Transport]:
        server = target.server
        if isinstance(server, StdioServer):
            async with StdioTransport(await self._start_process(server, target), peer, target.log) as stdio:
                yield stdio
            return
        async with open_endpoint(server, target.owner, self._deps.http) as endpoint:
            kind = SseTransport if server.kind == "sse" else StreamableHttpTransport
            async with kind(endpoint, peer, target.log) as transport:
                yield transport

    async def _start_process(self, server: StdioServer, target: _Target) -> Process:
        argv = (server.command, *server.args)
        try:
            if not server.is_sandboxed:
                folder = self._deps.workspaces(target.session).root if target.session else server.cwd
                return await self._deps.processes.start(argv, env=target.env, cwd=folder)
            session = target.session or Session(target.owner or ADMIN_PRINCIPAL, DEFAULT_SESSION)
            command = Command(argv=argv, env=target.env, has_stdin=True)
            workspace = self._deps.workspaces(session)
            return await self._deps.sandboxed.start(command, session, workspace, target.log_network_decision)
        except OSError as error:
            raise CannotConnect(_start_failure(server, error)) from None
        except CallError as error:
            raise CannotConnect(str(error)) from None

    def _environment(self, server: StdioServer | HttpServer, owner: str | None) -> tuple[dict[str, str], list[str]]:
        """The environment of the server's program, and the secret values in it."""
        env: dict[str, str] = {}
        secrets = []
        for name, value in server.env.items() if isinstance(server, StdioServer) else ():
            if isinstance(value, SecretValue):
                secret = self._deps.secret(owner, value.secret)
                if secret is None:
                    raise CannotConnect(f"The secret {value.secret} is not set; the server needs it as {name}.")
                secrets.append(secret)
                env[name] = secret
            else:
                env[name] = value
        return env, secrets


def _start_failure(server: StdioServer, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"There is no program {server.command}, or its working directory does not exist."
    reason = os.strerror(error.errno) if error.errno else "it is not a program"
    return f"The program {server.command} could not be started: {reason.lower()}."
