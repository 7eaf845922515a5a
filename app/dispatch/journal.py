"""The journal: writes each transition of a call, with its event in the same transaction."""

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
from app.core.results import Result, Truncation
from app.core.sandbox import NetworkDecision
from app.core.util.head_tail import encoded, whole_characters
from app.core.util.json_codec import dumps
from app.dispatch.attachments import StoredAttachment, is_large, separate
from app.dispatch.call_records import originals_of
from app.dispatch.call_stats import CallStats
from app.dispatch.client_run import resume_client_run
from app.dispatch.events.hub import EventHub
from app.dispatch.events.output_spool import CHUNK_BYTES, Spool, load_shown
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
        redactor: CallRedactor,
        stats: CallStats,
        owner: str,
        output_limit: int,
        root_path: str = "",
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._hub = hub
        self._clock = clock
        self._redactor = redactor
        self._owner = owner
        self._output_limit = output_limit
        self._stats = stats
        self._root_path = root_path

    async def open(self, live: LiveCall, *, start: bool = False, error: CallError | None = None) -> None:
        """Accept the call as pending; the same commit can start it, or end it with an error."""
        call = live.call
        self._redactor.redact_call(call)
        events = [self.event(call, EventType.CALL_PENDING)]
        if start:
            self._mark_running(live, call.created_at)
            events.append(self.event(call, EventType.CALL_RUNNING))
        elif error is not None:
            self._mark_ended(live, error.result, error)
            events.append(self.event(call, EventType.CALL_ERROR))

        def accept(batch: Batch) -> Claimed | None:
            if live.claim and (holder := calls.claim(batch, call, live.claim)):
                return holder
            calls.add(batch, call, self._owner)
            for event in events:
                batch.publish(event, call)
            return None

        live.record.claimed = await self._writer.submit(accept)
        if error is not None and live.record.claimed is None:
            self._stats.record(call, error)

    async def store_effective_arguments(self, live: LiveCall, payload: Any) -> None:
        """Store the arguments as hooks left them, so that a resumed call does not run the hooks again."""
        if live.record.effective_arguments is not None:
            return
        call, effective = live.call, dumps(payload).decode()
        stored, sealed = self._redactor.redact_arguments(call, originals_of(live.request), effective)
        with live.uninterruptible():
            await self._submit_step(live, lambda batch: calls.set_effective(batch, call, self._owner, stored, sealed))
            live.record.effective_arguments, call.effective, call.sealed = effective, stored, sealed

    async def wait(self, live: LiveCall, waiting: Waiting | None, also: Callable[[Batch], None] | None = None) -> None:
        """Record and publish what the call waits for; `also` is committed with it."""
        call = live.call
        event = self.event(call, EventType.CALL_WAITING, {"waiting": waiting and waiting.value})

        def record(batch: Batch) -> bool:
            if not calls.set_waiting(batch, call, self._owner, waiting):
                return False
            batch.publish(event, call)
            if also is not None:
                also(batch)
            return True

        with live.uninterruptible():
            if not await self._submit_step(live, record):
                raise TransitionLost(call.id)
            call.waiting = waiting  # until it runs or ends

    async def start(self, live: LiveCall) -> None:
        """Pending becomes running, committed before the first side effect."""
        call, at = live.call, max(self._clock.now(), live.call.created_at)
        call.deadline = live.execution.client.deadline(at) if live.execution.client else None
        event = self.event(call, EventType.CALL_RUNNING)

        def begin(batch: Batch) -> bool:
            if not calls.start(batch, call, self._owner, at):
                return False
            batch.publish(event, call)
            return True

        with live.uninterruptible():
            if not await self._submit_step(live, begin):
                raise TransitionLost(call.id)
            self._mark_running(live, at)

    async def close(self, live: LiveCall, result: Result | None, error: CallError | None, whole: str | None) -> None:
        """Write the one end. `whole` is the full output when the result holds only a part of it."""
        call, was = live.call, live.call.status
        if live.record.spool is not None:
            await live.record.spool.finish()
            call.output_dropped = live.record.spool.dropped
        self._publish_progress(live)
        rows = self._rows_of(call, whole) if whole is not None else []
        result, attached = await self._separate_attachments(call, result)
        try:
            self._mark_ended(live, result, error)
        except (TypeError, ValueError):
            log.exception("call %s returned what JSON cannot represent", call.id)
            error = Internal("The tool returned what cannot be written as JSON; this is a bug of the tool.")
            self._mark_ended(live, None, error)
        event = self.event(call, EventType.CALL_ERROR if error else EventType.CALL_COMPLETED)

        over = self.expire_ask(live.approval.ask, "The call has ended.")

        def end(batch: Batch) -> bool:
            if not calls.close(batch, call, was, self._owner):
                return False
            for start, data in rows:
                outputs.add(batch, call.id, start, "stdout", data)
            for one in attached if call.result else []:
                outputs.add_attachment(batch, call.id, one.number, one.data)
            over(batch)
            batch.publish(event, call)
            return True

        try:
            is_stored = await self._writer.submit(end)
        except StoreUnavailable as refused:
            is_stored = await self._end_late(live, end, refused)
        except Exception:  # noqa: BLE001 - this end cannot be stored, so the call gets one that can
            is_stored = await self._end_otherwise(live, was)
        if not is_stored:
            raise TransitionLost(call.id)
        self._stats.record(call, error)

    def request_cancel(self, live: LiveCall) -> None:
        """Record the request to cancel a running call, without waiting for the commit."""
        call, at = live.call, self._clock.now()
        stored = self._writer.submit(lambda batch: calls.request_cancel(batch, call, self._owner, at))
        stored.add_done_callback(lambda done: _log_failure(done, f"the request to cancel {call.id}"))

    async def adopt(self, live: LiveCall) -> None:
        """Take over a call of an earlier start: one that is pending, or one that its client runs."""
        call, now = live.call, self._clock.now()
        if call.started_at is None or call.deadline is None:
            call.attempt += 1
        else:
            live.execution.client = resume_client_run(call.started_at, call.deadline, now)
            live.record.started = self._clock.monotonic() - max(now - call.started_at, 0) / 1_000_000
        call.waiting = live.approval.ask.waiting if live.approval.ask else None
        await self._writer.submit(lambda batch: calls.adopt(batch, call, self._owner))

    async def end_orphan(self, call: Call, result: Result | None, reason: CallError, ask: Ask | None = None) -> None:
        """End a call whose service process is gone."""
        was, ended = call.status, copy(call)
        self._mark_end(ended, result, reason)
        ended.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        event = self.event(ended, EventType.CALL_ERROR)
        over = self.expire_ask(ask, "The service stopped while its call was running.")

        def end(batch: Batch) -> bool:
            if not (calls.adopt(batch, call, self._owner) and calls.close(batch, ended, was, self._owner)):
                return False
            over(batch)
            batch.publish(event, ended)
            return True

        if await self._writer.submit(end):
            self._stats.record(ended, reason)

    def submit(self, change: Callable[[Batch], T]) -> "asyncio.Future[T]":
        """A change that belongs to calls but is no transition of one."""
        return self._writer.submit(change)

    def expire_ask(self, ask: Ask | None, reason: str) -> Callable[[Batch], None]:
        """The change that expires an ask if it is still open; it does nothing without an ask."""
        if ask is None:
            return lambda batch: None
        ended = replace(ask, status=AskStatus.EXPIRED, reason=reason, ended_at=self._clock.now())
        event = self.ask_event(ended, EventType.ASK_EXPIRED)

        def end(batch: Batch) -> None:
            if asks.end(batch, ended):
                batch.publish(event)

        return end

    def ask_event(self, ask: Ask, type: EventType) -> Event:
        text = self._redactor.redact_json(dumps(ask.view()).decode())
        return Event(0, type, ask.call, ask.principal, ask.session, self._clock.now(), text)

    def progress(self, live: LiveCall, title: str | None, metadata: dict[str, Any] | None) -> None:
        """Publish progress. While one event is being stored, later ones are merged into one."""
        dumps(metadata)  # what JSON cannot represent must fail here, in the tool
        live.record.progress = _merged(live.record.progress, {"title": title, "metadata": metadata or {}})
        if not live.record.is_publishing_progress:
            self._publish_progress(live)

    def publish_hook(self, live: LiveCall, data: dict[str, Any]) -> None:
        """Publish what a hook answered, without waiting; it is stored before any later event."""
        self._publish(live, EventType.CALL_HOOK, data, "the answer of a hook")

    def publish_network_decision(self, live: LiveCall, decision: NetworkDecision) -> None:
        """Publish what was decided on a connection; its process may outlive the call."""
        self._publish(live, EventType.NETWORK_DECISION, decision.view(), "a connection")

    def _publish(self, live: LiveCall, type: EventType, data: dict[str, Any], what: str) -> None:
        event = self.event(live.call, type, data)
        stored = self._writer.submit(lambda batch: batch.publish(event, live.call))
        stored.add_done_callback(lambda done: _log_failure(done, f"{what} of {live.call.id}"))

    async def output(self, live: LiveCall, text: str, stream: str) -> None:
        if live.record.spool is None:
            live.record.spool = Spool(
                live.call, self._writer, self._hub, self._output_limit, self._redactor.output_stream
            )
        await live.record.spool.write(text, stream)

    async def save_plan(self, live: LiveCall, plan: dict[str, Any]) -> None:
        text = self._redactor.redact_json(dumps(plan).decode())
        event = self.event(live.call, EventType.PLAN_UPDATED, plan)

        def save(batch: Batch) -> None:
            sessions.save_plan(batch, live.session, text)
            batch.publish(event)

        try:
            await self._writer.submit(save)
        except StoreUnavailable:
            await submit_until_stored(self._writer, save)

    async def partial(self, call: Call, policy: Truncation) -> Result:
        """The stored output of a call, truncated as it is shown."""
        return await load_shown(self._engine, call.id, policy)

    def elapsed_us(self, live: LiveCall) -> int:
        """Microseconds since the start."""
        return 0 if live.record.started is None else int((self._clock.monotonic() - live.record.started) * 1_000_000)

    def _publish_progress(self, live: LiveCall) -> None:
        if live.record.progress is None:
            return
        progress = live.record.progress
        event = self.event(live.call, EventType.CALL_PROGRESS, progress)
        live.record.progress, live.record.is_publishing_progress = None, True
        stored = self._writer.submit(lambda batch: batch.publish(event, live.call))
        stored.add_done_callback(lambda done: self._progress_stored(live, progress, done))

    def _progress_stored(self, live: LiveCall, progress: dict[str, Any], done: "asyncio.Future[None]") -> None:
        live.record.is_publishing_progress = False
        if _log_failure(done, f"the progress of {live.call.id}"):
            live.record.progress = _merged(progress, live.record.progress)  # published with the next event
        elif not live.is_done and not live.call.is_final:
            self._publish_progress(live)

    async def _submit_step(self, live: LiveCall, change: Callable[[Batch], T]) -> T:
        """One transition of an accepted call, tried until it is stored; meanwhile the call can be stopped."""
        try:
            return await self._writer.submit(change)
        except StoreUnavailable as refused:
            log.warning("call %s waits for the store: %s", live.call.id, refused)
            return await submit_until_stored(self._writer, change, live.pause)

    async def _end_late(self, live: LiveCall, end: Callable[[Batch], bool], refused: StoreUnavailable) -> bool:
        """The tool has ended, but the store is unavailable: try again until the end is stored."""
        log.warning("the end of call %s waits for the store: %s", live.call.id, refused)
        if live.batch_slot is not None:
            live.batch_slot.leave()
        return await submit_until_stored(self._writer, end)

    async def _end_otherwise(self, live: LiveCall, was: Status) -> bool:
        """An end without the result that the database cannot store."""
        call = live.call
        log.exception("the result of call %s cannot be stored", call.id)
        self._mark_ended(live, None, Internal("The tool returned what cannot be stored; this is a bug of the tool."))
        event = self.event(call, EventType.CALL_ERROR)
        over = self.expire_ask(live.approval.ask, "The call has ended.")

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

    async def _separate_attachments(
        self, call: Call, result: Result | None
    ) -> tuple[Result | None, list[StoredAttachment]]:
        if result is None or not result.attachments:
            return result, []
        base = f"{self._root_path}/v1/calls/{call.id}/attachments"
        if is_large(result):
            return await asyncio.to_thread(separate, result, base, self._redactor)
        return separate(result, base, self._redactor)

    def _rows_of(self, call: Call, whole: str) -> list[tuple[int, bytes]]:
        data = encoded(whole)
        kept = whole_characters(data, self._output_limit)
        call.output_dropped = len(data) - kept
        rows, start = [], 0
        while start < kept:
            size = whole_characters(data[start : min(start + CHUNK_BYTES + 1, kept)], CHUNK_BYTES)
            rows.append((start, data[start : start + size]))
            start += size
        return rows

    def _mark_running(self, live: LiveCall, at: int) -> None:
        live.record.started = self._clock.monotonic()
        live.call.status = Status.RUNNING
        live.call.waiting = None
        live.call.started_at = at
        live.call.deadline = live.execution.client.deadline(at) if live.execution.client else None

    def _mark_ended(self, live: LiveCall, result: Result | None, error: CallError | None) -> None:
        call = live.call
        self._mark_end(call, result, error)
        call.ended_at = max(self._clock.now(), call.started_at or call.created_at)
        if live.record.started is not None:
            call.duration_us = self.elapsed_us(live)

    def _mark_end(self, call: Call, result: Result | None, error: CallError | None) -> None:
        call.status = Status.ERROR if error else Status.COMPLETED
        call.waiting = None
        call.sealed = None
        call.result = self._redactor.redact_result(result) if result is not None else None
        call.error = self._redactor.redact_error(error) if error is not None else None

    def event(self, call: Call, type: EventType, data: dict[str, Any] | None = None) -> Event:
        text = None if data is None else self._redactor.redact_json(dumps(data).decode())
        return Event(0, type, call.id, call.principal, call.session, self._clock.now(), text)


def _merged(older: dict[str, Any] | None, newer: dict[str, Any] | None) -> dict[str, Any] | None:
    if older is None or newer is None:
        return older or newer
    return {"title": newer["title"] or older["title"], "metadata": older["metadata"] | newer["metadata"]}


def _log_failure(done: "asyncio.Future[Any]", what: str) -> bool:
    """Log that an optional record could not be stored; returns whether that is so."""
    if done.cancelled() or done.exception() is None:
        return False
    log.warning("%s could not be recorded: %s", what, done.exception())
    return True
