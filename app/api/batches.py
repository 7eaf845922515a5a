"""Several calls in one request: answered in order, and the same ones when it is sent again.

Turns: requests that must not overtake each other.
"""

import asyncio
from collections.abc import Mapping, Sequence

from starlette.types import Receive

from app.api.auth import Services
from app.api.create_call import GONE, check_same, claim_of, first_of, holder_of, refuse_when_stopping, trace_context
from app.api.http.sse import client_left
from app.core.calls import CallRequest
from app.core.errors import CallError, Canceled
from app.core.principals import Key
from app.core.sessions import Session
from app.dispatch.live_calls import LiveCall
from app.store import calls
from app.store.calls import Claim

Asked = Sequence[tuple[CallRequest, Session]]


async def begin(
    services: Services,
    key: Key,
    asked: Asked,
    headers: Mapping[str, str],
    idempotency_key: str | None,
    faults: Sequence[CallError | None] | None = None,
) -> list[LiveCall]:
    """Set all of them on the line. Item i of an idempotent batch has the key `{key}/{i}`. Some may have a fault."""
    if idempotency_key is None:
        refuse_when_stopping(services)
        return services.dispatcher.submit_all(asked, faults=faults, key=key, origin=trace_context(headers))
    claims = [claim_of(idempotency_key, one, where, f"/{i}") for i, (one, where) in enumerate(asked)]
    faulty = [*zip(asked, faults or [None] * len(asked), strict=True)]
    async with services.idempotency_locks.of(key.principal, idempotency_key):
        return await _begin_once(services, key, faulty, headers, [claim for claim in claims if claim])


async def attend(receive: Receive, lives: Sequence[LiveCall], asked: Asked, seconds: float) -> None:
    """Wait with the client. Its going away stops those calls that asked for it."""
    waiting = asyncio.create_task(wait_for(lives, seconds))
    leaving = [live for live, (one, _) in zip(lives, asked, strict=True) if one.cancel_on_disconnect and seconds]
    tasks = {waiting, asyncio.create_task(client_left(receive))} if leaving else {waiting}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            for live in leaving:
                live.interrupt(Canceled(GONE))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def wait_for(lives: Sequence[LiveCall], seconds: float) -> None:
    """Wait until all have ended, so long at most; without any time, until all are recorded."""
    until = asyncio.get_running_loop().time() + seconds
    for live in lives:
        if seconds:
            await live.wait(max(until - asyncio.get_running_loop().time(), 0))
        else:
            await live.wait_open()


async def _begin_once(
    services: Services,
    key: Key,
    asked: Sequence[tuple[tuple[CallRequest, Session], CallError | None]],
    headers: Mapping[str, str],
    claims: Sequence[Claim],
) -> list[LiveCall]:
    """Calls that were accepted before are found again; only the others are made, and none if a body differs."""
    held = await calls.holders(services.engine, key.principal, [claim.key for claim in claims])
    for claim in claims:
        if claim.key in held:
            check_same(held[claim.key], claim, key)
    refuse_when_stopping(services)
    new = [number for number, claim in enumerate(claims) if claim.key not in held]
    made = services.dispatcher.submit_all(
        [asked[number][0] for number in new],
        claims=[claims[number] for number in new],
        faults=[asked[number][1] for number in new],
        key=key,
        origin=trace_context(headers),
    )
    fresh = dict(zip(new, made, strict=True))
    return [
        await holder_of(services, fresh[number], claim)
        if number in fresh
        else await first_of(services, held[claim.key], *asked[number][0])
        for number, claim in enumerate(claims)
    ]
