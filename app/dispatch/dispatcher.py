"""The line every call walks, from request to its one end.

    open → find tool → hooks.before → validate → needs → permission     _open, _approach
      → gate → running → execute                                        _execute_in_turn
      → truncate → hooks.after → close                                  _walk, _close, Outcomes

`_look_ahead` goes the first part without awaiting; when all is clear, `_open`
commits the start too, and `_execute_ahead` takes over at execute.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from app.core.back_channel import BackChannel
from app.core.calls import Call, CallRequest, Status, Waiting, current_call
from app.core.errors import CallError, Internal, Interrupted
from app.core.hooks import Point
from app.core.mcp_resources import McpResources
from app.core.ports import Outbound, Searcher, TraceContext, Tracer, Uploads, Workspace
from app.core.principals import Key
from app.core.results import Result
from app.core.sandbox import SandboxedProcesses
from app.core.sessions import Session
from app.core.tools import Context, Lane, Tool
from app.core.util.ids import Ids
from app.core.util.json_codec import dumps
from app.dispatch import call_records
from app.dispatch.capacity import Capacity
from app.dispatch.client_run import ClientRun
from app.dispatch.finish import FinishStage
from app.dispatch.gate import BatchOrder, BatchSlot, Gates
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal, TransitionLost
from app.dispatch.live_calls import LiveCall, LiveCalls, Suspended, TimeLimit
from app.dispatch.permission.stage import PermissionStage
from app.dispatch.prepared_call import PreparedCall, payload_of
from app.dispatch.session.repl_kernels import Kernels
from app.dispatch.session.terminals import Terminals
from app.dispatch.tool_context import CallContext
from app.dispatch.tools.listing import visible
from app.dispatch.tools.registry import Registry
from app.store.calls import Claim

log = logging.getLogger(__name__)


class Dispatcher:
    """Nothing else in the house runs a tool."""

    def __init__(
        self,
        *,
        registry: Registry,
        hooks: Hooks,
        asks: PermissionStage,
        gates: Gates,
        journal: Journal,
        ids: Ids,
        workspaces: Callable[[Session], Workspace],
        capacity: Capacity,
        outbound: Outbound,
        searcher: Searcher,
        uploads: Uploads,
        walled: SandboxedProcesses,
        terminals: Terminals,
        kernels: Kernels,
        neighbours: McpResources,
        secret: Callable[[str, str], str | None],
        tracer: Tracer | None = None,
    ) -> None:
        self.registry = registry
        self.capacity = capacity
        self.running = LiveCalls(self._dispatch, capacity)
        self.hooks = hooks
        self._asks = asks
        self._gates = gates
        self._journal = journal
        self._outcomes = FinishStage(journal, hooks, registry)
        self._ids = ids
        self._workspaces = workspaces
        self._tracer = tracer
        self.outbound = outbound
        self.searcher = searcher
        self.uploads = uploads
        self.walled = walled
        self.terminals = terminals
        self.kernels = kernels
        self.neighbours = neighbours
        self.secret = secret

    def submit(
        self,
        request: CallRequest,
        session: Session,
        *,
        key: Key | None = None,
        claim: Claim | None = None,
        parent: LiveCall | None = None,
        place: BatchSlot | None = None,
        attendant: BackChannel | None = None,
        fault: CallError | None = None,
        origin: TraceContext | None = None,
    ) -> LiveCall:
        """Every way in: make a call of a request and set it on the line, if there is room for it. A call with a `fault`
        is one of which a model wrote what cannot be read."""
        if parent is None:  # a child is part of a call that was let in
            self.capacity.admit(key)
        id, at = self._ids.new("call")
        live = LiveCall(
            call_records.of_request(
                id, at, request, session, parent.call.id if parent else None, key.id if key else None
            ),
            request,
            session,
            key=parent.key if parent else key,
            claim=claim,
            parent=parent,
            place=place,
            attendant=attendant,
            fault=fault,
        )
        self._start(live, parent.trace.context if parent and parent.trace else origin)
        return live

    def submit_all(
        self,
        asked: Sequence[tuple[CallRequest, Session]],
        *,
        claims: Sequence[Claim | None] | None = None,
        faults: Sequence[CallError | None] | None = None,
        key: Key | None = None,
        origin: TraceContext | None = None,
    ) -> list[LiveCall]:
        """Several calls that keep their order; all of them are let in, or none."""
        self.capacity.admit(key, len(asked))
        order, nothing = BatchOrder(), [None] * len(asked)
        return [
            self.submit(one, session, key=key, claim=claim, place=order.next(), fault=fault, origin=origin)
            for (one, session), claim, fault in zip(asked, claims or nothing, faults or nothing, strict=True)
        ]

    async def resume(self, call: Call, session: Session, key: Key | None) -> LiveCall:
        """Set a call of an earlier start on the line again: one that is pending, or one that runs at its client."""
        given = self._journal.cover.originals(call)
        live = LiveCall(call, call_records.to_request(call, given), session, key=key, is_resumed=True)
        live.settled = given.effective
        await self._asks.desk.restore(live)
        await self._journal.adopt(live)
        self._start(live, None)
        return live

    async def cancel(self, live: LiveCall, reason: CallError | None = None) -> None:
        """Stop a call; one that runs has the wish noted before its end. A store that refuses keeps no tool running."""
        if live.call.status is Status.RUNNING and not live.is_done:
            self._journal.request_cancel(live)
        await self.running.cancel(live, reason)

    def tools(self, session: Session, key: Key | None) -> list[Tool]:
        """The tools a caller gets to see."""
        return visible(self.registry.all(session.principal), session, key, self._asks.permissions)

    def _start(self, live: LiveCall, origin: TraceContext | None) -> None:
        if self._tracer is not None:
            live.trace = self._tracer.begin(live.call, origin)
        self.running.start(live)

    async def _dispatch(self, live: LiveCall) -> None:
        """The frame: whatever happens inside, the call gets one end, and it is written."""
        current_call.set(live.call.id)
        shown: tuple[Result, str | None] | None = None
        error: CallError | None = None
        try:
            step = await self._open(live)
            if live.claimed or live.call.is_final:
                self._asks.note(live)
                return
            shown = await self._walk(live, step)
        except CallError as failed:
            error = failed
        except asyncio.CancelledError:
            error = live.stop or Internal("The tool was canceled from inside; this is a bug of the tool.")
        except TransitionLost as lost:
            live.failure = lost
            return
        except (Exception, SystemExit):
            if not live.is_open:
                raise  # nothing was accepted, so there is nothing to end
            log.exception("call %s broke", live.call.id)
            error = Internal("The service failed to run this call; its log has the details.")
        if isinstance(error, Suspended):
            if live.can_be_kept:
                return
            error = Interrupted("The service was stopped before the tool could run; nothing was done.")
        await self._close(live, shown, error)
        self._asks.note(live)

    async def _open(self, live: LiveCall) -> PreparedCall | None:
        """Look ahead without awaiting; what is certain already goes into the first commit."""
        live.stage("open")
        if live.is_resumed:
            live.opened()
            return None
        ahead = self._look_ahead(live)
        if isinstance(ahead, CallError):
            await self._journal.open(live, error=ahead)
        else:
            is_accepted = False
            try:
                await self._journal.open(live, start=ahead is not None)
                is_accepted = live.claimed is None
            finally:
                if ahead and ahead.held and not is_accepted:
                    ahead.held.leave()
        live.opened()
        return ahead if isinstance(ahead, PreparedCall) else None

    def _look_ahead(self, live: LiveCall) -> PreparedCall | CallError | None:
        """A step that can run now, an error that is certain, or None: walk the line stage by stage."""
        if live.stop is not None:
            return None
        try:
            tool = self._found(live)
            if self.hooks.concern(Point.BEFORE, tool.name) or not self.registry.probes.is_ready(tool):
                return None
            step = self._prepare(live, tool, payload_of(live.request, tool))
            if not (self._asks.has_none(live, step) and self._enter_now(live, step)):
                return None
            self._note_walls(live, step)
            return step
        except CallError as error:
            return self._certain(live, error)
        except Exception:  # noqa: BLE001 - a bug of the tool: the line meets it again, where it becomes the call's end
            return None

    def _found(self, live: LiveCall) -> Tool:
        """The tool, for a call that came whole."""
        tool = self.registry.find(live.call.tool, live.session.principal)
        if live.fault is not None:
            raise live.fault
        return tool

    def _certain(self, live: LiveCall, error: CallError) -> CallError | None:
        """An error that ends the call at once, unless after-hooks want to hear of it, or its tool may come yet."""
        if self.registry.is_expected(live.call.tool, live.session.principal):
            return None
        tool = self.registry.get(live.call.tool, live.session.principal)
        return None if tool and self.hooks.concern(Point.AFTER, tool.name) else error

    async def _approach(self, live: LiveCall) -> PreparedCall:
        """The way to the gate. A resumed call that had its arguments settled does not meet the hooks again."""
        live.stage("approach")
        live.loosen()
        await self.registry.arrival(live.call.tool, live.session.principal)
        tool = self._found(live)
        await self.registry.probes.require(tool)
        if live.settled is None:
            tell = partial(self._journal.tell_hook, live)
            payload = await self.hooks.before(live.call, tool, live.session, payload_of(live.request, tool), tell)
            step = self._prepare(live, tool, payload)
            await self._journal.settle(live, payload)
        else:
            step = self._prepare(live, tool, json.loads(live.settled))
        await self._asks.meet(live, step)
        return step

    async def _walk(self, live: LiveCall, ahead: PreparedCall | None) -> tuple[Result, str | None]:
        """One line, one stage. The order is the product; keep it readable here."""
        if ahead is None and live.call.status is Status.RUNNING:  # at its client, since an earlier start
            return self._outcomes.shown(live, None, await self._wait_for_client(live))
        step = ahead or await self._approach(live)
        result = await (self._execute_ahead(live, step) if ahead else self._execute_in_turn(live, step))
        live.stage("close")
        return self._outcomes.shown(live, step.tool, result)

    def _prepare(self, live: LiveCall, tool: Tool, payload: Any) -> PreparedCall:
        """Arguments become typed, and say what they need."""
        workspace = self._workspaces(live.session)
        args = tool.parse(payload)
        live.client = ClientRun(live.request.timeout or tool.timeout) if tool.is_client_run else None
        step = PreparedCall(tool, payload, args, tool.needs(args, workspace), workspace)
        if live.place is not None:
            live.place.declare(self._lane_of(live, step), tool.effect_of(args))
        return step

    def _lane_of(self, live: LiveCall, step: PreparedCall) -> str | None:
        match step.tool.lane:
            case Lane.WORKSPACE:
                return step.workspace.lane
            case Lane.SESSION:
                return f"session:{live.session.principal}:{live.session.id}"
            case Lane.NONE:
                return None
            case other:
                return other

    def _enter_now(self, live: LiveCall, step: PreparedCall) -> bool:
        """Take the pass for the look-ahead, if nobody is in the way."""
        lane = self._lane_of(live, step)
        if live.place is not None and not live.place.is_clear:
            return False
        if lane is not None:
            step.held = self._gates.try_enter(lane, step.tool.effect_of(step.args), live.held_above(lane))
        return lane is None or step.held is not None

    async def _execute_ahead(self, live: LiveCall, step: PreparedCall) -> Result:
        """The look-ahead took the pass and committed the start."""
        live.held = step.held
        try:
            live.loosen()
            return await self._execute(live, step)
        finally:
            if step.held is not None:
                step.held.leave()

    async def _execute_in_turn(self, live: LiveCall, step: PreparedCall) -> Result:
        """Gate, then running, then the tool."""
        live.stage("gate")
        async with self._enter(live, step):
            self._note_walls(live, step)
            await self._journal.start(live)
            return await self._execute(live, step)

    def _note_walls(self, live: LiveCall, step: PreparedCall) -> None:
        """The record says behind which walls the call runs before it does."""
        if step.tool.is_walled:
            is_escalated = any(need.permission == "escalate" for need in step.needs)
            walls = self.walled.isolation(live.session, is_escalated=is_escalated)
            live.call.sandbox = None if walls is None else dumps(walls.view()).decode()

    @asynccontextmanager
    async def _enter(self, live: LiveCall, step: PreparedCall) -> AsyncIterator[None]:
        if not self._enter_now(live, step):
            await self._journal.wait(live, Waiting.GATE)
            async with self._queue(live, step):
                yield
            return
        try:
            live.held = step.held
            yield
        finally:
            if step.held is not None:
                step.held.leave()

    @asynccontextmanager
    async def _queue(self, live: LiveCall, step: PreparedCall) -> AsyncIterator[None]:
        if live.place is not None:
            async with self._gates.patience():
                await live.place.clear()
        lane = self._lane_of(live, step)
        if lane is None:
            yield
            return
        async with self._gates.enter(lane, step.tool.effect_of(step.args), live.held_above(lane)) as live.held:
            yield

    async def _execute(self, live: LiveCall, step: PreparedCall) -> Result:
        """Run the tool. Its time limit is one more reason to be interrupted."""
        if live.client is not None:
            return await self._wait_for_client(live)
        live.stage("execute")
        live.is_executed = True
        seconds = live.request.timeout or step.tool.timeout
        live.limit = TimeLimit(seconds, lambda: live.time_out(seconds))
        try:
            return await step.tool.run(step.args, self._context(live, step))
        finally:
            live.limit.cancel()
            if live.children:
                await self.running.end_children(live)

    async def _wait_for_client(self, live: LiveCall) -> Result:
        live.stage("execute")
        live.loosen()
        assert live.client is not None, "only what a client runs is waited for"
        return await live.client.result(live.call.tool, live.interrupt)

    def _context(self, live: LiveCall, step: PreparedCall) -> Context:
        return Context(
            id=live.call.id,
            session_id=live.session.id,
            workspace=step.workspace,
            line=CallContext(live, step, self._journal, self._asks, self),
            call_id=live.call.call_id,
            message_id=live.call.message_id,
            agent=live.session.agent,
            trace=live.trace.context.traceparent if live.trace else None,
            abort=live.abort,
            extra=step.extra,
            approved=step.approved,
        )

    async def _close(self, live: LiveCall, shown: tuple[Result, str | None] | None, error: CallError | None) -> None:
        live.stage("close")
        end = await self._outcomes.settle(live, shown, error)
        await self._journal.close(live, end.result, end.error, end.whole)
