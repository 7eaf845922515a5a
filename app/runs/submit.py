"""Submits batches of calls and runs, each call at most once, and stores runs."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import CallRequest
from app.core.errors import CallError
from app.core.ports import TraceContext
from app.core.principals import Key
from app.core.redaction import Redactor
from app.core.runs import Run
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch import idempotency
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.live_calls import LiveCall
from app.providers.call_ids import have_unique_ids
from app.runs.plan import PlannedCall, RunError, RunPlan
from app.store import calls, runs
from app.store.calls import Claim
from app.store.writer import Writer

CallIds = tuple[tuple[str, ...], ...]
"""For each of the model's calls the ids of the calls that carry it out."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One call of a batch. With a `fault` it ends in that error without running."""

    request: CallRequest
    session: Session
    fault: CallError | None = None


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run and its calls."""

    run: Run
    lives: list[LiveCall]


class Runs:
    """Submits and stores runs; also submits batches of calls, which are runs without a message."""

    def __init__(self, dispatcher: Dispatcher, engine: AsyncEngine, writer: Writer, redactor: Redactor) -> None:
        self._dispatcher = dispatcher
        self._engine = engine
        self._writer = writer
        self._redactor = redactor
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def submit_batch(
        self, items: Sequence[BatchItem], key: Key, *, idempotency_key: str | None, origin: TraceContext | None
    ) -> list[LiveCall]:
        """Submit all calls. Item i of an idempotent batch has the key `{key}/{i}`: calls that were accepted before are
        found again, and only the others are submitted; none if the body of one differs."""
        if idempotency_key is None:
            return self._submit(items, [None] * len(items), key, origin)
        claims = [
            idempotency.claim_of(idempotency_key, item.request, item.session, f"/{i}") for i, item in enumerate(items)
        ]
        async with self._locks.setdefault((key.principal, idempotency_key), asyncio.Lock()):
            claimed = await calls.find_claims(self._engine, key.principal, [claim.key for claim in claims])
            for claim in claims:
                if claim.key in claimed:
                    idempotency.check_same(claimed[claim.key], claim, key)
            new = [i for i, claim in enumerate(claims) if claim.key not in claimed]
            submitted = self._submit([items[i] for i in new], [claims[i] for i in new], key, origin)
            by_index = dict(zip(new, submitted, strict=True))
            lives = []
            for i, (item, claim) in enumerate(zip(items, claims, strict=True)):
                if i in by_index:
                    lives.append(await self._holder(by_index[i], claim))
                else:
                    first = await idempotency.first_of(
                        self._dispatcher.live_calls, self._engine, claimed[claim.key], item.request, item.session
                    )
                    lives.append(first)
            return lives

    async def submit_run(
        self,
        plan: RunPlan,
        session: Session,
        key: Key,
        *,
        idempotency_key: str | None,
        origin: TraceContext | None,
    ) -> StartedRun:
        """Submit the calls of a message and store the run. Calls that were run before are found again."""
        items = [BatchItem(request, session, one.fault) for one in plan.calls for request in one.requests]
        claims = _claims_of_model(plan, session) if idempotency_key is None else []
        run = Run(
            id=plan.id,
            principal=session.principal,
            session=session.id,
            dialect=plan.dialect.name,
            created_at=plan.created_at,
            fingerprint=_fingerprint(plan, session, claims, idempotency_key),
            asked=tuple(one.call for one in plan.calls),
            previous=plan.message.message_id if plan.dialect.goes_on and plan.message.is_response else None,
        )
        if idempotency_key is not None:
            lives = await self.submit_batch(items, key, idempotency_key=idempotency_key, origin=origin)
            run = replace(run, calls=_group_ids(plan.calls, lives))
            is_new = self._store(run)
        else:
            submitted = self._submit(items, claims, key, origin)
            run = replace(run, calls=_group_ids(plan.calls, submitted))
            is_new = self._store(run)  # goes into the commit that opens the calls
            lives = [
                await self._holder(live, claim) if claim else live
                for live, claim in zip(submitted, claims, strict=True)
            ]
        return StartedRun(await self._stored(run, is_new, _group_ids(plan.calls, lives)), lives)

    async def get(self, id: str, principal: str | None) -> Run | None:
        return await runs.get(self._engine, id, principal)

    async def calls_of(self, run: Run) -> list[LiveCall]:
        """The calls of a run, live or as they ended."""
        ids = [id for group in run.calls for id in group]
        lives = {id: live for id in ids if (live := self._dispatcher.live_calls.get(id)) is not None}
        stored = await calls.get_many(self._engine, set(ids) - lives.keys())
        if len(lives) + len(stored) < len(set(ids)):
            raise RunError("RunGone", f"Calls of the run {run.id} were removed, so there is no answer any more.")
        for id, call in stored.items():
            lives[id] = LiveCall(call, CallRequest(tool=call.tool), Session(run.principal, run.session))
            lives[id].mark_done()
        return [lives[id] for id in ids]

    def _submit(
        self,
        items: Sequence[BatchItem],
        claims: Sequence[Claim | None],
        key: Key,
        origin: TraceContext | None,
    ) -> list[LiveCall]:
        self._dispatcher.live_calls.require_accepting()
        return self._dispatcher.submit_all(
            [(item.request, item.session) for item in items],
            claims=claims,
            faults=[item.fault for item in items],
            key=key,
            origin=origin,
        )

    async def _holder(self, live: LiveCall, claim: Claim) -> LiveCall:
        return await idempotency.holder_of(self._dispatcher.live_calls, self._engine, live, claim)

    def _store(self, run: Run) -> "asyncio.Future[bool]":
        """Give a run to the writer, which commits it with what it got at the same time. True: the message is new."""
        return self._writer.submit(partial(runs.add, run=run, body=self._body(run)))

    async def _stored(self, run: Run, is_new: "asyncio.Future[bool]", call_ids: CallIds) -> Run:
        """The first run of the same message if there is one; else this run with the calls that hold its claims."""
        if not await is_new:
            first = await runs.by_fingerprint(self._engine, run.principal, run.fingerprint)
            if first is not None:
                return first
        elif call_ids != run.calls:
            run = replace(run, calls=call_ids)
            await self._writer.submit(partial(runs.correct, run=run, body=self._body(run)))
        return run

    def _body(self, run: Run) -> str:
        return self._redactor.json(dumps(runs.body_of(run)).decode())


async def wait_for_calls(lives: Sequence[LiveCall], seconds: float) -> None:
    """Wait until all have ended, for `seconds` at most; with 0, until all are recorded."""
    deadline = asyncio.get_running_loop().time() + seconds
    for live in lives:
        if seconds:
            await live.wait(max(deadline - asyncio.get_running_loop().time(), 0))
        else:
            await live.wait_open()


def _claims_of_model(plan: RunPlan, session: Session) -> list[Claim | None]:
    """The claims of calls that have ids of the provider's own: the same call again is not run again."""
    claims: list[Claim | None] = []
    model_calls = plan.message.calls
    for call, planned, has_own_id in zip(model_calls, plan.calls, have_unique_ids(model_calls), strict=True):
        for part, request in enumerate(planned.requests):
            number = (call.sub_index or 0) * 1000 + part
            claim = idempotency.claim_of_model(plan.dialect.name, call.id or "", number, request, session)
            claims.append(claim if has_own_id and not plan.dialect.numbers_calls else None)
    return claims


def _fingerprint(plan: RunPlan, session: Session, claims: Sequence[Claim | None], idempotency_key: str | None) -> str:
    """Equal for the same message; the run's id when the message cannot be recognized."""
    if idempotency_key is not None:
        parts = ["key", plan.dialect.name, session.id, idempotency_key]
    elif claims and all(claims):
        parts = ["calls", *(claim.key for claim in claims if claim)]
    else:
        return plan.id
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _group_ids(planned: Sequence[PlannedCall], lives: Sequence[LiveCall]) -> CallIds:
    ids = iter(live.call.id for live in lives)
    return tuple(tuple(next(ids) for _ in one.requests) for one in planned)
