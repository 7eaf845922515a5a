"""The desk: where open asks lie until somebody answers, rules cover them, or their time is over.

An ask is stored in one commit with its call's waiting, and ends in one commit with the rules its answer makes. The
first end counts. A call that waits hears of it after the commit.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
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
from app.core.util.ids import Ids
from app.core.util.json_codec import dumps
from app.dispatch.journal import Journal, TransitionLost
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.rules import RuleStore, workspace_of
from app.store import asks, rules
from app.store.writer import Batch

MICROSECONDS = 1_000_000
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class AskEnded(Exception):
    """Somebody was faster: the ask has its answer, or its time is over."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(f"The ask {ask.id} {_how_it_ended(ask)}")
        self.ask = ask


class AnswerRefused(Exception):
    """The answer goes further than the key that gave it."""


class Waiter:
    """A call that waits for an ask of its own. `turn` is set when there is something new to look at."""

    def __init__(self, live: LiveCall, ask: Ask) -> None:
        self.live = live
        self.ask = ask
        self.turn = asyncio.Event()


class AskQueue:
    def __init__(self, journal: Journal, engine: AsyncEngine, book: RuleStore, *, ids: Ids, clock: Clock) -> None:
        self.journal = journal
        self._engine = engine
        self._book = book
        self._ids = ids
        self._clock = clock
        self._waiters: dict[str, Waiter] = {}
        book.watch(self._look_again)

    @property
    def open_asks(self) -> int:
        return len(self._waiters)

    def waiter(self, ask: Ask) -> Waiter:
        return self._waiters[ask.id]

    async def restore(self, live: LiveCall) -> None:
        """Take up the asks of a call of an earlier start, before anybody can answer them."""
        live.asks = await asks.of_call(self._engine, live.call.id)
        for ask in live.asks:
            if ask.is_open:
                self._lay_down(live, ask)

    def leave(self, live: LiveCall) -> None:
        """The call has ended or goes on elsewhere; nobody waits here any more."""
        if live.ask is not None:
            self._drop(live, live.ask)

    async def open(self, live: LiveCall, kind: AskKind, seconds: float, **shows: Any) -> Ask:
        """One commit: the ask, and that the call waits for it. An older ask that shows too little ends with it."""
        id, at = self._ids.new("ask")
        ask = Ask(
            id=id,
            call=live.call.id,
            principal=live.call.principal,
            session=live.call.session,
            tool=live.call.tool,
            kind=kind,
            digest=live.digest,
            created_at=at,
            expires_at=at + int(seconds * MICROSECONDS),
            **shows,
        )
        older = self.journal.ask_over(live.ask, "More has to be asked.")
        body = self.journal.cover.kept_data(dumps(_body(ask)).decode())
        event = self.journal.ask_event(ask, EventType.ASK_OPENED)

        def keep(batch: Batch) -> None:
            older(batch)
            asks.add(batch, ask, body)
            batch.publish(event)

        self.leave(live)
        live.asks = [*(one for one in live.asks if not one.is_open), ask]
        self._lay_down(live, ask)
        await self._note(live, ask.waiting, keep)
        if live.attendant is not None:
            live.attendant.opened(ask)
        return ask

    async def wait(self, waiter: Waiter) -> Ask:
        """Wait until the ask is over, or rules have changed and it should be looked at again."""
        async with _stepped_aside(waiter.live):
            try:
                async with asyncio.timeout((waiter.ask.expires_at - self._clock.now()) / MICROSECONDS):
                    await waiter.turn.wait()
            except TimeoutError:
                await self._end_here(waiter, AskStatus.EXPIRED, reason="Nobody answered in time.")
        waiter.turn.clear()
        if not waiter.ask.is_open:
            await self._let_go(waiter)
        return waiter.ask

    async def settle(self, waiter: Waiter) -> Ask:
        """Rules allow by now what was asked; unless a person was faster, that is the answer."""
        answer = Answer(Decision.ALLOW_ALWAYS, "Rules allow it by now.")
        await self._end_here(waiter, AskStatus.ANSWERED, answer=answer)
        await self._let_go(waiter)
        return waiter.ask

    async def withdraw(self, live: LiveCall) -> None:
        """Whoever asked does not want to know any more, and the call goes on. One that ends takes its ask along."""
        ask = live.ask
        if ask is None or live.stop is not None or live.is_done:
            return
        waiter = self._waiters[ask.id]
        ended = replace(ask, status=AskStatus.EXPIRED, reason="It was taken back.", ended_at=self._clock.now())
        with suppress(CallError, TransitionLost, StoreError):  # what cannot be written now is over with the call
            await self._end(ended)
            await self._let_go(waiter)

    async def answer(self, ask: Ask, answer: Answer, by: Key) -> Ask:
        """A person's answer, with the rules it makes. The first one counts; raises `AskEnded` for any other."""
        waiter = self._waiters.get(ask.id)
        if waiter is None or not waiter.ask.is_open:
            raise AskEnded(await asks.get(self._engine, ask.id, None) or ask)
        answer = self._covered(replace(_with_rules(answer, ask, by), principal=by.principal, key=by.id))
        kept = [self._kept(rule, answer, waiter) for rule in answer.rules]
        ended = replace(ask, status=AskStatus.ANSWERED, answer=answer, ended_at=self._clock.now())
        if not await self._end(ended, kept):
            raise AskEnded(await asks.get(self._engine, ask.id, None) or ended)
        return ended

    def _lay_down(self, live: LiveCall, ask: Ask) -> None:
        live.ask = ask
        live.at_end = partial(self.leave, live)
        self._waiters[ask.id] = Waiter(live, ask)

    def _covered(self, answer: Answer) -> Answer:
        """The answer as it may be kept, which is how the call gets it too."""
        cover, message, content = self.journal.cover, answer.message, answer.content
        if message is not None:
            message = cover.text(message)
        if content is not None:
            content = json.loads(cover.kept_data(dumps(content).decode()))
        return replace(answer, message=message, content=content)

    def _kept(self, rule: Rule, answer: Answer, waiter: Waiter) -> StoredRule:
        """A rule that somebody's "always" makes. It is the call owner's, whoever answered."""
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

    async def _end_here(self, waiter: Waiter, status: AskStatus, **how: Any) -> None:
        """End the call's own ask. If somebody else was faster, theirs is the end, and is awaited."""
        ended = replace(waiter.ask, status=status, ended_at=self._clock.now(), **how)
        if not await self._end_surely(ended):
            while waiter.ask.is_open:
                waiter.turn.clear()
                await waiter.turn.wait()

    async def _end_surely(self, ended: Ask) -> bool:
        """A store that refuses is asked again; meanwhile the call can be stopped."""
        while True:
            try:
                return await self._end(ended)
            except StoreUnavailable as refused:
                log.warning("the end of ask %s waits for the store: %s", ended.id, refused)
                await asyncio.sleep(RETRY_SECONDS)

    async def _end(self, ended: Ask, kept: Sequence[StoredRule] = ()) -> bool:
        is_answered = ended.status is AskStatus.ANSWERED
        event = self.journal.ask_event(ended, EventType.ASK_ANSWERED if is_answered else EventType.ASK_EXPIRED)

        def change(batch: Batch) -> bool:
            if not asks.end(batch, ended):
                return False
            for one in kept:
                rules.add(batch, one)
            batch.publish(event)
            return True

        written = self.journal.submit(change)
        written.add_done_callback(lambda done: self._tell(done, ended, kept))
        return await asyncio.shield(written)

    def _tell(self, done: "asyncio.Future[bool]", ended: Ask, kept: Sequence[StoredRule]) -> None:
        """Committed, whether anybody still waits for that or not: the call hears of its answer, all of new rules."""
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        if waiter := self._waiters.get(ended.id):
            waiter.ask = ended
            waiter.turn.set()
        if kept:
            self._book.put(*kept)

    async def _let_go(self, waiter: Waiter) -> None:
        """The ask is over: the call does not wait for it any more."""
        live = waiter.live
        self._drop(live, waiter.ask)
        live.asks = [waiter.ask if ask.id == waiter.ask.id else ask for ask in live.asks]
        live.ask = None
        if live.call.status is Status.RUNNING:
            await self._note(live, None)

    async def _note(self, live: LiveCall, waiting: Waiting | None, also: Callable[[Batch], None] | None = None) -> None:
        """The call's own task is not canceled in a commit; one beside it could be, at any time."""
        noting = self.journal.wait(live, waiting, also)
        await (noting if asyncio.current_task() is live.task else to_its_end(noting))

    def _drop(self, live: LiveCall, ask: Ask) -> None:
        self._waiters.pop(ask.id, None)
        if live.attendant is not None:
            live.attendant.ended(ask)

    def _look_again(self) -> None:
        """Rules changed: everybody who waits for a permission judges anew."""
        for waiter in self._waiters.values():
            if waiter.ask.kind is AskKind.PERMISSION:
                waiter.turn.set()


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """What must not be left in the middle: who is canceled meanwhile hears of it right after."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whatever it was, there is nobody to tell
        raise


def _with_rules(answer: Answer, ask: Ask, by: Key) -> Answer:
    """An "always" has the rules it makes and where they count; no other answer makes any."""
    if answer.decision is not Decision.ALLOW_ALWAYS:
        return replace(answer, rules=(), scope=None)
    if not by.may(Scope.RULES_WRITE):
        raise AnswerRefused("An answer that counts for more than one call takes a key with rules:write.")
    scope = answer.scope or RuleScope.SESSION
    if not by.bounds.allows_scope(scope):
        raise AnswerRefused(
            f"This key is bound, so its answers do not count for the scope {scope}; take a smaller one."
        )
    return replace(answer, rules=answer.rules or ask.always, scope=scope)


def _how_it_ended(ask: Ask) -> str:
    if ask.is_open:
        return "is not waited for at the moment; look at its call again."
    if ask.answer is None:
        return f"is over: {ask.reason}"
    said = ask.answer.decision or ask.answer.action or "content"
    return f"was answered already: {said} by {ask.answer.principal or 'the rules'}."


def _body(ask: Ask) -> dict[str, Any]:
    """What an ask shows and keeps besides its columns."""
    view = ask.view()
    return {name: view[name] for name in ("needs", "always", "questions", "metadata")}


@asynccontextmanager
async def _stepped_aside(live: LiveCall) -> AsyncIterator[None]:
    """While a person thinks, neither this call nor one above it holds a lane, and nobody's time runs."""
    with ExitStack() as aside:
        above: LiveCall | None = live
        while above is not None:
            if above.limit is not None:
                aside.enter_context(above.limit.stopped())
            if above.held is not None and not above.held.is_over:
                aside.enter_context(above.held.aside())
            above = above.parent
        yield
    if live.held is not None:
        await live.held.come_back()
