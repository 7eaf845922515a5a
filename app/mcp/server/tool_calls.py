"""`tools/call` as a call of the dispatcher; the client answers requests of the call until it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import Canceled, Refusal
from app.core.util.json_codec import Raw
from app.dispatch import idempotency
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.asks import AskQueue
from app.mcp.server.back_channel import RESPONSES, STATE, InputRequiredChannel, McpBackChannel, PushChannel
from app.mcp.server.progress import NotificationQueue, notifications
from app.mcp.server.request_context import (
    INTERNAL_ERROR,
    Ctx,
    RequestContext,
    caller_of,
    is_modern,
    meta_of,
    protocol_error,
    trace_of,
)
from app.store import calls
from app.store.calls import Claim

IDEMPOTENCY_KEYS = ("io.toolcrib/idempotency-key", "idempotencyKey")
CALL_ID = "io.toolcrib/call-id"
MAX_CALL_ID_LENGTH = 256
CLIENT_CANCELED = "The MCP client canceled this call."
NOT_RECORDED = "The call could not be recorded; whether it was run is not known."
STOPPING = "The service is stopping and takes no more calls."

Render = Callable[[Call], Awaitable[Raw]]
"""Makes the result of a request from the call that has ended."""


class WaitingClient(NamedTuple):
    """A client that waits for a call, and one of the two channels by which it gets requests."""

    caller: RequestContext
    back_channel: McpBackChannel
    queue: NotificationQueue
    input_required: InputRequiredChannel | None
    push: PushChannel | None


class NoCall(Exception):
    """Why no call was made."""


class AwaitedCall:
    """A call and the requests that wait for it: one at a time for a client that repeats its request. With `is_shared`
    the call was made by another request with the same idempotency key."""

    def __init__(self, live: LiveCall, client: WaitingClient, *, is_shared: bool = False) -> None:
        self.live = live
        self.client = client
        self.is_shared = is_shared
        self.waiting_requests = 0

    def is_of(self, caller: RequestContext) -> bool:
        return self.client.caller.key.id == caller.key.id


class McpToolCalls:
    def __init__(self, dispatcher: Dispatcher, asks: AskQueue, hub: EventHub, engine: AsyncEngine) -> None:
        self._dispatcher = dispatcher
        self._asks = asks
        self._hub = hub
        self._engine = engine
        self._awaited: dict[str, AwaitedCall] = {}
        self._by_request: dict[tuple[str, str], AwaitedCall] = {}

    def cancel(self, mcp_session: str, request: Any, caller: RequestContext) -> None:
        """A client of a session cancels one of its requests."""
        awaited = self._by_request.get((mcp_session, str(request)))
        if awaited is not None and awaited.is_of(caller):
            awaited.live.interrupt(Canceled(CLIENT_CANCELED))

    def cancel_session(self, mcp_session: str, caller: RequestContext) -> None:
        """A client ends its session, and with it the calls it waits for."""
        for session, request in list(self._by_request):
            if session == mcp_session:
                self.cancel(session, request, caller)

    def detach(self, mcp_session: str, request: Any) -> None:
        """The stream of a request has ended. Its call continues, but the client gets no more requests."""
        awaited = self._by_request.get((mcp_session, str(request)))
        if awaited is not None and awaited.client.push is not None:
            awaited.client.push.close()

    async def run(self, ctx: Ctx, request: CallRequest, render: Render, log_level: str | None) -> Raw:
        """Make a call, or wait for the one with the same idempotency key or `requestState`. Raises `NoCall`."""
        state = (ctx.params or {}).get(STATE)
        if state is not None:
            return await self._resume(ctx, state, render)
        if self._dispatcher.live_calls.is_draining:
            raise NoCall(f"Overloaded: {STOPPING}")
        caller = caller_of(ctx)
        claim = _claim(ctx, request, caller)
        client = self._waiting_client(ctx, log_level)
        try:
            live = self._dispatcher.submit(
                request,
                caller.require_session(),
                key=caller.key,
                claim=claim,
                back_channel=client.back_channel,
                origin=trace_of(ctx),
            )
        except Refusal as refused:
            raise NoCall(f"Overloaded: {refused}") from None  # one code for the model, whatever the limit
        awaited = self._add(live, client)
        with self._cancelable(ctx, awaited):
            if claim is not None:
                awaited = await self._claim_holder(ctx, awaited, claim)
            assert ctx.request is not None, "the transport is HTTP"
            note_calls(ctx.request.scope, awaited.live.call.id)
            return await self._wait(ctx, awaited, render)

    async def _resume(self, ctx: Ctx, call: str, render: Render) -> Raw:
        """A client repeats its request, with answers or for the result. Nothing runs twice."""
        caller, awaited = caller_of(ctx), self._awaited.get(call)
        key = caller.key
        if awaited is not None and awaited.is_of(caller) and awaited.client.input_required is not None:
            awaited.client.input_required.take((ctx.params or {}).get(RESPONSES))
        elif (live := self._dispatcher.live_calls.get(call)) is not None and live.call.key == key.id:
            awaited = self._add(live, self._waiting_client(ctx, None))  # the service was restarted meanwhile
            live.attach(awaited.client.back_channel)
        if awaited is not None:
            return await self._wait(ctx, awaited, render)
        stored = await calls.get(self._engine, call, key.principal)
        if stored is None or not stored.is_final:
            raise protocol_error("The call of this requestState cannot be resumed. Call the tool again.")
        return await render(stored)

    def _waiting_client(self, ctx: Ctx, log_level: str | None) -> WaitingClient:
        caller, queue = caller_of(ctx), NotificationQueue(log_level)
        channel: InputRequiredChannel | PushChannel
        input_required = push = None
        if is_modern(ctx):
            channel = input_required = InputRequiredChannel(ctx.protocol_version, (ctx.params or {}).get(RESPONSES))
        else:
            channel = push = PushChannel(ctx)
        back_channel = McpBackChannel(
            caller.key, self._asks, channel, capabilities=ctx.session.client_capabilities, notify=queue.put
        )
        return WaitingClient(caller, back_channel, queue, input_required, push)

    async def _wait(self, ctx: Ctx, awaited: AwaitedCall, render: Render) -> Raw:
        """Until the call has ended, or its client has to repeat the request."""
        live, input_required = awaited.live, awaited.client.input_required
        awaited.waiting_requests += 1
        try:
            async with notifications(ctx, self._hub, live.call.id, awaited.client.queue):
                await _end_or_input_required(live, input_required)
        except asyncio.CancelledError:
            if is_modern(ctx) and awaited.waiting_requests == 1 and not awaited.is_shared:  # the stream was closed
                live.interrupt(Canceled(CLIENT_CANCELED))
            raise
        finally:
            awaited.waiting_requests -= 1
        if not live.is_done and input_required is not None:
            return input_required.result(live.call.id)
        if live.record.failure is not None:
            raise protocol_error(NOT_RECORDED, INTERNAL_ERROR)
        return await render(live.call)

    @contextmanager
    def _cancelable(self, ctx: Ctx, awaited: AwaitedCall) -> Iterator[None]:
        """While the block lasts, the client of a session can cancel the request by its id."""
        request = _request_id(ctx)
        if request is None:
            yield
            return
        self._by_request[request] = awaited
        try:
            yield
        finally:
            self._by_request.pop(request, None)

    def _add(self, live: LiveCall, client: WaitingClient) -> AwaitedCall:
        awaited = self._awaited[live.call.id] = AwaitedCall(live, client)
        if live.task is not None:
            live.task.add_done_callback(lambda _: self._awaited.pop(live.call.id, None))
        return awaited

    async def _claim_holder(self, ctx: Ctx, awaited: AwaitedCall, claim: Claim) -> AwaitedCall:
        """The call that holds the idempotency key: this one, or the first with it. Requests of that one are sent to
        this client only if both were made with the same API key, so that no client answers with another's rights."""
        running = self._dispatcher.live_calls
        try:
            first = await idempotency.holder_of(running, self._engine, awaited.live, claim)
        except idempotency.Conflict as conflict:
            raise protocol_error(f"This idempotency key was used with another body, for {conflict}.") from None
        except idempotency.Unreadable:
            raise protocol_error("The call with this idempotency key cannot be read.") from None
        if first is awaited.live:
            return awaited
        shared = AwaitedCall(first, awaited.client._replace(input_required=None), is_shared=True)
        if (request := _request_id(ctx)) is not None:
            self._by_request[request] = shared
        known = self._awaited.get(first.call.id)
        return known if known is not None and known.is_of(shared.client.caller) else shared


