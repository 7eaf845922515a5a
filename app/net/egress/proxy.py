"""The egress proxy: the only network access of sandboxed processes.

A connection serves one request and is closed, so that no request can be taken for the next one.
"""

import asyncio
import base64
import binascii
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from hmac import compare_digest

from app.core.sandbox import EgressGrant
from app.net.egress import secret_hosts
from app.net.egress.errors import Refused
from app.net.egress.forward import Upstream, forward
from app.net.egress.http1 import READ_BYTES, HeadTooLarge, Malformed, Request, read_head, to_request
from app.net.egress.policy import EgressPolicy
from app.net.egress.proxy_client import OverLimit, ProxyClient, ProxyDeps, ProxyLimits
from app.net.egress.target import Target, guess_target, read_absolute, read_name
from app.net.egress.tcp import closing
from app.net.egress.tunnel import tunnel
from app.net.resolver import Resolve, Resolver, resolve
from app.net.secret_placeholders import Find
from app.net.tls import trust_public_cas

log = logging.getLogger(__name__)

PORTS = (80, 443)
RETRY_SECONDS = 1.0
"""Pause after a connection could not be accepted."""
USAGE = "This is a proxy: set http_proxy and https_proxy to its address, and request http:// or https:// URLs."


class EgressProxy:
    """The `Egress` port by HTTP/1.1: CONNECT, `http://` URLs, and `http://secrets.internal/` for HTTPS with secrets."""

    def __init__(
        self,
        find: Find,
        *,
        private_networks: Iterable[str] = (),
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
        ports: Collection[int] = PORTS,
        https_port: int = 443,
        limits: ProxyLimits | None = None,
    ) -> None:
        self._find = find
        self._resolver = Resolver(private_networks, resolve)
        self._trust = trust
        self._ports = ports
        self._https_port = https_port
        self._limits = limits or ProxyLimits()

    @asynccontextmanager
    async def serve(self, listener: int, grant: EgressGrant) -> AsyncIterator[None]:
        deps = ProxyDeps(
            policy=EgressPolicy(self._resolver, self._ports, grant),
            find=self._find,
            trust=self._load_trust,
            limits=self._limits,
            https_port=self._https_port,
        )
        proxy = EgressListener(socket.socket(fileno=listener), grant, deps)
        try:
            proxy.open()
            yield
        finally:
            await proxy.close()

    async def _load_trust(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = await asyncio.to_thread(trust_public_cas)
        return self._trust


class EgressListener:
    """Accepts a limited number of connections; further ones wait in the backlog."""

    def __init__(self, listener: socket.socket, grant: EgressGrant, deps: ProxyDeps) -> None:
        self._listener = listener
        self._grant = grant
        self._deps = deps
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Close every connection."""
        self._pause_accepting()
        self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client is gone already
        except OSError as error:
            log.warning("the egress proxy cannot accept a connection: %s", error.strerror)
            self._pause_accepting()
            self._retry = self._loop.call_later(RETRY_SECONDS, self.open)
            return
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(done, connection))
        if len(self._tasks) >= self._deps.limits.connections:
            self._pause_accepting()

    def _pause_accepting(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _on_done(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._tasks.discard(task)
        connection.close()  # also if the task was canceled before it started
        if self._listener.fileno() >= 0 and self._retry is None:
            self.open()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
            async with closing(writer):
                await serve_connection(ProxyClient(reader, writer, self._grant), self._deps)
        except OSError:
            pass  # the client is gone
        except Exception:  # a failed connection must not end the others
            log.exception("a connection of the egress proxy failed")


async def serve_connection(client: ProxyClient, deps: ProxyDeps) -> None:
    """Read one request and serve it."""
    try:
        request = await _read_request(client, deps)
        if request is not None:
            await _serve(client, request, deps)
    except Refused as refused:
        await client.refuse(refused)
    except Malformed as error:
        await client.refuse(Refused(400, "bad-request", str(error)))
    except OverLimit:
        await client.refuse(Refused(413, "over-limit", "The connection exceeds its byte or time limit."))


async def _read_request(client: ProxyClient, deps: ProxyDeps) -> Request | None:
    try:
        async with asyncio.timeout(deps.limits.head_seconds):
            head = await read_head(client.reader)
    except TimeoutError:
        raise Refused(408, "slow-request", "The head of the request did not arrive in time.") from None
    except HeadTooLarge as error:
        raise Refused(431, "bad-request", str(error)) from None
    return None if head is None else to_request(head)


async def _serve(client: ProxyClient, request: Request, deps: ProxyDeps) -> None:
    _authenticate(client, request)
    client.target = guess_target(request.target)
    if request.method == "CONNECT":
        await tunnel(client, request, deps)
    elif request.method == "TRACE":
        raise Refused(405, "method-not-allowed", "TRACE is not allowed: it would reveal headers that the proxy adds.")
    else:
        await forward(client, request, _find_upstream(client, request, deps), deps)


def _authenticate(client: ProxyClient, request: Request) -> None:
    """Nothing is reported for a client without the token, which may be any process."""
    token = client.grant.token
    if token is None:
        return
    credentials = request.head.all(b"proxy-authorization")
    if len(credentials) != 1 or not compare_digest(_password(credentials[0]), token.encode()):
        raise Refused(407, "proxy-authentication", "The proxy needs its token as the password; it is in http_proxy.")


def _password(credentials: bytes) -> bytes:
    if credentials[:6].lower() != b"basic ":
        return b""
    try:
        return base64.b64decode(credentials[6:].strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _find_upstream(client: ProxyClient, request: Request, deps: ProxyDeps) -> Upstream:
    """Where a request other than CONNECT goes. Raises `Refused`."""
    if request.target.startswith(b"/"):
        [host] = request.head.all(b"host") or [b""]
        client.target = guess_target(host)
        if read_name(host.decode("latin-1").removesuffix(":80")) != secret_hosts.HOST:
            raise Refused(400, "no-proxy-request", USAGE)
        target = Target(secret_hosts.HOST, 80, request.target)
    else:
        target = read_absolute(request.target)
    client.target = target
    if (target.host, target.port) != (secret_hosts.HOST, 80):
        return Upstream(target)
    secret_host = secret_hosts.find_alias(target.path, client.grant.secrets)
    client.target = target = Target(secret_host.host, deps.https_port, secret_host.path)
    return Upstream(target, secret_host)
