"""The ask queue: open asks until a person answers, rules allow what was asked, or they expire.

An ask is stored in one commit with its call's `waiting`, and ends in one commit with the rules its answer makes. The
first end counts. The waiting call is woken after the commit.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Answer, Ask, AskKind, AskStatus, Decision
from app.core.calls import Status, Waiting
from app.core.errors import CallError, StoreError, StoreUnavailable
from app.core.events import EventType
from app.core.ports import Clock
from app.core.principals import Key, Scope
from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.core.util.aio import finish_despite_cancel
from app.core.util.ids import Ids
from app.core.util.json_codec import dumps
from app.dispatch.journal import Journal, TransitionLost
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.rules import RuleStore, workspace_of
from app.dispatch.redaction import CallRedactor
from app.store import asks
from app.store import rules as stored_rules
from app.store.writer import Batch

MICROSECONDS = 1_000_000
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class AskEnded(Exception):
    """The ask has an answer already, or has expired."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(f"The ask {ask.id} {_how_it_ended(ask)}")
        self.ask = ask


class AnswerRefused(Exception):
    """The answer exceeds what its key may decide."""


class Waiter:
    """A call that waits for its ask. `changed` is set when the ask has ended or rules have changed."""

    def __init__(self, live: LiveCall, ask: Ask) -> None:
        self.live = live
        self.ask = ask
        self.changed = asyncio.Event()