def to_request(ctx: Ctx, tool: str, arguments: Raw) -> CallRequest:
    """The call a client asks for. The input of a free-form tool is in its one argument."""
    id = meta_of(ctx).get(CALL_ID)
    call_id = id if isinstance(id, str) and 0 < len(id) <= MAX_CALL_ID_LENGTH else None
    return CallRequest(tool=tool, arguments=arguments, call_id=call_id)


def _claim(ctx: Ctx, request: CallRequest, caller: RequestContext) -> Claim | None:
    key = next((meta_of(ctx)[name] for name in IDEMPOTENCY_KEYS if name in meta_of(ctx)), None)
    if key is None:
        return None
    try:
        return idempotency.claim_of(key if isinstance(key, str) else "", request, caller.require_session())
    except idempotency.BadKey as bad:
        raise protocol_error(f"Invalid idempotency key: {bad}") from None


def _request_id(ctx: Ctx) -> tuple[str, str] | None:
    """Session and id by which a client cancels this request; None where it cancels by closing the stream."""
    assert ctx.request is not None, "the transport is HTTP"
    session = ctx.request.headers.get("mcp-session-id")
    return None if is_modern(ctx) or session is None else (session, str(ctx.request_id))


async def _end_or_input_required(live: LiveCall, input_required: InputRequiredChannel | None) -> None:
    if input_required is None:
        await live.wait()
        return
    tasks = {asyncio.create_task(live.wait()), asyncio.create_task(input_required.has_requests.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
