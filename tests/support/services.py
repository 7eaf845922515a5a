"""Houses for tests: the real one, on a data directory of its own, with toy tools; with or without its door."""

import asyncio
import json
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.api.auth import Services
from app.api.http.protocol import protocol_of
from app.config import Settings
from app.core.calls import CallRequest
from app.core.hooks import Hook
from app.core.ports import Clock
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.live_calls import LiveCall
from app.main import create_app
from app.service import Service
from tests.support.toy_tools import ToyHook, Toys

KEY = "tk_the_admin_key_of_all_tests"
ADMIN = Session("admin", "default")
HANG = 20.0


async def until(question: Callable[[], object]) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(HANG):
        while not question():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Crib:
    """A house that can be opened, closed, crashed and opened again on the same data."""

    services: Services
    house: Service

    def __init__(self, data_dir: Path, toys: Toys, **settings: Any) -> None:
        self.data_dir = data_dir
        self.toys = toys
        self.hooks: list[Hook | ToyHook] = []
        self.clock: Clock | None = None
        self.settings: dict[str, Any] = {"api_key": KEY, "grace": 0.0} | settings
        self.is_open = False

    async def open(self) -> "Crib":
        self.house = Service(self._settings(), self.toys.tools, self._hooks(), clock=self.clock)
        self.services = await self.house.open()
        self.is_open = True
        return self

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            await self.house.close()

    async def crash(self) -> None:
        """The end without an end: from here on nothing is recorded any more."""
        self.is_open = False
        await self.services.writer.close()
        running = self.services.dispatcher.live_calls
        tasks = [live.task for live in running._calls.values() if live.task]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=HANG)
        self.services.hub.close()
        await self.house._stack.aclose()

    def submit(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> LiveCall:
        return self.services.dispatcher.submit(self.request(tool, arguments, **more), ADMIN)

    def request(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> CallRequest:
        return CallRequest(tool=tool, arguments=arguments, **more)

    async def run(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """A call from its request to its end, as the world sees it."""
        return await self.ended(self.submit(tool, arguments, **more))

    async def ended(self, live: LiveCall) -> dict[str, Any]:
        async with asyncio.timeout(HANG):
            await live.wait()
        assert live.record.failure is None, live.record.failure
        return viewed(live)

    async def started(self, name: str) -> None:
        async with asyncio.timeout(HANG):
            await self.toys.started[name].wait()

    async def at_the_gate(self, live: LiveCall) -> None:
        await until(lambda: live.is_open and self.row(live.call.id)["waiting"] == "gate" and live._is_interruptible)
        await asyncio.sleep(0)

    async def cancel(self, live: LiveCall) -> None:
        async with asyncio.timeout(HANG * 2):
            await self.services.dispatcher.cancel(live)

    @contextmanager
    def stalled_writer(self) -> Iterator[None]:
        """Inside, no commit comes through: somebody else holds the database."""
        with closing(sqlite3.connect(self.data_dir / "toolcrib.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    def end(self, call: str) -> tuple[str, str | None]:
        """The one end of a call: told exactly once, and the row agrees."""
        told = [type for type in self.story(call) if type in ("call.completed", "call.error")]
        row = self.row(call)
        assert told == [f"call.{row['status']}"]
        assert row["ended_at"] is not None
        assert row["waiting"] is None
        return row["status"], row["error"] and json.loads(row["error"])["code"]

    def row(self, id: str) -> dict[str, Any]:
        return self.rows("SELECT * FROM calls WHERE id = ?", id)[0]

    def events(self, call: str | None = None) -> list[dict[str, Any]]:
        if call is None:
            return self.rows("SELECT * FROM events ORDER BY seq")
        return self.rows("SELECT * FROM events WHERE call = ? ORDER BY seq", call)

    def story(self, call: str) -> list[str]:
        """The types of a call's events, in order, without what hooks said on the way."""
        return [event["type"] for event in self.events(call) if event["type"] != "call.hook"]

    def hooked(self, call: str) -> list[dict[str, Any]]:
        """What hooks said of a call, in order and without their durations."""
        told = [json.loads(event["data"]) for event in self.events(call) if event["type"] == "call.hook"]
        return [{name: value for name, value in data.items() if name != "duration_ms"} for data in told]

    def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        """What another process would read in the database now."""
        with closing(sqlite3.connect(self.data_dir / "toolcrib.db")) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(query, params)]

    def change(self, query: str, *params: Any) -> None:
        with closing(sqlite3.connect(self.data_dir / "toolcrib.db")) as db, db:
            db.execute(query, params)

    def _hooks(self) -> list[Hook]:
        return [hook.hook if isinstance(hook, ToyHook) else hook for hook in self.hooks]

    def _settings(self) -> Settings:
        return Settings(data_dir=self.data_dir, **self.settings)


class RunningService(Crib):
    """The same behind its door: a real server on a free loopback port, in the test's own loop."""

    app: FastAPI
    client: httpx.AsyncClient
    port: int
    _server: uvicorn.Server

    async def open(self) -> "RunningService":
        self.app = create_app(self._settings(), self.toys.tools, self._hooks())
        self.house = self.app.state.service
        settings = self._settings()
        protocol = protocol_of(settings.header_limit, settings.header_count, settings.read_timeout)
        config = uvicorn.Config(
            self.app,
            lifespan="on",
            http=protocol,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=settings.keep_alive,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        door = socket.socket(proto=socket.IPPROTO_TCP)  # said, because only then asyncio sends without delay
        door.bind(("127.0.0.1", 0))
        self.port = door.getsockname()[1]
        await self._server.startup(sockets=[door])
        self.house.lock.write(url=self.url)
        self.services = self.app.state.services
        self.client = self.client_of(KEY)
        self.is_open = True
        return self

    def client_of(self, token: str | None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=HANG * 2,
            limits=httpx.Limits(max_connections=200),
            trust_env=False,
            verify=False,  # no TLS here, and no time lost on loading certificates
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            await self.house.drain()
            await self._shut_door()
            await self._server.lifespan.shutdown()

    async def crash(self) -> None:
        await self._shut_door()
        await super().crash()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def _shut_door(self) -> None:
        await self.client.aclose()
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        state = self._server.server_state
        await until(lambda: not state.tasks and not state.connections)


@dataclass(frozen=True)
class Frame:
    """One frame of an event stream."""

    id: int | None
    event: str
    data: dict[str, Any]
    raw: str


class Stream:
    """An event stream under way, read frame by frame."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._pieces = response.aiter_text()
        self._rest = ""
        self.comments: list[str] = []

    async def block(self) -> str | None:
        """The next block of lines; None at the end of the stream."""
        async with asyncio.timeout(HANG):
            while "\n\n" not in self._rest:
                try:
                    self._rest += await anext(self._pieces)
                except StopAsyncIteration:
                    assert self._rest == ""
                    return None
        block, _, self._rest = self._rest.partition("\n\n")
        return block

    async def next(self) -> Frame | None:
        while (block := await self.block()) is not None:
            if not block.startswith(":"):
                return frame_of(block)
            self.comments.append(block)
        return None

    async def until(self, event: str) -> list[Frame]:
        """All frames up to the first of this type."""
        frames = [await self.must()]
        while frames[-1].event != event:
            frames.append(await self.must())
        return frames

    async def must(self) -> Frame:
        frame = await self.next()
        assert frame is not None, "the stream ended"
        return frame

    async def rest(self) -> list[Frame]:
        """All frames to the end of the stream."""
        frames = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames


@asynccontextmanager
async def listening(client: httpx.AsyncClient, path: str, **options: Any) -> AsyncIterator[Stream]:
    """A stream that is known to be connected."""
    method = options.pop("method", "GET")
    async with client.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        stream = Stream(response)
        assert await stream.block() == ": connected"
        yield stream


def frame_of(block: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    id = fields.get("id")
    return Frame(None if id is None else int(id), fields["event"], json.loads(fields["data"]), block)


def frames_of(stream: bytes) -> list[Frame]:
    return [frame_of(block) for block in stream.decode().split("\n\n") if block and not block.startswith(":")]


def kinds(frames: Iterable[Frame]) -> list[str]:
    return [frame.event for frame in frames]


def viewed(live: LiveCall) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(dumps(live.call.view()))
    return view


def copy_database(template: Path, data_dir: Path) -> Path:
    data_dir.mkdir(mode=0o700)
    shutil.copy(template, data_dir / "toolcrib.db")
    return data_dir
