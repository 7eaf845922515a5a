"""The dispatcher: the one pipeline every call goes through, from its request to its end.

`_run_stages` is the pipeline, one stage per line. `_try_fast_path` is the early return in front of it: when no stage
has to wait, the call is accepted and started, or ended, in one commit.
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
from app.core.errors import CallError, Canceled, Internal, Interrupted, ToolUnavailable
from app.core.hooks import Point
from app.core.ports import TraceContext, Tracer, Workspace
from app.core.principals import Key
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Lane, Tool
from app.core.util.ids import Ids
from app.core.util.json_codec import dumps
from app.dispatch import call_records
from app.dispatch.client_run import ClientRun
from app.dispatch.finish import FinishStage, Shown
from app.dispatch.gate import BatchOrder, BatchSlot, Gates
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal, TransitionLost
from app.dispatch.live_calls import Capacity, LiveCall, LiveCalls, Suspended, TimeLimit
from app.dispatch.permission.stage import PermissionStage
from app.dispatch.prepared_call import FILE_PERMISSIONS, PreparedCall, payload_of
from app.dispatch.redaction import CallRedactor
from app.dispatch.session.sessions import DELETED
from app.dispatch.tool_context import CallContext, ToolResources
from app.dispatch.tools.listing import visible
from app.dispatch.tools.registry import Registry
from app.store.calls import Claim

log = logging.getLogger(__name__)

MAX_DEPTH = 8


class Dispatcher:
    """Nothing else in the service runs a tool."""

    def __init__(
        self,
        *,
        registry: Registry,
        hooks: Hooks,
        permission: PermissionStage,
        gates: Gates,
        journal: Journal,
        redactor: CallRedactor,
        ids: Ids,
        workspaces: Callable[[Session], Workspace],
        capacity: Capacity,
        resources: ToolResources,
        tracer: Tracer | None = None,
    ) -> None:
        self.registry = registry
        self.capacity = capacity
        self.live_calls = LiveCalls(self._run, capacity)
        self.resources = resources
        self._hooks = hooks
        self._permission = permission
        self._gates = gates
        self._journal = journal
        self._redactor = redactor
        self._finish = FinishStage(journal, redactor, hooks, registry)
        self._ids = ids
        self._workspaces = workspaces
        self._tracer = tracer

    def submit(
        self,
        request: CallRequest,
        session: Session,
        *,
        key: Key | None = None,
        claim: Claim | None = None,
        parent: LiveCall | None = None,
        batch_slot: BatchSlot | None = None,
        back_channel: BackChannel | None = None,
        fault: CallError | None = None,
        origin: TraceContext | None = None,
    ) -> LiveCall:
        """Make a call of a request and start it; every entry comes here. Raises `TooBusy` or `TooManyCalls`.

        `fault` is the error of a call that a model wrote unreadably.
        """
        if parent is None:  # a child is part of a call that was admitted
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
            batch_slot=batch_slot,
            back_channel=back_channel,
            fault=fault,
        )
        if self._tracer is not None:
            live.trace = self._tracer.begin(live.call, parent.trace.context if parent and parent.trace else origin)
        self.live_calls.start(live)
        return live

    def submit_all(
        self,
        requests: Sequence[tuple[CallRequest, Session]],
        *,
        claims: Sequence[Claim | None] | None = None,
        faults: Sequence[CallError | None] | None = None,
        key: Key | None = None,
        origin: TraceContext | None = None,
    ) -> list[LiveCall]:
        """Several calls that keep their order; all of them are admitted, or none."""
        self.capacity.admit(key, len(requests))
        order, nothing = BatchOrder(), [None] * len(requests)
        return [
            self.submit(request, session, key=key, claim=claim, batch_slot=order.next(), fault=fault, origin=origin)
            for (request, session), claim, fault in zip(requests, claims or nothing, faults or nothing, strict=True)
        ]

    async def resume(self, call: Call, session: Session, key: Key | None) -> LiveCall:
        """Continue a call of an earlier start: one that is pending, or one that its client runs."""
        originals = self._redactor.originals(call)
        live = LiveCall(call, call_records.to_request(call, originals), session, key=key, is_resumed=True)
        live.record.effective_arguments = originals.effective
        await self._permission.asks.restore(live)
        await self._journal.adopt(live)
        if self._tracer is not None:
            live.trace = self._tracer.begin(live.call, None)
        self.live_calls.start(live)
        return live

    async def cancel(self, live: LiveCall, reason: CallError | None = None) -> None:
        """Stop a call. The request to cancel a running one is recorded first, but a store that fails stops nothing."""
        if live.call.status is Status.RUNNING and not live.is_done:
            self._journal.request_cancel(live)
        await self.live_calls.cancel(live, reason)

    async def end_session(self, principal: str, session: str) -> None:
        """Cancel the calls of a session that is deleted; end its interpreters and terminals."""
        lives = [live for live in self.live_calls if (live.session.principal, live.session.id) == (principal, session)]
        await asyncio.gather(*(self.cancel(live, Canceled(DELETED)) for live in lives))
        await self.resources.kernels.end_session(principal, session)
        await self.resources.terminals.end_session(principal, session)

    def tools(self, session: Session, key: Key | None) -> list[Tool]:
        """The tools a caller sees."""
        return visible(self.registry.all(session.principal), session, key, self._permission.permissions)

    async def _run(self, live: LiveCall) -> None:
        """The frame around the pipeline: whatever happens inside, the call gets one end, and it is written."""
        current_call.set(live.call.id)
        shown: Shown | None = None
        error: CallError | None = None
        try:
            shown = await self._run_stages(live)
            if shown is None:
                self._permission.record_end(live)
                return
        except CallError as failure:
            error = failure
        except asyncio.CancelledError:
            error = live.stop or Internal("The tool was canceled from inside; this is a bug of the tool.")
        except TransitionLost as lost:
            live.record.failure = lost
            return
        except (Exception, SystemExit):
            if not live.is_open:
                raise  # the call was not accepted, so it has no end
            log.exception("call %s broke", live.call.id)
            error = Internal("The service failed to run this call; its log has the details.")
        if isinstance(error, Suspended):
            if live.survives_restart:
                return
            error = Interrupted("The service was stopped before the tool could run; nothing was done.")
        live.trace_stage("close")
        outcome = await self._finish.run(live, shown, error)
        await self._journal.close(live, outcome.result, outcome.error, outcome.whole)
        self._permission.record_end(live)

    async def _run_stages(self, live: LiveCall) -> Shown | None:
        """The pipeline, one stage per line. None: the call was not accepted, or its first commit ended it."""
        prepared = await self._try_fast_path(live)
        if live.record.claimed or live.call.is_final:
            return None
        if prepared is not None:
            return self._finish.show(live, prepared.tool, await self._execute_with_hold(live, prepared))
        if live.call.status is Status.RUNNING:  # at its client, since an earlier start
            return self._finish.show(live, None, await self._wait_for_client(live))
        tool = await self._find_tool(live)
        payload = await self._run_before_hooks(live, tool)
        prepared = self._prepare(live, tool, payload)
        await self._journal.store_effective_arguments(live, payload)
        await self._permission.run(live, prepared)
        async with self._hold_gate(live, prepared):
            self._record_isolation(live, prepared)
            await self._journal.start(live)
            result = await self._execute(live, prepared)
        return self._finish.show(live, tool, result)

    async def _try_fast_path(self, live: LiveCall) -> PreparedCall | None:
        """Accept the call. When no stage has to wait, the same commit starts it, or ends it with a certain error."""
        live.trace_stage("open")
        prepared = error = None
        if not live.is_resumed:
            if live.stop is None:
                prepared, error = self._prepare_without_waiting(live)
            is_accepted = False
            try:
                await self._journal.open(live, start=prepared is not None, error=error)
                is_accepted = live.record.claimed is None
            finally:
                if prepared is not None and prepared.hold is not None and not is_accepted:
                    prepared.hold.leave()
        live.mark_open()
        return prepared

    def _prepare_without_waiting(self, live: LiveCall) -> tuple[PreparedCall | None, CallError | None]:
        """A call that can run now, or an error that is certain, or neither: then it goes stage by stage."""
        try:
            tool = self.registry.find(live.call.tool, live.session.principal)
            if live.fault is not None:
                raise live.fault
            if tool.init is not None and not self.registry.availability.is_ready(tool):
                return None, None
            if not self._hooks.is_empty and self._hooks.has(Point.BEFORE, tool.name):
                return None, None
            prepared = self._prepare(live, tool, payload_of(live.request, tool))
            if not (self._permission.needs_no_approval(live, prepared) and self._try_gate(live, prepared)):
                return None, None
            self._record_isolation(live, prepared)
            return prepared, None
        except CallError as error:
            return None, error if self._is_certain(live) else None
        except Exception:  # noqa: BLE001 - a bug of the tool: the pipeline meets it again and ends the call with it
            return None, None

    def _is_certain(self, live: LiveCall) -> bool:
        """Whether an error ends the call at once: no after-hook wants to see it, and the tool is not still to come."""
        tool = self.registry.get(live.call.tool, live.session.principal)
        if tool is None:
            return self.registry.pending_server(live.call.tool, live.session.principal) is None
        return not self._hooks.has(Point.AFTER, tool.name)

    async def _find_tool(self, live: LiveCall) -> Tool:
        live.trace_stage("approach")
        live.allow_interrupts()
        await self.registry.wait_until_listed(live.call.tool, live.session.principal)
        tool = self.registry.find(live.call.tool, live.session.principal)
        if live.fault is not None:
            raise live.fault
        await self.registry.availability.require(tool)
        return tool

    async def _run_before_hooks(self, live: LiveCall, tool: Tool) -> Any:
        """The arguments as before-hooks leave them. A resumed call that has them does not meet the hooks again."""
        if live.record.effective_arguments is not None:
            return json.loads(live.record.effective_arguments)
        publish = partial(self._journal.publish_hook, live)
        return await self._hooks.before(live.call, tool, live.session, payload_of(live.request, tool), publish)

    def _prepare(self, live: LiveCall, tool: Tool, payload: Any) -> PreparedCall:
        """Validate the arguments and find what they need."""
        workspace = self._workspaces(live.session)
        args = tool.parse(payload)
        if tool.is_client_run:
            live.execution.client = ClientRun(live.request.timeout or tool.timeout)
        match tool.lane:
            case Lane.WORKSPACE:
                lane: str | None = workspace.lane
            case Lane.SESSION:
                lane = f"session:{live.session.principal}:{live.session.id}"
            case Lane.NONE:
                lane = None
            case other:
                lane = other
        prepared = PreparedCall(tool, payload, args, tool.needs(args, workspace), workspace, tool.effect_of(args), lane)
        if live.batch_slot is not None:
            live.batch_slot.declare(lane, prepared.effect)
        return prepared

    def _try_gate(self, live: LiveCall, prepared: PreparedCall) -> bool:
        """Enter the lane now, if no other call is in the way."""
        if live.batch_slot is not None and not live.batch_slot.is_clear:
            return False
        if prepared.lane is None:
            return True
        inherited = live.inherited_hold(prepared.lane) if live.parent else None
        prepared.hold = self._gates.try_enter(prepared.lane, prepared.effect, inherited)
        return prepared.hold is not None

    @asynccontextmanager
    async def _hold_gate(self, live: LiveCall, prepared: PreparedCall) -> AsyncIterator[None]:
        """Hold the call's lane: at once if it is free, else in the order of arrival."""
        live.trace_stage("gate")
        if self._try_gate(live, prepared):
            live.execution.hold = prepared.hold
            try:
                yield
            finally:
                if prepared.hold is not None:
                    prepared.hold.leave()
            return
        await self._journal.wait(live, Waiting.GATE)
        if live.batch_slot is not None:
            async with self._gates.queue_timeout():
                await live.batch_slot.clear()
        if prepared.lane is None:
            yield
            return
        inherited = live.inherited_hold(prepared.lane)
        async with self._gates.enter(prepared.lane, prepared.effect, inherited) as live.execution.hold:
            yield

    def _record_isolation(self, live: LiveCall, prepared: PreparedCall) -> None:
        """The record says in which sandbox the call runs before it does."""
        if prepared.tool.is_sandboxed:
            is_escalated = any(need.permission == "escalate" for need in prepared.needs)
            isolation = self.resources.processes.isolation(live.session, is_escalated=is_escalated)
            live.call.sandbox = None if isolation is None else dumps(isolation.view()).decode()

    async def _execute_with_hold(self, live: LiveCall, prepared: PreparedCall) -> Result:
        """Execute on the fast path, which entered the gate and committed the start."""
        live.execution.hold = prepared.hold
        try:
            live.allow_interrupts()
            return await self._execute(live, prepared)
        finally:
            if prepared.hold is not None:
                prepared.hold.leave()

    async def _execute(self, live: LiveCall, prepared: PreparedCall) -> Result:
        """Run the tool within its time limit, or wait for the client that runs it."""
        execution, tool = live.execution, prepared.tool
        if execution.client is not None:
            return await self._wait_for_client(live)
        live.trace_stage("execute")
        execution.has_run = True
        seconds = live.request.timeout or tool.timeout
        execution.time_limit = TimeLimit(seconds, lambda: live.time_out(seconds))
        try:
            return await tool.run(prepared.args, self._context(live, prepared))
        finally:
            execution.time_limit.cancel()
            if execution.children:
                await self.live_calls.end_children(live)

    async def _wait_for_client(self, live: LiveCall) -> Result:
        live.trace_stage("execute")
        live.allow_interrupts()
        assert live.execution.client is not None, "only tools that the client runs are waited for"
        return await live.execution.client.result(live.call.tool, live.interrupt)

    def _context(self, live: LiveCall, prepared: PreparedCall) -> CallContext:
        call = live.call
        return CallContext(
            id=call.id,
            session_id=live.session.id,
            workspace=prepared.workspace,
            call_id=call.call_id,
            message_id=call.message_id,
            agent=live.session.agent,
            trace=live.trace.context.traceparent if live.trace else None,
            abort=live.execution.abort,
            extra={} if prepared.answer is None else {"answer": prepared.answer},
            approved=frozenset([need.pattern for need in prepared.needs if need.permission in FILE_PERMISSIONS])
            or None,
            live=live,
            prepared=prepared,
            resources=self.resources,
            journal=self._journal,
            permission=self._permission,
            hooks=self._hooks,
            registry=self.registry,
            call_tool=self._call_child,
        )

    async def _call_child(self, parent: LiveCall, tool: str, arguments: dict[str, Any]) -> Result:
        """A child goes through the whole pipeline like any call, inside its parent's gate hold."""
        depth, above = 1, parent.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        if depth >= MAX_DEPTH:
            raise ToolUnavailable(f"Tools called each other {MAX_DEPTH} levels deep, which is the limit.")
        request = CallRequest(tool=tool, arguments=arguments, message_id=parent.call.message_id)
        child = self.submit(request, parent.session, parent=parent)
        try:
            await child.wait()
        except asyncio.CancelledError:
            await self.live_calls.cancel(child, parent.stop)
            raise
        if parent.execution.hold is not None:
            await parent.execution.hold.come_back()  # it may have been released for the child
        if child.record.failure is not None:
            raise ToolUnavailable(f"The call of {tool} could not be recorded.") from child.record.failure
        return call_records.outcome(child.call)
