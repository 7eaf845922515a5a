"""Links: connections to servers of every kind and era, from the first word to the last."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

from app.core.errors import CallError
from app.core.mcp_servers import HttpServer, SecretValue, StdioServer
from app.core.ports import Workspace
from app.core.principals import ADMIN_PRINCIPAL
from app.core.sandbox import Command, NetworkDecision, Process, Processes, SandboxedProcesses
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.handshake import ENVELOPE, LOG_LEVEL, NoReply, VersionUnsupported, discover, initialize
from app.mcp.client.interfaces import (
    CannotConnect,
    Connection,
    ConnectionLost,
    JsonRpcError,
    Log,
    OnProgress,
    ServerInfo,
    ServerRequestHandler,
)
from app.mcp.client.jsonrpc import JsonRpcPeer, OnTold, Transport
from app.mcp.client.subscriptions import Listening
from app.mcp.client.transports.header_params import HEADER_MISMATCH
from app.mcp.client.transports.http import HttpDeps, Unreachable, open_site
from app.mcp.client.transports.sse import SseTransport
from app.mcp.client.transports.stdio import StdioTransport
from app.mcp.client.transports.streamable_http import StreamableHttpTransport
from app.mcp.client.upstream import RedactingLog

PROBE_SECONDS = 10.0
MOST_PAGES = 100
OF_THE_OLDEST = (400, 404, 405)
"""How a site of the oldest kind answers a post to its stream."""
OF_THE_OTHER = "The server does not speak the {} era of the protocol, which is the one that its `era` asks for."
SUBSCRIBING = {"resources/subscribe": Listening.watch, "resources/unsubscribe": Listening.unwatch}

Secret = Callable[[str | None, str], str | None]
"""The value of an owner's secret (None: the operator's), by its name."""


class McpConnection:
    """The `Connection` port over a peer. `resources/subscribe` and `resources/unsubscribe` work in both eras."""

    def __init__(self, peer: JsonRpcPeer, hello: ServerInfo, guest: ServerRequestHandler, journal: Log) -> None:
        self._peer = peer
        self._hello = hello
        self._level: Raw = {LOG_LEVEL: "info"} if hello.has("logging") else {}
        self._listening = Listening(peer, self._listen, guest, journal)

    @property
    def hello(self) -> ServerInfo:
        return self._hello

    @property
    def lost(self) -> "asyncio.Future[str]":
        return self._peer.lost

    async def request(
        self,
        method: str,
        params: Raw | None = None,
        *,
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        about: Context | None = None,
    ) -> Raw:
        if self._hello.is_modern:
            if method in SUBSCRIBING:  # which the newer era has no requests for
                await SUBSCRIBING[method](self._listening, str((params or {}).get("uri")))
                return {}
            params = self._stamped(params or {})
        ask = partial(self._peer.request, method, params, seconds=seconds, on_progress=on_progress, about=about)
        try:
            result = await ask()
        except JsonRpcError as no:
            if no.code != HEADER_MISMATCH or method != "tools/call":
                raise
            await self._list_tools()  # it wants arguments repeated that we did not know of, and did nothing yet
            result = await ask()
        if method == "tools/list":
            self._peer.wire.learn(result.get("tools"))
        return result

    async def notify(self, method: str, params: Raw | None = None) -> None:
        await self._peer.notify(method, params)

    def begin(self) -> None:
        self._peer.wire.begin()
        if self._hello.is_modern:
            self._listening.begin(self._hello)

    async def close(self) -> None:
        await self._listening.close()

    def _stamped(self, params: Raw) -> Raw:
        """What a request says itself of what may be asked of us goes first."""
        return params | {"_meta": {**self._level, **ENVELOPE, **(params.get("_meta") or {})}}

    async def _listen(self, wanted: Raw, on_told: OnTold) -> Raw:
        params = self._stamped({"notifications": wanted})
        return await self._peer.request("subscriptions/listen", params, on_told=on_told)

    async def _list_tools(self) -> None:
        page: Raw = {}
        for _ in range(MOST_PAGES):
            result = await self.request("tools/list", page)
            if not isinstance(cursor := result.get("nextCursor"), str):
                return
            page = {"cursor": cursor}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDeps:
    """What links need of the rest of the house."""

    processes: Processes
    walled: SandboxedProcesses
    workspaces: Callable[[Session], Workspace]
    secret: Secret
    ways: HttpDeps


class Connector:
    """Makes connections: `open` is the `OpenLink` port."""

    def __init__(self, means: ConnectorDeps) -> None:
        self._means = replace(means, ways=replace(means.ways, trust=cache(means.ways.trust)))
        self._silent: set[str] = set()

    @asynccontextmanager
    async def open(
        self,
        server: StdioServer | HttpServer,
        guest: ServerRequestHandler,
        *,
        owner: str | None,
        session: Session | None,
        log: Log,
    ) -> AsyncIterator[Connection]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(server.startup_timeout) as clock:
                    env = self._env(server, owner) if isinstance(server, StdioServer) else {}
                    to = _Target(server, guest, owner, session, RedactingLog(log, _secrets(server, env)), env)
                    link = await self._connect(to, stack)
            except TimeoutError:
                if not clock.expired():
                    raise
                raise CannotConnect(f"The server did not say hello within {server.startup_timeout:g} s.") from None
            yield link

    async def _connect(self, to: "_Target", stack: AsyncExitStack) -> McpConnection:
        """One that does not survive the first question is started anew, and not asked that again."""
        try:
            return await self._try(to, stack)
        except VersionUnsupported as no:
            return await self._fall_back(to, stack, no)
        except NoReply:
            self._silent.add(to.address)
        try:
            return await self._try(to, stack)
        except BaseException:  # then it was not the question
            self._silent.discard(to.address)
            raise

    async def _fall_back(self, to: "_Target", stack: AsyncExitStack, no: VersionUnsupported) -> McpConnection:
        """A site that takes no posts may be one of the oldest kind. Where it is none either, the first no counts."""
        if to.server.kind != "http" or no.status not in OF_THE_OLDEST:
            raise no
        oldest = replace(to, server=to.server.model_copy(update={"kind": "sse"}))
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._try(oldest, stack)
        except (TimeoutError, CannotConnect):
            raise no from None

    async def _try(self, to: "_Target", stack: AsyncExitStack) -> McpConnection:
        try:
            async with AsyncExitStack() as attempt:
                peer = JsonRpcPeer(to.guest, to.log)
                attempt.push_async_callback(peer.close)
                peer.wire = await attempt.enter_async_context(self._wire(to, peer))
                attempt.push_async_callback(peer.close)  # who still waits is answered before the wire is taken down
                link = McpConnection(peer, await self._greet(to, peer), to.guest, to.log)
                attempt.push_async_callback(link.close)
                link.begin()
                await asyncio.sleep(0)  # listening goes out before whatever is asked for next
                await stack.enter_async_context(attempt.pop_all())
                return link
        except Unreachable as error:
            raise CannotConnect(str(error), is_final=error.is_final) from None
        except (ConnectionLost, JsonRpcError) as error:
            raise CannotConnect(str(error)) from None

    async def _greet(self, to: "_Target", peer: JsonRpcPeer) -> ServerInfo:
        era = to.server.era
        hello, is_silent = None, to.address in self._silent and era != "newer"
        if to.server.kind != "sse" and era != "older" and not is_silent:
            hello, is_silent = await self._discover(to, peer)
        if hello is not None:
            return hello
        if era == "newer":
            raise CannotConnect(OF_THE_OTHER.format(era), is_final=not is_silent)
        hello = await initialize(peer)
        if hello is None and era == "older":
            raise CannotConnect(OF_THE_OTHER.format(era), is_final=True)
        if hello is None:  # it is of the newer era, and was only slow to say so
            self._silent.discard(to.address)
            hello, _ = await self._discover(to, peer)
        elif is_silent and not peer.surplus:
            self._silent.add(to.address)  # it will not be waited for the next time
        if hello is None:
            raise CannotConnect("The server does not know which version of the protocol it speaks.")
        return hello

    async def _discover(self, to: "_Target", peer: JsonRpcPeer) -> tuple[ServerInfo | None, bool]:
        """Hello in the newer era, if it is of that; and whether it said nothing at all."""
        try:
            return await discover(peer, min(PROBE_SECONDS, to.server.startup_timeout / 3)), False
        except NoReply:
            return None, True
        except ConnectionLost:
            if to.server.kind == "stdio" and to.address not in self._silent:
                raise NoReply from None
            raise

    @asynccontextmanager
    async def _wire(self, to: "_Target", peer: JsonRpcPeer) -> AsyncIterator[Transport]:
        server = to.server
        if isinstance(server, StdioServer):
            async with StdioTransport(await self._start(server, to), peer, to.log) as pipe:
                yield pipe
            return
        async with open_site(server, to.owner, self._means.ways) as site:
            kind: type[SseTransport] | type[StreamableHttpTransport] = (
                SseTransport if server.kind == "sse" else StreamableHttpTransport
            )
            async with kind(site, peer, to.log) as wire:
                yield wire

    async def _start(self, server: StdioServer, to: "_Target") -> Process:
        argv = (server.command, *server.args)
        try:
            if not server.walls:
                folder = self._means.workspaces(to.session).root if to.session else server.cwd
                return await self._means.processes.start(argv, env=to.env, cwd=folder)
            session = to.session or Session(to.owner or ADMIN_PRINCIPAL, DEFAULT_SESSION)
            command = Command(argv=argv, env=to.env, has_stdin=True)
            return await self._means.walled.start(command, session, self._means.workspaces(session), to.tell)
        except OSError as error:
            raise CannotConnect(_not_started(server, error)) from None
        except CallError as error:
            raise CannotConnect(str(error)) from None

    def _env(self, server: StdioServer, owner: str | None) -> dict[str, str]:
        env = {}
        for name, value in server.env.items():
            text = value if isinstance(value, str) else self._means.secret(owner, value.secret)
            if text is None:
                assert isinstance(value, SecretValue)
                raise CannotConnect(f"The secret {value.secret} is not set; the server needs it as {name}.")
            env[name] = text
        return env


@dataclass(frozen=True, slots=True)
class _Target:
    """Whom a connection is made to, and for whom."""

    server: StdioServer | HttpServer
    guest: ServerRequestHandler
    owner: str | None
    session: Session | None
    log: RedactingLog
    env: Mapping[str, str]

    @property
    def address(self) -> str:
        """What tells one server from another."""
        if isinstance(self.server, HttpServer):
            return self.server.url
        return "\0".join((self.server.command, *self.server.args))

    def tell(self, decision: NetworkDecision) -> None:
        verdict = "may" if decision.is_allowed else "may not"
        self.log.write(f"It {verdict} reach {decision.host}:{decision.port}: {decision.reason}\n")


def _secrets(server: StdioServer | HttpServer, env: Mapping[str, str]) -> list[str]:
    """What a program gets that nobody should see."""
    if isinstance(server, HttpServer):
        return []
    return [env[name] for name, value in server.env.items() if isinstance(value, SecretValue)]


def _not_started(server: StdioServer, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"There is no program {server.command}, or not the folder it should start in."
    reason = os.strerror(error.errno) if error.errno else "it is no program"
    return f"The program {server.command} could not be started: {reason.lower()}."
