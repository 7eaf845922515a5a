"""Runs the application with uvicorn, with graceful shutdown."""

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
    """uvicorn that finishes running calls after the last accepted connection and before the last response."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Announce) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal starts the graceful shutdown; it is not raised again, so that the process can exit with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self._service.schedule_reload)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the graceful shutdown, the second one interrupts running calls."""
        if self.should_exit:
            self._service.interrupt_now()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                _limit_send_buffers(listener.fileno())
        port = self.servers[0].sockets[0].getsockname()[1]
        host = self.config.host if self.config.host not in ("0.0.0.0", "::") else "127.0.0.1"
        scheme = "https" if self.config.is_ssl else "http"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._service.lock.write(url=url, **self._certificate())
        self._announce(url)

    def _certificate(self) -> dict[str, str]:
        """The certificate in use, for local commands that verify the service."""
        return {"certificate": tls.read_leaf(Path(self.config.ssl_certfile))} if self.config.ssl_certfile else {}

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._service.drain()
        await super().shutdown(sockets)


async def serve(
    settings: Settings, announce: Announce, tools: Iterable[Tool] = BUILTINS, redactor: Redactor | None = None
) -> None:
    """Run until a signal. The service is open before the first connection is accepted."""
    tls.check(settings.tls_cert, settings.tls_key)
    app = create_app(settings, tools, redactor=redactor)
    async with app.router.lifespan_context(app):
        tune_collector()
        await Server(configure(app, settings), app.state.service, announce).serve()


def configure(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """The configuration of uvicorn. Forwarded headers are read only if proxies are configured."""
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


def _limit_send_buffers(fd: int) -> None:
    """Limit kernel buffers and time for clients that do not read.

    Without this the kernel buffers megabytes per connection, and a closing connection waits for its client.
    """
    with socket.socket(fileno=os.dup(fd)) as listener:
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)


def tune_collector() -> None:
    """Exclude objects loaded at start from garbage collection, and collect less often.

    With the defaults a noticeable part of a call's CPU time was garbage collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
