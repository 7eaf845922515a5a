"""Recovery: calls that an earlier start left open are ended or resumed. Nothing is run twice."""

import asyncio
import logging
from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask
from app.core.calls import Call, Status
from app.core.errors import Canceled, Interrupted, SealBroken
from app.core.principals import Key
from app.core.results import Truncation
from app.core.sessions import DEFAULT_SESSION, Session
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.journal import Journal
from app.dispatch.session.sessions import DELETED
from app.store import asks, calls, sessions

log = logging.getLogger(__name__)

RAN = "The service ended while this call was running: outcome unknown, not run again."
WAITED = "The service ended while this call waited, and so did the call that made it; it was not run."
UNREADABLE = "The service stopped while this call waited, and its sealed arguments cannot be read; it was not run."


async def recover(engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher, keys: Mapping[str, Key]) -> None:
    """Running calls end `Interrupted` with their stored output. Pending ones and those that a client runs are resumed,
    unless their parent or session is gone."""
    left = await calls.unfinished(engine)
    resumable = [call for call in left if _is_resumable(call)]
    lost = [call for call in left if not _is_resumable(call)]
    open_asks = await asks.open_by_call(engine) if left else {}
    canceled = await calls.cancel_requested(engine) if resumable else set()
    await asyncio.gather(*(_interrupt(call, journal, dispatcher, open_asks.get(call.id)) for call in lost))
    for call in resumable:
        session = await sessions.get(engine, call.principal, call.session)
        if session is None and call.session == DEFAULT_SESSION:  # it exists without being stored
            session = Session(call.principal, call.session)
        if session is None or call.id in canceled:
            reason = DELETED if session is None else "The call was canceled."
            await journal.end_orphan(call, None, Canceled(reason), open_asks.get(call.id))
            continue
        key = keys.get(call.key) if call.key else None
        if not await _resume(call, session, key, dispatcher):
            await journal.end_orphan(call, None, Interrupted(UNREADABLE), open_asks.get(call.id))
    if left:
        log.info("after the last stop: %d calls interrupted, %d resumed", len(lost), len(resumable))


def _is_resumable(call: Call) -> bool:
    return call.parent is None and (call.status is Status.PENDING or call.deadline is not None)


async def _resume(call: Call, session: Session, key: Key | None, dispatcher: Dispatcher) -> bool:
    """Resume the call; False when its sealed arguments cannot be read any more."""
    try:
        await dispatcher.resume(call, session, key)
    except SealBroken as error:
        if call.status is Status.PENDING:
            log.error("call %s cannot be resumed: %s", call.id, error)
            return False
        call.sealed = None  # its client has the arguments; they are not needed here
        await dispatcher.resume(call, session, key)
    return True


async def _interrupt(call: Call, journal: Journal, dispatcher: Dispatcher, ask: Ask | None) -> None:
    tool = dispatcher.registry.get(call.tool, call.principal)
    stored = await journal.partial(call, tool.truncation if tool else Truncation())
    await journal.end_orphan(
        call, stored if stored.output else None, Interrupted(RAN if call.status is Status.RUNNING else WAITED), ask
    )
