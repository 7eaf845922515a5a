"""Calls at the door: `tools/call` as a call on the line, with the client as its attendant until it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import Canceled, Refusal
from app.core.util.json_codec import Raw
from app.dispatch import idempotency
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.asks import AskQueue
from app.mcp.server.back_channel import (
    RESPONSES,
    STATE,
    ClientChannel,
    InputRequiredChannel,
    McpBackChannel,
    PushChannel,
)
from app.mcp.server.progress import NotificationQueue, telling
from app.mcp.server.request_context import (
    INTERNAL_ERROR,
    RequestContext,
    caller_of,
    is_modern,
    meta_of,
    refusal,
    trace_of,
)
from app.store import calls
from app.store.calls import Claim

if TYPE_CHECKING:
    from app.mcp.server.request_context import Ctx

IDEMPOTENCY = ("io.toolcrib/idempotency-key", "idempotencyKey")
CALL_ID = "io.toolcrib/call-id"
MOST_LABEL = 256
GAVE_UP = "The MCP client gave up on this call."
NOT_RECORDED = "The call could not be recorded; whether it was run is not known."
STOPPING = "The service is stopping and takes no more calls."

Render = Callable[[Call], Awaitable[Raw]]
"""Makes the result of a request out of the call that has ended."""


class Waiter(NamedTuple):
    """A client that waits for a call, and how it is told and asked: on its stream (`pushed`), or in `rounds`."""

    caller: RequestContext
    attendant: McpBackChannel
    outbox: NotificationQueue
    rounds: InputRequiredChannel | None
    pushed: PushChannel | None


class NoCall(Exception):
    """There is no call, and why."""


class AttendedCall:
    """A call and the requests that wait for it: one, or another one each time the client comes again. A client that
    is a `guest` waits for a call that somebody else has made."""

    def __init__(self, live: LiveCall, waiter: Waiter, *, is_guest: bool = False) -> None:
        self.live = live
        self.waiter = waiter
        self.is_guest = is_guest
        self.waiting = 0

    def is_of(self, caller: RequestContext) -> bool:
        return self.waiter.caller.key.id == caller.key.id


class McpToolCalls:
    def __init__(self, dispatcher: Dispatcher, desk: AskQueue, hub: EventHub, engine: AsyncEngine) -> None:
        self._dispatcher = dispatcher
        self._desk = desk
        self._hub = hub
        self._engine = engine
        self._attended: dict[str, AttendedCall] = {}
        self._by_request: dict[tuple[str, str], AttendedCall] = {}

    def cancel(self, mcp_session: str, request: Any, caller: RequestContext) -> None:
        """A client of a session takes one of its requests back."""
        attended = self._by_request.get((mcp_session, str(request)))
        if attended is not None and attended.is_of(caller):
            attended.live.interrupt(Canceled(GAVE_UP))

    def leave(self, mcp_session: str, caller: RequestContext) -> None:
        """A client ends its session, and with it whatever it still waits for."""
        for (session, request), _ in list(self._by_request.items()):
            if session == mcp_session:
                self.cancel(session, request, caller)

    def cut_off(self, mcp_session: str, request: Any) -> None:
        """The stream of a request is over. Its call goes on, but its client cannot be asked anything any more."""
        attended = self._by_request.get((mcp_session, str(request)))
        if attended is not None and attended.waiter.pushed is not None:
            attended.waiter.pushed.leave()

    async def run(self, ctx: "Ctx", asked: CallRequest, render: Render, level: str | None) -> Raw:
        """A request that is a call: made now, made before with the same key, or gone on with. Raises `NoCall`."""
        state = (ctx.params or {}).get(STATE)
        if state is not None:
            return await self._go_on(ctx, state, render)
        return await self._begin(ctx, asked, render, level)

    async def _begin(self, ctx: "Ctx", asked: CallRequest, render: Render, level: str | None) -> Raw:
        if self._dispatcher.running.is_draining:
            raise NoCall(f"Overloaded: {STOPPING}")
        caller = caller_of(ctx)
        claim = _claim(ctx, asked, caller)
        waiting = self._arrive(ctx, level)
        try:
            live = self._dispatcher.submit(
                asked,
                caller.whole_session,
                key=caller.key,
                claim=claim,
                attendant=waiting.attendant,
                origin=trace_of(ctx),
            )
        except Refusal as refused:
            raise NoCall(f"Overloaded: {refused}") from None  # for a model it is all the same why there is no room
        attended = self._attend(live, waiting)
        with self._known(ctx, attended):
            if claim is not None:
                attended = await self._holder(ctx, attended, claim)
            assert ctx.request is not None, "the transport is HTTP"
            note_calls(ctx.request.scope, attended.live.call.id)
            return await self._wait(ctx, attended, render)

    async def _go_on(self, ctx: "Ctx", call: str, render: Render) -> Raw:
        """A client comes again, with answers or to ask how it went. Nothing is run a second time."""
        caller, attended = caller_of(ctx), self._attended.get(call)
        key = caller.key
        if attended is not None and attended.is_of(caller) and attended.waiter.rounds is not None:
            attended.waiter.rounds.take((ctx.params or {}).get(RESPONSES))
        elif (live := self._dispatcher.running.get(call)) is not None and live.call.key == key.id:
            attended = self._attend(live, self._arrive(ctx, None))  # it has outlived the service it was made at
            live.attend(attended.waiter.attendant)
        if attended is not None:
            return await self._wait(ctx, attended, render)
        stored = await calls.get(self._engine, call, key.principal)
        if stored is None or not stored.is_final:
            raise refusal("The call that this belongs to cannot be gone on with; make it anew.")
        return await render(stored)

    def _arrive(self, ctx: "Ctx", level: str | None) -> "Waiter":
        """A client that is going to wait for a call."""
        caller, outbox = caller_of(ctx), NotificationQueue(level)
        rounds = (
            InputRequiredChannel(ctx.protocol_version, (ctx.params or {}).get(RESPONSES)) if is_modern(ctx) else None
        )
        pushed = None if rounds else PushChannel(ctx)
        mouth: ClientChannel | None = rounds or pushed
        assert mouth is not None, "one of the two"
        attendant = McpBackChannel(caller.key, self._desk, mouth, ctx.session.client_capabilities, outbox.put)
        return Waiter(caller, attendant, outbox, rounds, pushed)

    async def _wait(self, ctx: "Ctx", attended: AttendedCall, render: Render) -> Raw:
        """Until the call has ended, or its client has to come again."""
        live = attended.live
        attended.waiting += 1
        try:
            async with telling(ctx, self._hub, live.call.id, attended.waiter.outbox):
                await _ended_or_asked(live, attended.waiter.rounds)
        except asyncio.CancelledError:
            if is_modern(ctx) and attended.waiting == 1 and not attended.is_guest:  # the stream was closed
                live.interrupt(Canceled(GAVE_UP))
            raise
        finally:
            attended.waiting -= 1
        if not live.is_done and attended.waiter.rounds is not None:
            return attended.waiter.rounds.result(live.call.id)
        if live.failure is not None:
            raise refusal(NOT_RECORDED, INTERNAL_ERROR)
        return await render(live.call)

    @contextmanager
    def _known(self, ctx: "Ctx", attended: AttendedCall) -> Iterator[None]:
        """As long as this lasts, the client of a session can take the request back by its id."""
        request = _request_of(ctx)
        if request is None:
            yield
            return
        self._by_request[request] = attended
        try:
            yield
        finally:
            self._by_request.pop(request, None)

    def _attend(self, live: LiveCall, waiter: "Waiter") -> AttendedCall:
        attended = self._attended[live.call.id] = AttendedCall(live, waiter)
        if live.task is not None:
            live.task.add_done_callback(lambda _: self._attended.pop(live.call.id, None))
        return attended

    async def _holder(self, ctx: "Ctx", attended: AttendedCall, claim: Claim) -> AttendedCall:
        """Who has the idempotency key: this call, or the one that came first with it. What that one asks is put to
        this client only if it was made with the same key: nobody answers with the rights of another."""
        running = self._dispatcher.running
        try:
            first = await idempotency.holder_of(running, self._engine, attended.live, claim)
        except idempotency.Conflict as conflict:
            raise refusal(f"This idempotency key was used with another body, for {conflict}.") from None
        except idempotency.Unreadable:
            raise refusal("The call that holds this idempotency key cannot be read.") from None
        if first is attended.live:
            return attended
        mine = AttendedCall(first, attended.waiter._replace(rounds=None), is_guest=True)
        if (request := _request_of(ctx)) is not None:
            self._by_request[request] = mine
        known = self._attended.get(first.call.id)
        return known if known is not None and known.is_of(mine.waiter.caller) else mine


def to_request(ctx: "Ctx", tool: str, arguments: Raw) -> CallRequest:
    """What a client asks for. A tool of free text finds it in its one argument."""
    id = meta_of(ctx).get(CALL_ID)
    label = id if isinstance(id, str) and 0 < len(id) <= MOST_LABEL else None
    return CallRequest(tool=tool, arguments=arguments, call_id=label)


def _claim(ctx: "Ctx", asked: CallRequest, caller: RequestContext) -> Claim | None:
    key = next((meta_of(ctx)[name] for name in IDEMPOTENCY if name in meta_of(ctx)), None)
    if key is None:
        return None
    try:
        return idempotency.claim_of(key if isinstance(key, str) else "", asked, caller.whole_session)
    except idempotency.BadKey as bad:
        raise refusal(f"The idempotency key is not one: {bad}") from None


def _request_of(ctx: "Ctx") -> tuple[str, str] | None:
    """By what a client names this request when it takes it back; None where it does so by closing the stream."""
    assert ctx.request is not None, "the transport is HTTP"
    session = ctx.request.headers.get("mcp-session-id")
    return None if is_modern(ctx) or session is None else (session, str(ctx.request_id))


async def _ended_or_asked(live: LiveCall, rounds: InputRequiredChannel | None) -> None:
    if rounds is None:
        await live.wait()
        return
    ending, asking = asyncio.create_task(live.wait()), asyncio.create_task(rounds.turn.wait())
    try:
        await asyncio.wait({ending, asking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        asking.cancel()
        await asyncio.wait({ending, asking})
