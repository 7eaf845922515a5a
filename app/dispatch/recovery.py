"""Recovery: what an earlier service left open gets its end, or goes on. Nothing is run twice."""

import asyncio
import logging

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status
from app.core.errors import Canceled, Interrupted, SealBroken
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Truncation
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.journal import Journal
from app.dispatch.truncate import truncate
from app.store import calls, sessions

log = logging.getLogger(__name__)

RAN = "The service ended while this call was running: outcome unknown, not run again."
WAITED = "The service ended while this call waited, and so did the call that made it; it was not run."
UNREADABLE = "The service stopped while this call waited, and its sealed arguments cannot be read; it was not run."


async def recover(engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher) -> None:
    """What ran here ends `Interrupted` with what output is stored. What is pending or runs at its client goes on,
    unless its parent is gone."""
    left = await calls.unfinished(engine)
    kept = [call for call in left if _can_go_on(call)]
    lost = [call for call in left if not _can_go_on(call)]
    unwanted = await calls.unwanted(engine) if kept else set()
    await asyncio.gather(*(_interrupt(call, journal, dispatcher) for call in lost))
    for call in kept:
        if call.id in unwanted:
            await journal.bury(call, None, Canceled("The call was canceled."))
        else:
            await _go_on(call, engine, journal, dispatcher)
    if left:
        log.info("after the last stop: %d calls interrupted, %d resumed", len(lost), len(kept))


def _can_go_on(call: Call) -> bool:
    return call.parent is None and (call.status is Status.PENDING or call.deadline is not None)


async def _go_on(call: Call, engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher) -> None:
    session = await sessions.get(engine, call.principal, call.session) or Session(call.principal, call.session)
    try:
        await dispatcher.resume(call, session)
    except SealBroken as error:
        if call.status is Status.PENDING:
            log.error("call %s cannot go on: %s", call.id, error)
            await journal.bury(call, None, Interrupted(UNREADABLE))
            return
        call.sealed = None  # its client has the arguments, and here nobody needs them
        await dispatcher.resume(call, session)


async def _interrupt(call: Call, journal: Journal, dispatcher: Dispatcher) -> None:
    tool = dispatcher.registry.get(call.tool)
    policy = tool.truncation if tool else Truncation()
    stored = await journal.partial(call)
    result = truncate(Result(output=stored), policy) if stored else None
    await journal.bury(call, result, Interrupted(RAN if call.status is Status.RUNNING else WAITED))
