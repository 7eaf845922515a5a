"""The hot route, `POST /v1/calls`: a plain Starlette route, because every microsecond here is paid by every call.

Its OpenAPI entry is kept by hand in `openapi.py` and compared by a test.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.auth import Services, require_key, services_of
from app.api.http import json_body
from app.api.http.json_body import JSON
from app.api.http.problems import Problem, invalid, not_found
from app.api.http.sse import EventStream, client_left
from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import Canceled, StoreError
from app.core.ports import TraceContext
from app.core.principals import Key, Scope
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.util.json_codec import dumps
from app.dispatch import idempotency
from app.dispatch.live_calls import LiveCall
from app.store import calls
from app.store.calls import Claim, Claimed
from app.store.events import EventFilter

MAX_WAIT = 600.0
DEFAULT_WAIT = 60.0
GONE = "The client that asked for this call went away."


class CreateCall:
    """The route as an ASGI endpoint, which spares it a wrapper per request."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        # The first of a repeated header wins, as it does on every other route.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        response = await create_call(scope, receive, headers)
        await response(scope, receive, send)


async def create_call(scope: ASGIScope, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Run a tool. 200 when the call has ended, 202 when it has not within `wait` seconds."""
    services = services_of(scope)
    key = require_key(headers, services, Scope.CALLS_RUN)
    seconds = wait_seconds(scope["query_string"])
    asked = read_call(await json_body.read(receive), headers)
    session = await session_of(headers, services, key, asked.session)
    refuse_when_stopping(services)
    claim = claim_of(headers.get("idempotency-key"), asked, session)

    async def begin() -> LiveCall:
        live = services.dispatcher.submit(asked, session, key=key, claim=claim, origin=trace_context(headers))
        if claim is not None:
            live = await holder_of(services, live, claim)
        note_calls(scope, live.call.id)
        return live

    if "text/event-stream" in headers.get("accept", ""):
        return await _stream(services, key, begin, asked.cancel_on_disconnect)
    live = await begin()
    await _attend(receive, live, seconds, asked.cancel_on_disconnect)
    return await answer(services, live, scope.get("root_path", ""))


def trace_context(headers: Mapping[str, str]) -> TraceContext | None:
    """The trace a request says it belongs to; whether that is one is for the tracer to say."""
    traceparent = headers.get("traceparent")
    return None if traceparent is None else TraceContext(traceparent, headers.get("tracestate"))


def wait_seconds(query: bytes) -> float:
    given = QueryParams(query).get("wait") if query else None
    if given is None:
        return DEFAULT_WAIT
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= MAX_WAIT:
        raise Problem(422, "InvalidRequest", f"wait: a number of seconds from 0 to {MAX_WAIT:g} is needed.")
    return seconds


def read_call(body: bytes, headers: Mapping[str, str]) -> CallRequest:
    value = json_body.parse(body, headers.get("content-type", JSON))
    try:
        return CallRequest.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from None


async def session_of(headers: Mapping[str, str], services: Services, key: Key, named: str | None) -> Session:
    """The session a call names in its body or its header. The default one is always there, if the key may see it."""
    id = named or headers.get("toolcrib-session") or DEFAULT_SESSION
    session = services.sessions.peek(key.principal, id) or await services.sessions.find(key.principal, id)
    if session is None or not services.sessions.shows(key, session):
        raise not_found(f"session {id}")
    return session


async def sessions_of(
    headers: Mapping[str, str], services: Services, key: Key, asked: list[CallRequest]
) -> list[Session]:
    """The session of each call, all of them there at one moment."""
    while True:
        departures = services.sessions.departures
        found = [await session_of(headers, services, key, one.session) for one in asked]
        if departures == services.sessions.departures:
            return found


def refuse_when_stopping(services: Services) -> None:
    if services.dispatcher.running.is_draining:
        raise Problem(503, "Stopping", "The service is stopping and takes no more calls.", {"Retry-After": "5"})


async def answer(services: Services, live: LiveCall, prefix: str) -> Response:
    call = await settled(services, live)
    if call.is_final:
        return Response(dumps(call.view()), headers=_trace_headers(live), media_type=JSON)
    headers = {"Location": f"{prefix}/v1/calls/{call.id}"} | (_trace_headers(live) or {})
    return Response(dumps(call.view()), 202, headers, JSON)


def _trace_headers(live: LiveCall) -> dict[str, str] | None:
    """Where to find the call, for those who follow traces."""
    traceparent = live.trace and live.trace.context.traceparent
    return {"traceparent": traceparent} if traceparent else None


async def settled(services: Services, live: LiveCall) -> Call:
    """The call as it is committed: the one in hand when it has ended, else as the store has it."""
    if live.is_done and live.failure is None and live.call.is_final:
        return live.call
    await live.wait_open()
    if isinstance(live.failure, StoreError) and not live.is_open:
        raise live.failure
    stored = await calls.get(services.engine, live.call.id, None)
    if stored is None:
        raise Problem(503, "NotRecorded", "The call could not be recorded and was not run.", {"Retry-After": "5"})
    return stored


def claim_of(key: str | None, asked: CallRequest, session: Session, part: str = "") -> Claim | None:
    """What an Idempotency-Key claims for this request; `part` tells the calls of one request apart."""
    if key is None:
        return None
    try:
        return idempotency.claim_of(key, asked, session, part)
    except idempotency.BadKey as bad:
        raise Problem(422, "InvalidRequest", f"Idempotency-Key: {bad}") from None


async def holder_of(services: Services, live: LiveCall, claim: Claim) -> LiveCall:
    """The call that holds the Idempotency-Key: this one, or the one that came first with the same body."""
    with _said():
        return await idempotency.holder_of(services.dispatcher.running, services.engine, live, claim)


def check_same(held: Claimed, claim: Claim, key: Key | None) -> None:
    with _said():
        idempotency.check_same(held, claim, key)


async def first_of(services: Services, held: Claimed, asked: CallRequest, session: Session) -> LiveCall:
    """The call that came first with a key: as it is under way, or as it ended."""
    with _said():
        return await idempotency.first_of(services.dispatcher.running, services.engine, held, (asked, session))


@contextmanager
def _said() -> Iterator[None]:
    """What is wrong with a claim, as the frontend hears it."""
    try:
        yield
    except idempotency.Conflict as conflict:
        sentence = f"This Idempotency-Key was used with another body, for {conflict}."
        raise Problem(409, "IdempotencyConflict", sentence) from None
    except idempotency.Unreadable:
        sentence = "The call that holds this key cannot be read."
        raise Problem(503, "NotRecorded", sentence, {"Retry-After": "5"}) from None


async def _attend(receive: Receive, live: LiveCall, seconds: float, cancel_on_disconnect: bool) -> None:
    """Wait with the client. If it asked for that, its going away stops the call."""
    if not seconds:
        await live.wait_open()
        return
    if not cancel_on_disconnect:
        await live.wait(seconds)
        return
    leaving = asyncio.create_task(client_left(receive))
    waiting = asyncio.create_task(live.wait(seconds))
    try:
        await asyncio.wait({leaving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not live.is_done:
            live.interrupt(Canceled(GONE))
    finally:
        leaving.cancel()
        waiting.cancel()
        await asyncio.wait({leaving, waiting})


async def _stream(
    services: Services, key: Key, begin: Callable[[], Awaitable[LiveCall]], cancel_on_disconnect: bool
) -> Response:
    """The call's own events as the answer, from its first to its last. Without room for a stream there is no call."""
    slot = services.stream_slots.slot(key).take()
    try:
        live = await begin()
        await live.wait_open()
        if live.failure is not None and not live.is_open:
            await settled(services, live)  # raises what kept it from being recorded
    except BaseException:
        slot.give_back()
        raise
    wanted = EventFilter(principal=live.call.principal, call=live.call.id)
    frames = services.hub.follow(services.engine, wanted, 0, output_after=0)
    on_leave = (lambda: live.interrupt(Canceled(GONE))) if cancel_on_disconnect else None
    return EventStream(frames, lambda: services.keyring.holds(key.id), on_leave, _trace_headers(live), slot)
