"""Recovery: what an earlier service left open gets its end, or goes on. Nothing is run twice."""

import asyncio
import logging
from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask
from app.core.calls import Call, Status
from app.core.errors import Canceled, Interrupted, SealBroken
from app.core.principals import Key
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Truncation
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.journal import Journal
from app.dispatch.session.sessions import DELETED
from app.store import asks, calls, sessions

log = logging.getLogger(__name__)

RAN = "The service ended while this call was running: outcome unknown, not run again."
WAITED = "The service ended while this call waited, and so did the call that made it; it was not run."
UNREADABLE = "The service stopped while this call waited, and its sealed arguments cannot be read; it was not run."


async def recover(engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher, keys: Mapping[str, Key]) -> None:
    """What ran here ends `Interrupted` with what output is stored. What is pending or runs at its client goes on,
    unless its parent or its session is gone."""
    left = await calls.unfinished(engine)
    kept = [call for call in left if _can_go_on(call)]
    lost = [call for call in left if not _can_go_on(call)]
    asked = await asks.open_by_call(engine) if left else {}
    unwanted = await calls.cancel_requested(engine) if kept else set()
    await asyncio.gather(*(_interrupt(call, journal, dispatcher, asked.get(call.id)) for call in lost))
    for call in kept:
        session = await _session_of(call, engine)
        if session is None or call.id in unwanted:
            reason = DELETED if session is None else "The call was canceled."
            await journal.bury(call, None, Canceled(reason), asked.get(call.id))
            continue
        key = keys.get(call.key) if call.key else None
        if not await _go_on(call, session, key, dispatcher):
            await journal.bury(call, None, Interrupted(UNREADABLE), asked.get(call.id))
    if left:
        log.info("after the last stop: %d calls interrupted, %d resumed", len(lost), len(kept))


def _can_go_on(call: Call) -> bool:
    return call.parent is None and (call.status is Status.PENDING or call.deadline is not None)


async def _session_of(call: Call, engine: AsyncEngine) -> Session | None:
    """Without its session a call would run outside all that bound it; only the default one is always there."""
    found = await sessions.get(engine, call.principal, call.session)
    return found or (Session(call.principal, call.session) if call.session == DEFAULT_SESSION else None)


async def _go_on(call: Call, session: Session, key: Key | None, dispatcher: Dispatcher) -> bool:
    """Set it on the line again; False when what it was given cannot be read any more."""
    try:
        await dispatcher.resume(call, session, key)
    except SealBroken as error:
        if call.status is Status.PENDING:
            log.error("call %s cannot go on: %s", call.id, error)
            return False
        call.sealed = None  # its client has the arguments, and here nobody needs them
        await dispatcher.resume(call, session, key)
    return True


async def _interrupt(call: Call, journal: Journal, dispatcher: Dispatcher, ask: Ask | None) -> None:
    tool = dispatcher.registry.get(call.tool, call.principal)
    stored = await journal.partial(call, tool.truncation if tool else Truncation())
    await journal.bury(
        call, stored if stored.output else None, Interrupted(RAN if call.status is Status.RUNNING else WAITED), ask
    )
