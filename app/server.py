"""Serving: the application on a socket, from the first announcement to an orderly end."""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from app.config import Settings
from app.core.tools import Tool
from app.main import House, create_app
from app.tools import BUILTINS

Announce = Callable[[str], None]


class Server(uvicorn.Server):
    """uvicorn, with calls drained between the last accepted connection and the last answer."""

    def __init__(self, config: uvicorn.Config, house: House, announce: Announce) -> None:
        super().__init__(config)
        self._house = house
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal asks for the orderly end; it is not raised again, so that the process can exit with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for the orderly end, the second one for a quick one."""
        if self.should_exit:
            self._house.hurry()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        host = self.config.host if self.config.host not in ("0.0.0.0", "::") else "127.0.0.1"
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._house.lock.write(url=url)
        self._announce(url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._house.drain()
        await super().shutdown(sockets)


async def serve(settings: Settings, announce: Announce, tools: Iterable[Tool] = BUILTINS) -> None:
    """Run until a signal comes. The house is open before the first connection is accepted."""
    app = create_app(settings, tools)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",
        http="httptools",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    async with app.router.lifespan_context(app):
        _tune_collector()
        await Server(config, app.state.house, announce).serve()


def _tune_collector() -> None:
    """What was loaded at start stays: the collector need not look at it again, and may come less often.

    With the defaults a noticeable part of a call's CPU went into collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
