"""A client that remembers all it is told, in answers and in the stream of events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from app.core.events import EventType
from tests.faults.data_checks import Acknowledged
from tests.faults.raw_sockets import GONE, Body, Stream, Wire, data_of, id_of, streamed, wired
from tests.faults.service_processes import HANG

PATIENCE = 86_400.0  # of the people who are asked; tests may take longer than people usually have
EVERYTHING = f"/v1/events?types={','.join(EventType)}"


class Actor:
    """A client that remembers all it is told, in answers and in the stream of events."""

    def __init__(self, wire: Wire, port: int, told: Acknowledged) -> None:
        self.told = told
        self._wire = wire
        self._port = port

    async def call(self, tool: str, token: str, *, wait: float = HANG, key: str | None = None, **more: Any) -> Body:
        asked = {"tool": tool, "arguments": {"token": token} | more, "ask_timeout": PATIENCE}
        answer = await self._wire.call(asked, wait, key)
        assert answer.status in (200, 202), answer.content
        self.told.note(answer.body, token, key)
        return answer.body

    async def plan(self, token: str) -> None:
        steps = [{"step": token, "status": "pending"}]
        answer = await self._wire.call({"tool": "update_plan", "arguments": {"plan": steps}, "call_id": token})
        self.told.note(answer.body, token)

    async def batch(self, *asked: tuple[str, str]) -> None:
        calls = [{"tool": tool, "arguments": {"token": token}} for tool, token in asked]
        answer = await self._wire.ask("POST", "/v1/calls/batch", {"calls": calls}, {})
        for call, (_, token) in zip(answer.body["data"], asked, strict=True):
            self.told.note(call, token)

    async def cancel(self, call: Body) -> None:
        answer = await self._wire.ask("POST", f"/v1/calls/{call['id']}/cancel", None, {})
        assert answer.body["error"]["code"] == "Canceled"
        self.told.note(answer.body, self.told.tokens[call["id"]])

    async def answer(self, ask: Body, **said: Any) -> None:
        """What a person says to an ask. Who hears that it was in time may rely on it."""
        answer = await self._wire.ask("POST", f"/v1/asks/{ask['id']}/answer", said, {})
        assert answer.status == 200, answer.content

    async def open_asks(self, count: int) -> list[Body]:
        """What waits for a person, once there is so much of it; oldest first."""
        async with asyncio.timeout(HANG):
            while len(found := (await self._wire.get("/v1/asks?status=open")).body["data"]) < count:
                pass
        asks: list[Body] = found[::-1]
        return asks

    async def wait_for(self, call: Body) -> None:
        """On a connection of its own, to the end of the call or of the service."""
        with suppress(*GONE):
            async with wired(self._port) as wire:
                answer = await wire.get(f"/v1/calls/{call['id']}?wait={HANG}")
                self.told.note(answer.body, self.told.tokens[call["id"]])

    async def until(self, question: Callable[[], object]) -> None:
        """Wait for what the stream tells; a service that is gone tells nothing any more."""
        async with asyncio.timeout(HANG):
            while not question():
                await self._wire.get("/healthz")

    def heard(self, type: str) -> int:
        return sum(f"event: {type}\n".encode() in frame for frame in self.told.events.values())


@asynccontextmanager
async def actor(port: int, told: Acknowledged) -> AsyncIterator[Actor]:
    """An actor who hears everything; also the last that a dying service says."""
    async with streamed(port, EVERYTHING, after=0) as stream, wired(port) as wire:
        if told.events:
            await hear_until(stream, told, max(told.events))
        listening = asyncio.create_task(hear_until(stream, told, None))
        try:
            yield Actor(wire, port, told)
        except (AssertionError, TimeoutError):
            listening.cancel()
            raise
        finally:
            with suppress(asyncio.CancelledError):
                await listening


async def say_yes(port: int) -> None:
    """A person who allows whatever is asked, until told to stop."""
    async with wired(port) as wire:
        act = Actor(wire, port, Acknowledged())
        while True:
            for ask in await act.open_asks(0):
                await wire.ask("POST", f"/v1/asks/{ask['id']}/answer", {"decision": "allow"}, {})
            await asyncio.sleep(0.01)


async def hear_until(stream: Stream, told: Acknowledged, last: int | None) -> None:
    """Remember what a stream tells, up to this event or to its end."""
    heard = 0
    with suppress(*GONE):
        while last is None or heard < last:
            for frame in await stream.frames():
                heard = hear(frame, told) or heard


def hear(frame: bytes, told: Acknowledged) -> int | None:
    if (seq := id_of(frame)) is not None:
        told.hear(seq, frame)
    elif frame.startswith(b"event: call.output"):
        body = data_of(frame)
        told.hear_output(body["call"], body["data"]["offset"], body["data"]["text"])
    return seq
