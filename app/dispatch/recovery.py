"""Recovery: what an earlier service left open gets its end, or goes on. Nothing is run twice."""

import asyncio
import logging

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status
from app.core.errors import Interrupted
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Truncation
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.journal import Journal
from app.dispatch.truncate import truncate
from app.store import calls, sessions

log = logging.getLogger(__name__)


async def recover(engine: AsyncEngine, journal: Journal, dispatcher: Dispatcher) -> None:
    """`running` ends `Interrupted` with what output is stored; `pending` is resumed."""
    left = await calls.unfinished(engine)
    was_running = [call for call in left if call.status is Status.RUNNING]
    await asyncio.gather(*(_interrupt(call, journal, dispatcher) for call in was_running))
    was_pending = [call for call in left if call.status is Status.PENDING]
    for call in was_pending:
        session = await sessions.get(engine, call.principal, call.session)
        await dispatcher.resume(call, session or Session(call.principal, call.session))
    if left:
        log.info("after the last stop: %d calls interrupted, %d resumed", len(was_running), len(was_pending))


async def _interrupt(call: Call, journal: Journal, dispatcher: Dispatcher) -> None:
    tool = dispatcher.registry.get(call.tool)
    policy = tool.truncation if tool else Truncation()
    stored = await journal.partial(call, policy.limit)
    result = truncate(Result(output=stored), policy) if stored else None
    reason = Interrupted("The service ended while this call was running: outcome unknown, not run again.")
    await journal.bury(call, result, reason)
