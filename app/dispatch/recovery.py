"""Recovery: what an earlier service left open gets its end, or goes on. Nothing is run twice."""

import asyncio
import logging
from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask
from app.core.calls import Call, Status
from app.core.errors import Canceled, Interrupted, SealBroken
from app.core.principals import Key
from app.core.results import Result
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Truncation
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.journal import Journal
from app.dispatch.sessions import DELETED
from app.dispatch.truncate import truncate
from app.store import asks, calls, sessions

log = logging.getLogger(__name__)

RAN = "The service ended while this call was running: outcome unknown, not run again."
WAITED = "The service ended while this call waited, and so did the call that made it; it was not run."
UNREADABLE = "The service stopped while this call waited, and its sealed arguments cannot be read; it was not run."


async def recover(engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher, keys: Mapping[str, Key]) -> None:
    """`running` ends `Interrupted` with what output is stored; `pending` is resumed, unless its parent is gone."""
    left = await calls.unfinished(engine)
    waiting = [call for call in left if _can_go_on(call)]
    lost = [call for call in left if not _can_go_on(call)]
    asked = await asks.open_by_call(engine) if left else {}
    await asyncio.gather(*(_interrupt(call, journal, dispatcher, asked.get(call.id)) for call in lost))
    for call in waiting:
        session = await sessions.get(engine, call.principal, call.session)
        if session is None and call.session != DEFAULT_SESSION:  # it would run outside all that bound it
            await journal.bury(call, None, Canceled(DELETED), asked.get(call.id))
            continue
        try:
            key = keys.get(call.key) if call.key else None
            await dispatcher.resume(call, session or Session(call.principal, call.session), key)
        except SealBroken as error:
            log.error("call %s cannot go on: %s", call.id, error)
            await journal.bury(call, None, Interrupted(UNREADABLE), asked.get(call.id))
    if left:
        log.info("after the last stop: %d calls interrupted, %d resumed", len(lost), len(waiting))


def _can_go_on(call: Call) -> bool:
    return call.status is Status.PENDING and call.parent is None


async def _interrupt(call: Call, journal: Journal, dispatcher: Dispatcher, ask: Ask | None) -> None:
    tool = dispatcher.registry.get(call.tool)
    policy = tool.truncation if tool else Truncation()
    stored = await journal.partial(call)
    result = truncate(Result(output=stored), policy) if stored else None
    await journal.bury(call, result, Interrupted(RAN if call.status is Status.RUNNING else WAITED), ask)
