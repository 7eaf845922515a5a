"""The events of several calls as one stream, and the run's answer as its last event."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from starlette.responses import Response

from app.api.auth import Services
from app.api.create_call import GONE, settled
from app.api.http.sse import EventStream, Slot
from app.api.runs.response import ResponseFormat, body_of
from app.api.runs.submit import StartedRun
from app.core.errors import Canceled
from app.core.principals import Key
from app.core.util.json_codec import dumps
from app.store.events import EventFilter


async def stream(
    services: Services, key: Key, begun: StartedRun, letter: ResponseFormat, *, slot: Slot, is_tied: bool
) -> Response:
    """From the first event of each call to its last, then `append`."""
    for live in begun.lives:
        await live.wait_open()
        if live.failure is not None and not live.is_open:
            await settled(services, live)  # raises what kept it from being recorded

    def leave() -> None:
        for live in begun.lives:
            live.interrupt(Canceled(GONE))

    frames = _frames(services, begun, letter)
    return EventStream(frames, lambda: services.keyring.holds(key.id), leave if is_tied else None, None, slot)


async def _frames(services: Services, begun: StartedRun, letter: ResponseFormat) -> AsyncGenerator[bytes, None]:
    wanted = [EventFilter(principal=live.call.principal, call=live.call.id) for live in begun.lives]
    async with aclosing(
        together([services.hub.follow(services.engine, one, 0, output_after=0) for one in wanted])
    ) as frames:
        async for piece in frames:
            yield piece
    for live in begun.lives:  # who was too slow for the events still gets the answer
        await live.wait()
    yield b"event: append\ndata: %b\n\n" % dumps(await body_of(services, begun, letter))


async def together(streams: Sequence[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """What comes of all of them, as it comes, until the last has ended."""
    coming = {asyncio.ensure_future(anext(one)): one for one in streams}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                one = coming.pop(task)
                with suppress(StopAsyncIteration):
                    piece = task.result()
                    coming[asyncio.ensure_future(anext(one))] = one
                    yield piece
    finally:
        for task in coming:
            task.cancel()
        if coming:
            await asyncio.wait(coming)
        for one in streams:
            await one.aclose()
