"""The line every call walks, from request to its one end.

    open → find tool → hooks.before → validate → needs → permission     _open, _approach
      → gate → running → execute                                        _execute_in_turn
      → truncate → hooks.after → close                                  _walk, _close

`_look_ahead` goes the first part without awaiting; when all is clear, `_open`
commits the start too, and `_execute_ahead` takes over at execute.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from app.core.calls import Call, CallRequest, Status, Waiting, current_call
from app.core.errors import CallError, Internal, Interrupted, InvalidArgs, TimedOut
from app.core.ids import Ids
from app.core.ports import TraceContext, Tracer, Workspace
from app.core.principals import Key
from app.core.results import Result
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.core.tools import Context, Lane, Tool, Truncation
from app.dispatch import calls
from app.dispatch.capacity import Capacity
from app.dispatch.clients import ClientRun
from app.dispatch.gate import Gates, Order, Pass, Place
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal, Lost
from app.dispatch.lines import LentLine
from app.dispatch.permissions import Permissions, denied
from app.dispatch.registry import Registry
from app.dispatch.running import LiveCall, Running, Suspended
from app.dispatch.truncate import truncate
from app.store.calls import Claim

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Step:
    """A call that may go to the gate: what it runs, with what, and what was approved."""

    tool: Tool
    args: Any
    needs: list[Need]
    workspace: Workspace
    held: Pass | None = None


class Dispatcher:
    """Nothing else in the house runs a tool."""

    def __init__(
        self,
        *,
        registry: Registry,
        hooks: Hooks,
        permissions: Permissions,
        gates: Gates,
        journal: Journal,
        ids: Ids,
        workspaces: Callable[[Session], Workspace],
        capacity: Capacity,
        tracer: Tracer | None = None,
    ) -> None:
        self.registry = registry
        self.capacity = capacity
        self.running = Running(self._dispatch, capacity)
        self._hooks = hooks
        self._permissions = permissions
        self._gates = gates
        self._journal = journal
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
        place: Place | None = None,
        origin: TraceContext | None = None,
    ) -> LiveCall:
        """Every way in: make a call of a request and set it on the line, if there is room for it."""
        if parent is None:  # a child is part of a call that was let in
            self.capacity.admit(key)
        id, at = self._ids.new("call")
        live = LiveCall(
            calls.of_request(id, at, request, session, parent.call.id if parent else None, key.id if key else None),
            request,
            session,
            key=key,
            claim=claim,
            parent=parent,
            place=place,
        )
        self._start(live, parent.trace.context if parent and parent.trace else origin)
        return live

    def submit_all(
        self,
        asked: Sequence[tuple[CallRequest, Session]],
        *,
        claims: Sequence[Claim | None] | None = None,
        key: Key | None = None,
        origin: TraceContext | None = None,
    ) -> list[LiveCall]:
        """Several calls that keep their order; all of them are let in, or none."""
        self.capacity.admit(key, len(asked))
        order = Order()
        return [
            self.submit(one, session, key=key, claim=claim, place=order.next(), origin=origin)
            for (one, session), claim in zip(asked, claims or [None] * len(asked), strict=True)
        ]

    async def resume(self, call: Call, session: Session) -> LiveCall:
        """Set a call of an earlier start on the line again: one that is pending, or one that runs at its client."""
        given = self._journal.cover.originals(call)
        live = LiveCall(call, calls.to_request(call, given), session, is_resumed=True)
        live.settled = given.effective
        await self._journal.adopt(live)
        self._start(live, None)
        return live

    async def cancel(self, live: LiveCall) -> None:
        """Stop a call; one that runs has the wish noted before its end. A store that refuses keeps no tool running."""
        if live.call.status is Status.RUNNING and not live.is_done:
            self._journal.request_cancel(live)
        await self.running.cancel(live)

    def _start(self, live: LiveCall, origin: TraceContext | None) -> None:
        if self._tracer is not None:
            live.trace = self._tracer.begin(live.call, origin)
        self.running.start(live)

    async def _dispatch(self, live: LiveCall) -> None:
        """The frame: whatever happens inside, the call gets one end, and it is written."""
        current_call.set(live.call.id)
        result: Result | None = None
        error: CallError | None = None
        whole: str | None = None
        try:
            step = await self._open(live)
            if live.claimed or live.call.is_final:
                return
            result, whole = await self._walk(live, step)
        except CallError as failed:
            error = failed
        except asyncio.CancelledError:
            error = live.stop or Internal("The tool was canceled from inside; this is a bug of the tool.")
        except Lost as lost:
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
        await self._close(live, result, error, whole)

    async def _open(self, live: LiveCall) -> Step | None:
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
        return ahead if isinstance(ahead, Step) else None

    def _look_ahead(self, live: LiveCall) -> Step | CallError | None:
        """A step that can run now, an error that is certain, or None: walk the line stage by stage."""
        if live.stop is not None:
            return None
        try:
            tool = self.registry.find(live.call.tool)
            if self._hooks.concern(tool.name):
                return None
            step = self._prepare(live, tool, _payload(live, tool))
            verdict = self._permissions.judge(step.needs)
            if verdict.action is Action.DENY:
                return denied(verdict)
            return step if verdict.action is Action.ALLOW and self._enter_now(live, step) else None
        except CallError as error:
            return error
        except Exception:  # noqa: BLE001 - a bug of the tool: the line meets it again, where it becomes the call's end
            return None

    async def _approach(self, live: LiveCall) -> Step:
        """The way to the gate. A resumed call that had its arguments settled does not meet the hooks again."""
        live.stage("approach")
        live.loosen()
        tool = self.registry.find(live.call.tool)
        if live.settled is None:
            payload = await self._hooks.before(live.call, _payload(live, tool))
            step = self._prepare(live, tool, payload)
            await self._journal.settle(live, payload)
        else:
            step = self._prepare(live, tool, json.loads(live.settled))
        await self._permissions.require(step.needs)
        return step

    async def _walk(self, live: LiveCall, ahead: Step | None) -> tuple[Result, str | None]:
        """One line, one stage. The order is the product; keep it readable here."""
        if ahead is None and live.call.status is Status.RUNNING:  # at its client, since an earlier start
            result, policy = await self._wait_for_client(live), Truncation()
        else:
            step = ahead or await self._approach(live)
            result = await (self._execute_ahead(live, step) if ahead else self._execute_in_turn(live, step))
            policy = step.tool.truncation
        live.stage("close")
        result = self._journal.cover.result(result)
        shown = truncate(result, policy)
        whole = result.output if shown.output is not result.output and live.spool is None else None
        return await self._hooks.after(live.call, shown), whole

    def _prepare(self, live: LiveCall, tool: Tool, payload: Any) -> Step:
        """Arguments become typed, and say what they need."""
        workspace = self._workspaces(live.session)
        args = tool.parse(payload)
        live.client = ClientRun(live.request.timeout or tool.timeout) if tool.is_client_run else None
        step = Step(tool, args, tool.needs(args, workspace), workspace)
        if live.place is not None:
            live.place.declare(self._lane_of(live, step), tool.effect_of(args))
        return step

    def _lane_of(self, live: LiveCall, step: Step) -> str | None:
        match step.tool.lane:
            case Lane.WORKSPACE:
                return step.workspace.lane
            case Lane.SESSION:
                return f"session:{live.session.principal}:{live.session.id}"
            case Lane.NONE:
                return None
            case other:
                return other

    def _enter_now(self, live: LiveCall, step: Step) -> bool:
        """Take the pass for the look-ahead, if nobody is in the way."""
        lane = self._lane_of(live, step)
        if live.place is not None and not live.place.is_clear:
            return False
        if lane is not None:
            step.held = self._gates.try_enter(lane, step.tool.effect_of(step.args), live.held_above(lane))
        return lane is None or step.held is not None

    async def _execute_ahead(self, live: LiveCall, step: Step) -> Result:
        """The look-ahead took the pass and committed the start."""
        live.held = step.held
        try:
            live.loosen()
            return await self._execute(live, step)
        finally:
            if step.held is not None:
                step.held.leave()

    async def _execute_in_turn(self, live: LiveCall, step: Step) -> Result:
        """Gate, then running, then the tool."""
        live.stage("gate")
        async with self._enter(live, step):
            await self._journal.start(live)
            return await self._execute(live, step)

    @asynccontextmanager
    async def _enter(self, live: LiveCall, step: Step) -> AsyncIterator[None]:
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
    async def _queue(self, live: LiveCall, step: Step) -> AsyncIterator[None]:
        if live.place is not None:
            async with self._gates.patience():
                await live.place.clear()
        lane = self._lane_of(live, step)
        if lane is None:
            yield
            return
        async with self._gates.enter(lane, step.tool.effect_of(step.args), live.held_above(lane)) as live.held:
            yield

    async def _execute(self, live: LiveCall, step: Step) -> Result:
        """Run the tool. Its time limit is one more reason to be interrupted."""
        if live.client is not None:
            return await self._wait_for_client(live)
        live.stage("execute")
        seconds = live.request.timeout or step.tool.timeout
        timer = asyncio.get_running_loop().call_later(seconds, _time_out, live, seconds)
        try:
            return await step.tool.run(step.args, self._context(live, step))
        finally:
            timer.cancel()
            if live.children:
                await self.running.end_children(live)

    async def _wait_for_client(self, live: LiveCall) -> Result:
        live.stage("execute")
        live.loosen()
        assert live.client is not None, "only what a client runs is waited for"
        return await live.client.result(live.call.tool, live.interrupt)

    def _context(self, live: LiveCall, step: Step) -> Context:
        return Context(
            id=live.call.id,
            session_id=live.session.id,
            workspace=step.workspace,
            line=LentLine(live, self._journal, self._permissions, self),
            call_id=live.call.call_id,
            message_id=live.call.message_id,
            agent=live.session.agent,
            trace=live.trace.context.traceparent if live.trace else None,
            abort=live.abort,
            extra={"approved": step.needs[0].pattern} if len(step.needs) == 1 else {},
        )

    async def _close(self, live: LiveCall, result: Result | None, error: CallError | None, whole: str | None) -> None:
        live.stage("close")
        live.tighten()
        if error is not None:
            result, whole = await self._left_over(live, error)
        await self._journal.close(live, result, error, whole)

    async def _left_over(self, live: LiveCall, error: CallError) -> tuple[Result | None, str | None]:
        """The output of a call that failed: what the error brings along, or what was spooled until then."""
        tool, result = self.registry.get(live.call.tool), error.result
        if result is None and live.spool is not None:
            await live.spool.finish()
            result = await self._partial(live)
        if result is None:
            return None, None
        result = self._journal.cover.result(result)
        shown = truncate(result, tool.truncation if tool else Truncation())
        is_cut = shown.output is not result.output and live.spool is None
        return shown, result.output if is_cut else None

    async def _partial(self, live: LiveCall) -> Result | None:
        try:
            return Result(output=await self._journal.partial(live.call))
        except Exception:
            log.exception("the output of call %s cannot be read; its end comes without it", live.call.id)
            return None


def _time_out(live: LiveCall, seconds: float) -> None:
    live.interrupt(TimedOut(f"{live.call.tool} was stopped after {seconds:g} s; its output so far is kept."))


def _payload(live: LiveCall, tool: Tool) -> Any:
    """What the tool takes. The other kind of payload is the caller's mistake, and is said."""
    request = live.request
    given, other = (
        (request.arguments, request.input) if tool.takes == "arguments" else (request.input, request.arguments)
    )
    if other is not None:
        wrong = "input" if tool.takes == "arguments" else "arguments"
        raise InvalidArgs(f"{tool.name} takes `{tool.takes}`, not `{wrong}`; send what it needs in `{tool.takes}`.")
    if given is None and tool.takes == "input":
        raise InvalidArgs(f"{tool.name} takes its text in `input`, which is missing.")
    return {} if given is None else given
