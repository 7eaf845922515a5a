"""Serving: the application on a socket, from the first announcement to an orderly end."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from app.api.http.protocol import protocol_of
from app.config import Settings
from app.core.redaction import Redactor
from app.core.tools import Tool
from app.main import create_app
from app.net import tls
from app.service import Service
from app.tools import BUILTINS

Announce = Callable[[str], None]
UNSENT_BYTES = 128 * 1024
UNREAD_MILLISECONDS = 60_000


class Server(uvicorn.Server):
    """uvicorn, with calls drained between the last accepted connection and the last answer."""

    def __init__(self, config: uvicorn.Config, house: Service, announce: Announce) -> None:
        super().__init__(config)
        self._service = house
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal asks for the orderly end; it is not raised again, so that the process can exit with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self._service.schedule_reload)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for the orderly end, the second one for a quick one."""
        if self.should_exit:
            self._service.interrupt_now()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for door in server.sockets:
                _bound_sending(door.fileno())
        port = self.servers[0].sockets[0].getsockname()[1]
        host = self.config.host if self.config.host not in ("0.0.0.0", "::") else "127.0.0.1"
        scheme = "https" if self.config.is_ssl else "http"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._service.lock.write(url=url, **self._certificate())
        self._announce(url)

    def _certificate(self) -> dict[str, str]:
        """What it shows now, for those on this machine who want to know it is us."""
        return {"certificate": tls.read_leaf(Path(self.config.ssl_certfile))} if self.config.ssl_certfile else {}

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._service.drain()
        await super().shutdown(sockets)


async def serve(
    settings: Settings, announce: Announce, tools: Iterable[Tool] = BUILTINS, redactor: Redactor | None = None
) -> None:
    """Run until a signal comes. The house is open before the first connection is accepted."""
    tls.check(settings.tls_cert, settings.tls_key)
    app = create_app(settings, tools, redactor=redactor)
    async with app.router.lifespan_context(app):
        tune_collector()
        await Server(configure(app, settings), app.state.house, announce).serve()


def configure(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How uvicorn shall serve. Forwarded headers are read only where proxies are named."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",
        http=protocol_of(settings.header_limit, settings.header_count, settings.read_timeout),
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=settings.forwarded_allow_ips,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=5,
    )


def _bound_sending(fd: int) -> None:
    """What a connection accepted here may hold of the kernel for a client that does not read: little, and not forever.

    Without this the kernel keeps megabytes for each, and a connection that is being closed waits for its client.
    """
    with socket.socket(fileno=os.dup(fd)) as door:
        if door.family in (socket.AF_INET, socket.AF_INET6):
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)


def tune_collector() -> None:
    """What was loaded at start stays: the collector need not look at it again, and may come less often.

    With the defaults a noticeable part of a call's CPU went into collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