class AskQueue:
    def __init__(
        self,
        journal: Journal,
        redactor: CallRedactor,
        engine: AsyncEngine,
        rules: RuleStore,
        *,
        ids: Ids,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._redactor = redactor
        self._engine = engine
        self._rules = rules
        self._ids = ids
        self._clock = clock
        self._waiters: dict[str, Waiter] = {}
        rules.watch(self._recheck_all)

    @property
    def open_asks(self) -> int:
        return len(self._waiters)

    def waiter(self, ask: Ask) -> Waiter:
        return self._waiters[ask.id]

    async def restore(self, live: LiveCall) -> None:
        """Load the asks of a call of an earlier start, before they can be answered."""
        live.approval.asks = await asks.of_call(self._engine, live.call.id)
        for ask in live.approval.asks:
            if ask.is_open:
                self._register(live, ask)

    def leave(self, live: LiveCall) -> None:
        """The call has ended or continues without its ask."""
        if live.approval.ask is not None:
            self._unregister(live, live.approval.ask)

    async def open(self, live: LiveCall, kind: AskKind, seconds: float, **content: Any) -> Ask:
        """Store the ask and that the call waits for it in one commit, which also ends an older ask of the call."""
        id, at = self._ids.new("ask")
        ask = Ask(
            id=id,
            call=live.call.id,
            principal=live.call.principal,
            session=live.call.session,
            tool=live.call.tool,
            kind=kind,
            digest=live.approval.digest,
            created_at=at,
            expires_at=at + int(seconds * MICROSECONDS),
            **content,
        )
        older = self._journal.expire_ask(live.approval.ask, "More has to be asked.")
        view = ask.view()
        shown = {name: view[name] for name in ("needs", "always", "questions", "metadata")}
        body = self._redactor.redact_json(dumps(shown).decode())
        event = self._journal.ask_event(ask, EventType.ASK_OPENED)

        def store(batch: Batch) -> None:
            older(batch)
            asks.add(batch, ask, body)
            batch.publish(event)

        self.leave(live)
        live.approval.asks = [*(one for one in live.approval.asks if not one.is_open), ask]
        self._register(live, ask)
        await self._record_waiting(live, ask.waiting, store)
        if live.back_channel is not None:
            live.back_channel.opened(ask)
        return ask

    async def wait(self, waiter: Waiter) -> Ask:
        """Wait until the ask has ended, or rules have changed and the call should be judged again."""
        async with _gate_released(waiter.live):
            try:
                async with asyncio.timeout((waiter.ask.expires_at - self._clock.now()) / MICROSECONDS):
                    await waiter.changed.wait()
            except TimeoutError:
                await self._end_own(waiter, AskStatus.EXPIRED, reason="No person answered in time.")
        waiter.changed.clear()
        if not waiter.ask.is_open:
            await self._finish(waiter)
        return waiter.ask

    async def resolve_by_rules(self, waiter: Waiter) -> Ask:
        """Rules now allow what was asked; unless a person answered first, that is the answer."""
        answer = Answer(Decision.ALLOW_ALWAYS, "Rules now allow it.")
        await self._end_own(waiter, AskStatus.ANSWERED, answer=answer)
        await self._finish(waiter)
        return waiter.ask

    async def withdraw(self, live: LiveCall) -> None:
        """Expire the open ask of a call that continues without its answer. A call that ends expires its ask itself."""
        ask = live.approval.ask
        if ask is None or live.stop is not None or live.is_done:
            return
        waiter = self._waiters[ask.id]
        ended = replace(ask, status=AskStatus.EXPIRED, reason="The ask was withdrawn.", ended_at=self._clock.now())
        with suppress(
            CallError, TransitionLost, StoreError
        ):  # if it cannot be written now, the end of the call does it
            await self._end(ended)
            await self._finish(waiter)

    async def answer(self, ask: Ask, answer: Answer, by: Key) -> Ask:
        """Store a person's answer with the rules it makes. The first one counts; others raise `AskEnded`."""
        waiter = self._waiters.get(ask.id)
        if waiter is None or not waiter.ask.is_open:
            raise AskEnded(await asks.get(self._engine, ask.id, None) or ask)
        answer = self._redacted(replace(_with_rules(answer, ask, by), principal=by.principal, key=by.id))
        new_rules = [self._stored_rule(rule, answer, waiter) for rule in answer.rules]
        ended = replace(ask, status=AskStatus.ANSWERED, answer=answer, ended_at=self._clock.now())
        if not await self._end(ended, new_rules):
            raise AskEnded(await asks.get(self._engine, ask.id, None) or ended)
        return ended

    def _register(self, live: LiveCall, ask: Ask) -> None:
        live.approval.ask = ask
        live.approval.on_end = partial(self.leave, live)
        self._waiters[ask.id] = Waiter(live, ask)

    def _redacted(self, answer: Answer) -> Answer:
        """The answer as it is stored, which is also what the call gets."""
        message, content = answer.message, answer.content
        if message is not None:
            message = self._redactor.redact_text(message)
        if content is not None:
            content = json.loads(self._redactor.redact_json(dumps(content).decode()))
        return replace(answer, message=message, content=content)

    def _stored_rule(self, rule: Rule, answer: Answer, waiter: Waiter) -> StoredRule:
        """The rule an answer "always" makes. It belongs to the owner of the call, not to the person who answered."""
        id, at = self._ids.new("rule")
        session, scope = waiter.live.session, answer.scope or RuleScope.SESSION
        return StoredRule(
            id=id,
            principal=session.principal,
            rule=replace(rule, action=Action.ALLOW),
            scope=scope,
            session=session.id if scope is RuleScope.SESSION else None,
            workspace=workspace_of(session) if scope is RuleScope.WORKSPACE else None,
            ask=waiter.ask.id,
            created_by=answer.key,
            created_at=at,
        )

    async def _end_own(self, waiter: Waiter, status: AskStatus, **fields: Any) -> None:
        """End the call's own ask. If another end was stored first, wait for that one."""
        ended = replace(waiter.ask, status=status, ended_at=self._clock.now(), **fields)
        if not await self._end_until_stored(ended):
            while waiter.ask.is_open:
                waiter.changed.clear()
                await waiter.changed.wait()

    async def _end_until_stored(self, ended: Ask) -> bool:
        """Try again while the store is unavailable; meanwhile the call can be stopped."""
        while True:
            try:
                return await self._end(ended)
            except StoreUnavailable as refused:
                log.warning("the end of ask %s waits for the store: %s", ended.id, refused)
                await asyncio.sleep(RETRY_SECONDS)

    async def _end(self, ended: Ask, new_rules: Sequence[StoredRule] = ()) -> bool:
        is_answered = ended.status is AskStatus.ANSWERED
        event = self._journal.ask_event(ended, EventType.ASK_ANSWERED if is_answered else EventType.ASK_EXPIRED)

        def change(batch: Batch) -> bool:
            if not asks.end(batch, ended):
                return False
            for rule in new_rules:
                stored_rules.add(batch, rule)
            batch.publish(event)
            return True

        written = self._journal.submit(change)
        written.add_done_callback(lambda done: self._on_stored(done, ended, new_rules))
        return await asyncio.shield(written)

    def _on_stored(self, done: "asyncio.Future[bool]", ended: Ask, new_rules: Sequence[StoredRule]) -> None:
        """After the commit: wake the call and apply the new rules, even if the answering request is gone."""
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        if waiter := self._waiters.get(ended.id):
            waiter.ask = ended
            waiter.changed.set()
        if new_rules:
            self._rules.put(*new_rules)

    async def _finish(self, waiter: Waiter) -> None:
        """The ask has ended: record that the call no longer waits for it."""
        live = waiter.live
        self._unregister(live, waiter.ask)
        live.approval.asks = [waiter.ask if ask.id == waiter.ask.id else ask for ask in live.approval.asks]
        live.approval.ask = None
        if live.call.status is Status.RUNNING:
            await self._record_waiting(live, None)

    async def _record_waiting(
        self, live: LiveCall, waiting: Waiting | None, also: Callable[[Batch], None] | None = None
    ) -> None:
        """The call's own task is not canceled during a commit; another task could be."""
        recorded = self._journal.wait(live, waiting, also)
        await (recorded if asyncio.current_task() is live.task else finish_despite_cancel(recorded))

    def _unregister(self, live: LiveCall, ask: Ask) -> None:
        self._waiters.pop(ask.id, None)
        if live.back_channel is not None:
            live.back_channel.ended(ask)

    def _recheck_all(self) -> None:
        """Rules changed: wake every call that waits for a permission."""
        for waiter in self._waiters.values():
            if waiter.ask.kind is AskKind.PERMISSION:
                waiter.changed.set()


def _with_rules(answer: Answer, ask: Ask, by: Key) -> Answer:
    """An "always" has rules and their scope; no other answer makes rules."""
    if answer.decision is not Decision.ALLOW_ALWAYS:
        return replace(answer, rules=(), scope=None)
    if not by.may(Scope.RULES_WRITE):
        raise AnswerRefused("An answer for more than one call needs a key with rules:write.")
    scope = answer.scope or RuleScope.SESSION
    if not by.bounds.allows_scope(scope):
        raise AnswerRefused(
            f"This key is restricted, so its answers cannot have the scope {scope}; choose a smaller one."
        )
    return replace(answer, rules=answer.rules or ask.always, scope=scope)


def _how_it_ended(ask: Ask) -> str:
    if ask.is_open:
        return "is not waited for at the moment; read its call again."
    if ask.answer is None:
        return f"has ended: {ask.reason}"
    answer = ask.answer.decision or ask.answer.action or "content"
    return f"was answered already: {answer} by {ask.answer.principal or 'the rules'}."


@asynccontextmanager
async def _gate_released(live: LiveCall) -> AsyncIterator[None]:
    """While the call waits for a person, neither it nor its parents hold a lane, and their time limits are paused."""
    with ExitStack() as stack:
        above: LiveCall | None = live
        while above is not None:
            execution = above.execution
            if execution.time_limit is not None:
                stack.enter_context(execution.time_limit.paused())
            if execution.hold is not None and not execution.hold.is_over:
                stack.enter_context(execution.hold.released())
            above = above.parent
        yield
    if live.execution.hold is not None:
        await live.execution.hold.come_back()
