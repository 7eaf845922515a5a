"""The journal: each step of a call as one change in the store, with its event in the same transaction."""

import asyncio
import logging
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask, AskStatus
from app.core.calls import Call, Status, Waiting
from app.core.errors import CallError, Internal, StoreUnavailable
from app.core.events import Event, EventType
from app.core.ports import Clock
from app.core.results import Result
from app.core.sandbox import NetworkDecision
from app.core.tools import Truncation
from app.core.util.head_tail import encoded, whole_characters
from app.core.util.json_codec import dumps
from app.dispatch.attachments import StoredAttachment, is_large, set_apart
from app.dispatch.call_records import given_to
from app.dispatch.call_stats import CallStats
from app.dispatch.client_run import left_of
from app.dispatch.events.hub import EventHub
from app.dispatch.events.output_spool import CHUNK, Spool, shown_of
from app.dispatch.live_calls import LiveCall
from app.dispatch.redaction import CallRedactor
from app.dispatch.retries import submit_until_stored
from app.store import asks, calls, outputs, sessions
from app.store.calls import Claimed
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)

T = TypeVar("T")


class TransitionLost(Exception):
    """A compare-and-set found the call elsewhere: another owner has it, or it has ended."""


class Journal:
    def __init__(
        self,
        writer: Writer,
        engine: AsyncEngine,
        hub: EventHub,
        *,
        clock: Clock,
        cover: CallRedactor,
        ledger: CallStats,
        owner: str,
        output_limit: int,
        root_path: str = "",
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._hub = hub
        self._clock = clock
        self.cover = cover
        self._owner = owner
        self._output_limit = output_limit
        self._ledger = ledger
        self._root_path = root_path

    async def open(self, live: LiveCall, *, start: bool = False, error: CallError | None = None) -> None:
        """Accept the call: pending, and in the same commit running or its end when that is known already."""
        call = live.call
        self.cover.call(call)
        told = [self.event(call, EventType.CALL_PENDING)]
        if start:
            self._mark_running(live, call.created_at)
            told.append(self.event(call, EventType.CALL_RUNNING))
        elif error is not None:
            self._mark_ended(live, error.result, error)
            told.append(self.event(call, EventType.CALL_ERROR))

        def accept(batch: Batch) -> Claimed | None:
            if live.claim and (holder := calls.claim(batch, call, live.claim)):
                return holder
            calls.add(batch, call, self._owner)
            for event in told:
                batch.publish(event, call)
            return None

        live.claimed = await self._writer.submit(accept)
        if error is not None and live.claimed is None:
            self._ledger.note(call, error)

    async def settle(self, live: LiveCall, payload: Any) -> None:
        """Keep what hooks and validation made of the arguments, so that a resumed call does not ask them again."""
        call, effective = live.call, dumps(payload).decode()
        kept, sealed = self.cover.settled(call, given_to(live.request), effective)
        with live.steady():
            await self._step(live, lambda batch: calls.set_effective(batch, call, self._owner, kept, sealed))
            live.settled, call.effective, call.sealed = effective, kept, sealed

    async def wait(self, live: LiveCall, waiting: Waiting | None, also: Callable[[Batch], None] | None = None) -> None:
        """Tell what the call waits for now; `also` is committed with it."""
        call = live.call
        event = self.event(call, EventType.CALL_WAITING, {"waiting": waiting and waiting.value})

        def note(batch: Batch) -> bool:
            if not calls.set_waiting(batch, call, self._owner, waiting):
                return False
            batch.publish(event, call)
            if also is not None:
                also(batch)
            return True

        with live.steady():
            if not await self._step(live, note):
                raise TransitionLost(call.id)
            call.waiting = waiting  # until it runs or ends

    async def start(self, live: LiveCall) -> None:
        """Pending becomes running, committed before the first side effect."""
        call, at = live.call, max(self._clock.now(), live.call.created_at)
        call.deadline = live.client.deadline(at) if live.client else None
        event = self.event(call, EventType.CALL_RUNNING)

        def begin(batch: Batch) -> bool:
            if not calls.start(batch, call, self._owner, at):
                return False
            batch.publish(event, call)
            return True

        with live.steady():
            if not await self._step(live, begin):
                raise TransitionLost(call.id)
            self._mark_running(live, at)

    async def close(self, live: LiveCall, result: Result | None, error: CallError | None, whole: str | None) -> None:
        """The one end. `whole` is the full output when the result holds only a part of it."""
        call, was = live.call, live.call.status
        if live.spool is not None:
            await live.spool.finish()
            call.output_dropped = live.spool.dropped
        self._tell_progress(live)
        rows = self._rows_of(call, whole) if whole is not None else []
        result, apart = await self._set_apart(call, result)
        try:
            self._mark_ended(live, result, error)
        except (TypeError, ValueError):
            log.exception("call %s gave back what JSON cannot say", call.id)
            error = Internal("The tool gave back what cannot be written as JSON; this is a bug of the tool.")
            self._mark_ended(live, None, error)
        event = self.event(call, EventType.CALL_ERROR if error else EventType.CALL_COMPLETED)

        over = self.ask_over(live.ask, "The call has ended.")

        def end(batch: Batch) -> bool:
            if not calls.close(batch, call, was, self._owner):
                return False
            for start, data in rows:
                outputs.add(batch, call.id, start, "stdout", data)
            for one in apart if call.result else []:
                outputs.add_attachment(batch, call.id, one.number, one.data)
            over(batch)
            batch.publish(event, call)
            return True

        try:
            is_mine = await self._writer.submit(end)
        except StoreUnavailable as refused:
            is_mine = await self._end_late(live, end, refused)
        except Exception:  # noqa: BLE001 - this end cannot be stored, so the call gets one that can
            is_mine = await self._end_otherwise(live, was)
        if not is_mine:
            raise TransitionLost(call.id)
        self._ledger.note(call, error)

    def request_cancel(self, live: LiveCall) -> None:
        """Note that somebody wants a running call to stop. Nobody waits for it: the end will say so too."""
        call, at = live.call, self._clock.now()
        noted = self._writer.submit(lambda batch: calls.request_cancel(batch, call, self._owner, at))
        noted.add_done_callback(lambda done: _shrug(done, f"the wish to cancel {call.id}"))

    async def adopt(self, live: LiveCall) -> None:
        """Take over a call of an earlier start: one that is pending, or one that runs at its client.

        One with an open ask waits for it still.
        """
        call, now = live.call, self._clock.now()
        if call.started_at is None or call.deadline is None:
            call.attempt += 1
        else:
            live.client = left_of(call.started_at, call.deadline, now)
            live.started = self._clock.monotonic() - max(now - call.started_at, 0) / 1_000_000
        call.waiting = live.ask.waiting if live.ask else None
        await self._writer.submit(lambda batch: calls.adopt(batch, call, self._owner))

    async def bury(self, call: Call, result: Result | None, reason: CallError, ask: Ask | None = None) -> None:
        """Give an end to a running call whose service is gone."""
        was, end = call.status, copy(call)
        self._mark_end(end, result, reason)
        end.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        event = self.event(end, EventType.CALL_ERROR)
        over = self.ask_over(ask, "The service stopped while its call was running.")

        def inherit(batch: Batch) -> bool:
            if not (calls.adopt(batch, call, self._owner) and calls.close(batch, end, was, self._owner)):
                return False
            over(batch)
            batch.publish(event, end)
            return True

        if await self._writer.submit(inherit):
            self._ledger.note(end, reason)

    def submit(self, change: Callable[[Batch], T]) -> "asyncio.Future[T]":
        """A change that belongs to calls but is no step of one."""
        return self._writer.submit(change)

    def ask_over(self, ask: Ask | None, reason: str) -> Callable[[Batch], None]:
        """The change that ends an ask nobody answered, if it is open still; none for no ask."""
        if ask is None:
            return lambda batch: None
        ended = replace(ask, status=AskStatus.EXPIRED, reason=reason, ended_at=self._clock.now())
        event = self.ask_event(ended, EventType.ASK_EXPIRED)

        def end(batch: Batch) -> None:
            if asks.end(batch, ended):
                batch.publish(event)

        return end

    def ask_event(self, ask: Ask, type: EventType) -> Event:
        text = self.cover.kept_data(dumps(ask.view()).decode())
        return Event(0, type, ask.call, ask.principal, ask.session, self._clock.now(), text)

    def progress(self, live: LiveCall, title: str | None, metadata: dict[str, Any] | None) -> None:
        """Tell how far it is. While one telling is under way, the next ones are merged into one."""
        dumps(metadata)  # what JSON cannot say must fail here, in the tool, and not when it is told
        live.progress = _merged(live.progress, {"title": title, "metadata": metadata or {}})
        if not live.is_telling:
            self._tell_progress(live)

    def tell_hook(self, live: LiveCall, data: dict[str, Any]) -> None:
        """Tell what a hook said. Nobody waits for it, but it comes before whatever is told next."""
        self._tell(live, EventType.CALL_HOOK, data, "what a hook said")

    def tell_decision(self, live: LiveCall, decision: NetworkDecision) -> None:
        """Tell what became of a connection. It may be of a process that goes on after its call."""
        self._tell(live, EventType.NETWORK_DECISION, decision.view(), "a connection")

    def _tell(self, live: LiveCall, type: EventType, data: dict[str, Any], what: str) -> None:
        event = self.event(live.call, type, data)
        telling = self._writer.submit(lambda batch: batch.publish(event, live.call))
        telling.add_done_callback(lambda done: _shrug(done, f"{what} of {live.call.id}"))

    async def output(self, live: LiveCall, text: str, stream: str) -> None:
        if live.spool is None:
            live.spool = Spool(live.call, self._writer, self._hub, self._output_limit, self.cover.output)
        await live.spool.write(text, stream)

    async def keep_plan(self, live: LiveCall, plan: dict[str, Any]) -> None:
        text = self.cover.kept_data(dumps(plan).decode())
        event = self.event(live.call, EventType.PLAN_UPDATED, plan)

        def keep(batch: Batch) -> None:
            sessions.save_plan(batch, live.session, text)
            batch.publish(event)

        try:
            await self._writer.submit(keep)
        except StoreUnavailable:
            await submit_until_stored(self._writer, keep)

    async def partial(self, call: Call, policy: Truncation) -> Result:
        """What is stored of a call's output, as it is shown."""
        return await shown_of(self._engine, call.id, policy)

    def elapsed_us(self, live: LiveCall) -> int:
        """Microseconds since it began to run."""
        return 0 if live.started is None else int((self._clock.monotonic() - live.started) * 1_000_000)

    def _tell_progress(self, live: LiveCall) -> None:
        if live.progress is None:
            return
        said = live.progress
        event = self.event(live.call, EventType.CALL_PROGRESS, said)
        live.progress, live.is_telling = None, True
        telling = self._writer.submit(lambda batch: batch.publish(event, live.call))
        telling.add_done_callback(lambda done: self._told(live, said, done))

    def _told(self, live: LiveCall, said: dict[str, Any], done: "asyncio.Future[None]") -> None:
        live.is_telling = False
        if _shrug(done, f"the progress of {live.call.id}"):
            live.progress = _merged(said, live.progress)  # it goes with what is told next
        elif not live.is_done and not live.call.is_final:
            self._tell_progress(live)

    async def _step(self, live: LiveCall, change: Callable[[Batch], T]) -> T:
        """One step of an accepted call: a store that refuses it is asked again, and meanwhile it can be stopped."""
        try:
            return await self._writer.submit(change)
        except StoreUnavailable as refused:
            log.warning("call %s waits for the store: %s", live.call.id, refused)
            return await submit_until_stored(self._writer, change, live.pause)

    async def _end_late(self, live: LiveCall, end: Callable[[Batch], bool], refused: StoreUnavailable) -> bool:
        """The tool has ended, but the store cannot be told yet: the end is kept here until it can."""
        log.warning("the end of call %s waits for the store: %s", live.call.id, refused)
        if live.place is not None:
            live.place.leave()
        return await submit_until_stored(self._writer, end)

    async def _end_otherwise(self, live: LiveCall, was: Status) -> bool:
        """An end without the result that the database does not take."""
        call = live.call
        log.exception("the result of call %s cannot be stored", call.id)
        self._mark_ended(live, None, Internal("The tool gave back what cannot be stored; this is a bug of the tool."))
        event = self.event(call, EventType.CALL_ERROR)
        over = self.ask_over(live.ask, "The call has ended.")

        def end(batch: Batch) -> bool:
            if not calls.close(batch, call, was, self._owner):
                return False
            over(batch)
            batch.publish(event, call)
            return True

        try:
            return await self._writer.submit(end)
        except StoreUnavailable as refused:
            return await self._end_late(live, end, refused)

    async def _set_apart(self, call: Call, result: Result | None) -> tuple[Result | None, list[StoredAttachment]]:
        if result is None or not result.attachments:
            return result, []
        place = f"{self._root_path}/v1/calls/{call.id}/attachments"
        if is_large(result):
            return await asyncio.to_thread(set_apart, result, place, self.cover)
        return set_apart(result, place, self.cover)

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
        live.call.deadline = live.client.deadline(at) if live.client else None

    def _mark_ended(self, live: LiveCall, result: Result | None, error: CallError | None) -> None:
        call = live.call
        self._mark_end(call, result, error)
        call.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        if live.started is not None:
            call.duration_us = self.elapsed_us(live)

    def _mark_end(self, call: Call, result: Result | None, error: CallError | None) -> None:
        call.status = Status.ERROR if error else Status.COMPLETED
        call.waiting = None
        call.sealed = None
        call.result = self.cover.kept_result(result) if result is not None else None
        call.error = self.cover.kept_error(error) if error is not None else None

    def event(self, call: Call, type: EventType, data: dict[str, Any] | None = None) -> Event:
        text = None if data is None else self.cover.kept_data(dumps(data).decode())
        return Event(0, type, call.id, call.principal, call.session, self._clock.now(), text)


def _merged(older: dict[str, Any] | None, newer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two tellings of progress as one."""
    if older is None or newer is None:
        return older or newer
    return {"title": newer["title"] or older["title"], "metadata": older["metadata"] | newer["metadata"]}


def _shrug(done: "asyncio.Future[Any]", what: str) -> bool:
    """Whether the store refused a record that may be missing; then the log knows."""
    if done.cancelled() or done.exception() is None:
        return False
    log.warning("%s could not be recorded: %s", what, done.exception())
    return True
