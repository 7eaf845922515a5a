"""The egress proxy: the one way out for processes behind walls."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from app.core.sandbox import EgressGrant
from app.net.egress.connection import converse
from app.net.egress.http1 import PIECE
from app.net.egress.limits import ProxyLimits
from app.net.egress.policy import EgressPolicy
from app.net.egress.proxy_client import ProxyClient, ProxyDeps
from app.net.egress.tcp import ending
from app.net.resolver import Resolve, Resolver, resolve
from app.net.secret_placeholders import Find
from app.net.tls import trusting_the_web

log = logging.getLogger(__name__)

PORTS = (80, 443)
PAUSE = 1.0
"""Seconds until a connection is accepted again after one could not be."""


class EgressProxy:
    """The `Egress` port, by HTTP/1.1: CONNECT for tunnels, `http://` URLs, and aliases for secrets by HTTPS."""

    def __init__(
        self,
        find: Find,
        *,
        private_networks: Iterable[str] = (),
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
        ports: Collection[int] = PORTS,
        https: int = 443,
        limits: ProxyLimits | None = None,
    ) -> None:
        self._find = find
        self._resolver = Resolver(private_networks, resolve)
        self._trust = trust
        self._ports = ports
        self._https = https
        self._limits = limits or ProxyLimits()

    @asynccontextmanager
    async def serve(self, listener: int, leave: EgressGrant) -> AsyncIterator[None]:
        means = ProxyDeps(
            admission=EgressPolicy(self._resolver, self._ports, leave),
            find=self._find,
            trust=self._trusted,
            limits=self._limits,
            https=self._https,
        )
        door = EgressListener(socket.socket(fileno=listener), leave, means)
        try:
            door.open()
            yield
        finally:
            await door.close()

    async def _trusted(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = await asyncio.to_thread(trusting_the_web)
        return self._trust


class EgressListener:
    """Accepts connections, only so many at a time: others wait where the system keeps them."""

    def __init__(self, listener: socket.socket, leave: EgressGrant, means: ProxyDeps) -> None:
        self._listener = listener
        self._leave = leave
        self._means = means
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Cut every connection."""
        self._shut()
        self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # it went away meanwhile
        except OSError as error:
            log.warning("The egress proxy cannot accept a connection now: %s", error.strerror)
            self._shut()
            self._pause = self._loop.call_later(PAUSE, self.open)
            return
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, connection))
        if len(self._tasks) >= self._means.limits.connections:
            self._shut()

    def _shut(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _ended(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._tasks.discard(task)
        connection.close()  # also where the task had no time to begin
        if self._listener.fileno() >= 0 and self._pause is None:
            self.open()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=PIECE)
            async with ending(writer):
                await converse(ProxyClient(reader, writer, self._leave), self._means)
        except OSError:
            pass  # who asked has gone
        except Exception:  # the edge: one connection must not end the others
            log.exception("A connection of the egress proxy failed.")
