"""`POST /v1/calls`, the hot route: the fast path calls `create_call` without FastAPI's layers.

Its OpenAPI entry is in `openapi.py`; a test compares them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive
from starlette.types import Scope as ASGIScope

from app.api.auth import Services, require_key, services_of, session_named
from app.api.http import body
from app.api.http.body import JSON
from app.api.http.problems import Problem, invalid
from app.api.http.sse import EventStream, client_left
from app.core.calls import CallRequest, note_calls
from app.core.errors import Canceled
from app.core.ports import TraceContext
from app.core.principals import Key, Scope
from app.core.util.json_codec import dumps
from app.dispatch import idempotency
from app.dispatch.live_calls import LiveCall, committed_call
from app.runs.submit import wait_for_calls
from app.store.events import EventFilter

MAX_WAIT = 600.0
DEFAULT_WAIT = 60.0
DISCONNECTED = "The client that requested this call disconnected."


async def create_call(scope: ASGIScope, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Run a tool. 200 when the call has ended, 202 when it has not within `wait` seconds."""
    services = services_of(scope)
    key = require_key(headers, services, Scope.CALLS_RUN)
    seconds = wait_seconds(scope["query_string"])
    request = _parse_request(await body.read(receive), headers)
    session = await session_named(services, key, request.session or headers.get("toolcrib-session"))
    services.dispatcher.live_calls.require_accepting()
    idempotency_key = headers.get("idempotency-key")
    claim = None if idempotency_key is None else idempotency.claim_of(idempotency_key, request, session)

    async def submit() -> LiveCall:
        dispatcher = services.dispatcher
        live = dispatcher.submit(request, session, key=key, claim=claim, origin=trace_context(headers))
        if claim is not None:
            live = await idempotency.holder_of(dispatcher.live_calls, services.engine, live, claim)
        note_calls(scope, live.call.id)
        return live

    if "text/event-stream" in headers.get("accept", ""):
        return await _stream(services, key, submit, request.cancel_on_disconnect)
    live = await submit()
    if not seconds:
        await live.wait_open()
    elif request.cancel_on_disconnect:
        await wait_with_client(receive, [live], seconds, cancel_on_disconnect=[live])
    else:
        await live.wait(seconds)
    return await call_response(services, live, scope.get("root_path", ""))


def trace_context(headers: Mapping[str, str]) -> TraceContext | None:
    """The trace a request belongs to, unchecked: the tracer validates it."""
    traceparent = headers.get("traceparent")
    return None if traceparent is None else TraceContext(traceparent, headers.get("tracestate"))


def wait_seconds(query: bytes) -> float:
    value = QueryParams(query).get("wait") if query else None
    if value is None:
        return DEFAULT_WAIT
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= MAX_WAIT:
        raise Problem(422, "InvalidRequest", f"wait: a number of seconds from 0 to {MAX_WAIT:g} is needed.")
    return seconds


def _parse_request(data: bytes, headers: Mapping[str, str]) -> CallRequest:
    value = body.parse(data, headers.get("content-type", JSON))
    try:
        return CallRequest.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from None


async def call_response(services: Services, live: LiveCall, prefix: str) -> Response:
    call = await committed_call(services.engine, live)
    if call.is_final:
        return Response(dumps(call.view()), headers=_trace_headers(live), media_type=JSON)
    headers = {"Location": f"{prefix}/v1/calls/{call.id}"} | (_trace_headers(live) or {})
    return Response(dumps(call.view()), 202, headers, JSON)


def _trace_headers(live: LiveCall) -> dict[str, str] | None:
    """The call's span, for clients that trace."""
    traceparent = live.trace and live.trace.context.traceparent
    return {"traceparent": traceparent} if traceparent else None


async def wait_with_client(
    receive: Receive, lives: Sequence[LiveCall], seconds: float, *, cancel_on_disconnect: Sequence[LiveCall]
) -> None:
    """Wait for calls, `seconds` at most; cancel those of `cancel_on_disconnect` when the client disconnects."""
    if not (cancel_on_disconnect and seconds):
        await wait_for_calls(lives, seconds)
        return
    disconnect = asyncio.create_task(client_left(receive))
    waiting = asyncio.create_task(wait_for_calls(lives, seconds))
    try:
        await asyncio.wait({disconnect, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if disconnect.done():
            for live in cancel_on_disconnect:
                if not live.is_done:
                    live.interrupt(Canceled(DISCONNECTED))
    finally:
        disconnect.cancel()
        waiting.cancel()
        await asyncio.wait({disconnect, waiting})


async def _stream(
    services: Services, key: Key, submit: Callable[[], Awaitable[LiveCall]], cancel_on_disconnect: bool
) -> Response:
    """The call's events from first to last. Without a free stream slot no call is made."""
    slot = services.stream_slots.slot(key).take()
    try:
        live = await submit()
        await live.wait_open()
        if live.record.failure is not None and not live.is_open:
            await committed_call(services.engine, live)  # raises why it was not recorded
    except BaseException:
        slot.release()
        raise
    call_events = EventFilter(principal=live.call.principal, call=live.call.id)
    frames = services.hub.follow(services.engine, call_events, 0, output_after=0)
    on_leave = (lambda: live.interrupt(Canceled(DISCONNECTED))) if cancel_on_disconnect else None
    return EventStream(frames, lambda: services.keyring.has(key.id), on_leave, _trace_headers(live), slot)
