"""Runs on their way in: all calls of a message set on the line at once, and kept as one run."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.api import batches
from app.api.auth import Services
from app.api.create_call import holder_of, refuse_when_stopping, trace_context
from app.api.runs.messages import PlannedCall
from app.core.principals import Key
from app.core.runs import ParsedMessage, Run
from app.core.sessions import Session
from app.dispatch import idempotency
from app.dispatch.live_calls import LiveCall
from app.dispatch.runs import Calls
from app.providers.call_ids import are_own
from app.providers.dialects import Dialect
from app.store.calls import Claim


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A message that was read, in what dialect, and how its calls are carried out; the id and time of its run."""

    id: str
    at: int
    dialect: Dialect
    reading: ParsedMessage
    planned: Sequence[PlannedCall]


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run under way: its calls, and what they were asked for."""

    run: Run
    lives: list[LiveCall]
    asked: batches.Asked = ()


async def begin(
    services: Services, key: Key, session: Session, message: ParsedRequest, *, headers: Mapping[str, str]
) -> StartedRun:
    """Set all of them on the line. Those that were run before are found again."""
    idempotency_key = headers.get("idempotency-key")
    reading, planned = message.reading, message.planned
    asked = [(request, session) for one in planned for request in one.requests]
    faults = [one.fault for one in planned for _ in one.requests]
    claimed = _claims(message, session) if idempotency_key is None else []
    draft = Run(
        id=message.id,
        principal=session.principal,
        session=session.id,
        dialect=message.dialect.name,
        created_at=message.at,
        fingerprint=_fingerprint(message.dialect, session, claimed, idempotency_key) or message.id,
        asked=tuple(one.asked for one in planned),
        previous=reading.message_id if message.dialect.goes_on and reading.is_response else None,
    )
    if idempotency_key is not None:
        lives = await batches.begin(services, key, asked, headers, idempotency_key, faults)
        run = replace(draft, calls=_grouped(planned, lives))
        return StartedRun(await services.runs.settle(run, services.runs.keep(run), run.calls), lives, asked)
    refuse_when_stopping(services)
    made = services.dispatcher.submit_all(asked, claims=claimed, faults=faults, key=key, origin=trace_context(headers))
    run = replace(draft, calls=_grouped(planned, made))
    is_kept = services.runs.keep(run)  # goes into the commit that opens the calls
    lives = [
        await holder_of(services, live, claim) if claim else live for live, claim in zip(made, claimed, strict=True)
    ]
    return StartedRun(await services.runs.settle(run, is_kept, _grouped(planned, lives)), lives, asked)


def _claims(message: ParsedRequest, session: Session) -> list[Claim | None]:
    """What calls with ids of their own claim: the same call again is not run again."""
    calls = message.reading.calls
    found = list[Claim | None]()
    for call, one, is_own in zip(calls, message.planned, are_own(calls), strict=True):
        is_claimed = is_own and not message.dialect.numbers_calls
        for part, request in enumerate(one.requests):
            number = (call.sub_index or 0) * 1000 + part
            claim = idempotency.claim_of_model(message.dialect.name, call.id or "", number, request, session)
            found.append(claim if is_claimed else None)
    return found


def _fingerprint(dialect: Dialect, session: Session, claimed: Sequence[Claim | None], key: str | None) -> str | None:
    """What is the same for the same message; None when that cannot be told."""
    if key is not None:
        parts = ["key", dialect.name, session.id, key]
    elif claimed and all(claimed):
        parts = ["calls", *(claim.key for claim in claimed if claim)]
    else:
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _grouped(planned: Sequence[PlannedCall], lives: Sequence[LiveCall]) -> Calls:
    """The ids of the calls that carry out each of the model's."""
    ids = iter(live.call.id for live in lives)
    return tuple(tuple(next(ids) for _ in one.requests) for one in planned)
