"""The journal: each step of a call as one change in the store, with its event in the same transaction."""

import logging
from copy import copy
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status, Waiting
from app.core.errors import CallError, Internal
from app.core.events import Event, EventType
from app.core.jsons import dumps
from app.core.ports import Clock
from app.core.results import Result
from app.dispatch.events import Hub
from app.dispatch.outputs import CHUNK, Spool, encoded, whole_characters
from app.dispatch.running import LiveCall
from app.store import calls, outputs, sessions
from app.store.calls import Claimed
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)


class Lost(Exception):
    """A compare-and-set found the call elsewhere: another owner has it, or it has ended."""


class Journal:
    def __init__(
        self, writer: Writer, engine: AsyncEngine, hub: Hub, clock: Clock, owner: str, output_limit: int
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._hub = hub
        self._clock = clock
        self._owner = owner
        self._output_limit = output_limit

    async def open(self, live: LiveCall, *, start: bool = False, error: CallError | None = None) -> None:
        """Accept the call: pending, and in the same commit running or its end when that is known already."""
        call = live.call
        told = [self._event(call, EventType.CALL_PENDING)]
        if start:
            self._mark_running(live, call.created_at)
            told.append(self._event(call, EventType.CALL_RUNNING))
        elif error is not None:
            self._mark_ended(live, error.result, error)
            told.append(self._event(call, EventType.CALL_ERROR))

        def accept(batch: Batch) -> Claimed | None:
            if live.claim and (holder := calls.claim(batch, call, live.claim)):
                return holder
            calls.add(batch, call, self._owner)
            for event in told:
                batch.tell(event, call)
            return None

        live.claimed = await self._writer.submit(accept)

    async def settle(self, live: LiveCall, payload: Any) -> None:
        """Keep what hooks and validation made of the arguments, so that a resumed call does not ask them again."""
        call, effective = live.call, dumps(payload).decode()
        with live.steady():
            await self._writer.submit(lambda batch: calls.settle(batch, call, self._owner, effective))
            call.effective = effective

    async def wait(self, live: LiveCall, waiting: Waiting) -> None:
        call = live.call
        event = self._event(call, EventType.CALL_WAITING, {"waiting": waiting.value})

        def note(batch: Batch) -> None:
            if calls.wait(batch, call, self._owner, waiting):
                batch.tell(event, call)

        with live.steady():
            await self._writer.submit(note)

    async def start(self, live: LiveCall) -> None:
        """Pending becomes running, committed before the first side effect."""
        call, at = live.call, self._clock.now()
        event = self._event(call, EventType.CALL_RUNNING)

        def begin(batch: Batch) -> bool:
            if not calls.start(batch, call, self._owner, at):
                return False
            batch.tell(event, call)
            return True

        with live.steady():
            if not await self._writer.submit(begin):
                raise Lost(call.id)
            self._mark_running(live, at)

    async def close(self, live: LiveCall, result: Result | None, error: CallError | None, whole: str | None) -> None:
        """The one end. `whole` is the full output when the result holds only a part of it."""
        call, was = live.call, live.call.status
        if live.spool is not None:
            await live.spool.finish()
            call.output_dropped = live.spool.dropped
        self._tell_progress(live)
        rows = self._rows_of(call, whole) if whole is not None else []
        try:
            self._mark_ended(live, result, error)
        except (TypeError, ValueError):
            log.exception("call %s gave back what JSON cannot say", call.id)
            error = Internal("The tool gave back what cannot be written as JSON; this is a bug of the tool.")
            self._mark_ended(live, None, error)
        event = self._event(call, EventType.CALL_ERROR if error else EventType.CALL_COMPLETED)

        def end(batch: Batch) -> bool:
            if not calls.close(batch, call, was, self._owner):
                return False
            for start, data in rows:
                outputs.add(batch, call.id, start, "stdout", data)
            batch.tell(event, call)
            return True

        if not await self._writer.submit(end):
            raise Lost(call.id)

    async def request_cancel(self, live: LiveCall) -> None:
        """Note that somebody wants a running call to stop."""
        call, at = live.call, self._clock.now()
        await self._writer.submit(lambda batch: calls.request_cancel(batch, call, self._owner, at))

    async def adopt(self, live: LiveCall) -> None:
        """Take over a pending call of an earlier start."""
        live.call.attempt += 1
        live.call.waiting = None
        await self._writer.submit(lambda batch: calls.adopt(batch, live.call, self._owner))

    async def bury(self, call: Call, result: Result | None, reason: CallError) -> None:
        """Give an end to a running call whose service is gone."""
        was, end = call.status, copy(call)
        _mark_end(end, result, reason)
        end.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        event = self._event(end, EventType.CALL_ERROR)

        def inherit(batch: Batch) -> None:
            if calls.adopt(batch, call, self._owner) and calls.close(batch, end, was, self._owner):
                batch.tell(event, end)

        await self._writer.submit(inherit)

    def progress(self, live: LiveCall, title: str | None, metadata: dict[str, Any] | None) -> None:
        """Tell how far it is. While one telling is under way, the next ones are merged into one."""
        dumps(metadata)  # what JSON cannot say must fail here, in the tool, and not when it is told
        data = live.progress or {"title": None, "metadata": {}}
        live.progress = {"title": title or data["title"], "metadata": data["metadata"] | (metadata or {})}
        if not live.is_telling:
            self._tell_progress(live)

    async def output(self, live: LiveCall, text: str, stream: str) -> None:
        if live.spool is None:
            live.spool = Spool(live.call, self._writer, self._hub, self._output_limit)
        await live.spool.write(text, stream)

    async def keep_plan(self, live: LiveCall, plan: dict[str, Any]) -> None:
        text = dumps(plan).decode()
        event = self._event(live.call, EventType.PLAN_UPDATED, plan)

        def keep(batch: Batch) -> None:
            sessions.keep_plan(batch, live.session, text)
            batch.tell(event)

        await self._writer.submit(keep)

    async def partial(self, call: Call) -> str:
        """What is stored of a call's output: all of it, because the part that is shown may be its tail."""
        return (await outputs.read(self._engine, call.id, 0, self._output_limit)).decode("utf-8", "replace")

    def _tell_progress(self, live: LiveCall) -> None:
        if live.progress is None:
            return
        event = self._event(live.call, EventType.CALL_PROGRESS, live.progress)
        live.progress, live.is_telling = None, True
        self._writer.submit(lambda batch: batch.tell(event, live.call)).add_done_callback(lambda _: self._told(live))

    def _told(self, live: LiveCall) -> None:
        live.is_telling = False
        if not live.is_done and not live.call.is_final:
            self._tell_progress(live)

    def _rows_of(self, call: Call, whole: str) -> list[tuple[int, bytes]]:
        data = encoded(whole)
        kept = whole_characters(data, self._output_limit)
        call.output_dropped = len(data) - kept
        rows, start = [], 0
        while start < kept:
            size = whole_characters(data[start : min(start + CHUNK + 1, kept)], CHUNK)
            rows.append((start, data[start : start + size]))
            start += size
        return rows

    def _mark_running(self, live: LiveCall, at: int) -> None:
        live.started = self._clock.monotonic()
        live.call.status = Status.RUNNING
        live.call.waiting = None
        live.call.started_at = at

    def _mark_ended(self, live: LiveCall, result: Result | None, error: CallError | None) -> None:
        call = live.call
        _mark_end(call, result, error)
        call.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        if live.started is not None:
            call.duration_us = int((self._clock.monotonic() - live.started) * 1_000_000)

    def _event(self, call: Call, type: EventType, data: dict[str, Any] | None = None) -> Event:
        text = None if data is None else dumps(data).decode()
        return Event(0, type, call.id, call.principal, call.session, self._clock.now(), text)


def _mark_end(call: Call, result: Result | None, error: CallError | None) -> None:
    call.status = Status.ERROR if error else Status.COMPLETED
    call.waiting = None
    call.result = dumps(result).decode() if result is not None else None
    call.error = dumps(error.as_dict()).decode() if error is not None else None
