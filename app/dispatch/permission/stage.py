"""The permission stage: what no rule allows or denies is asked, and the call waits for a person's answer.

An ask counts only for its call and the arguments the call runs with. When an answer comes, or any rule changes, the
needs are resolved and judged again: a deny wins, a need that was not shown is asked, and what rules now allow needs no
answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.core.asks import Answer, Ask, AskKind, AskStatus, Decision
from app.core.calls import Status
from app.core.errors import AskExpired, CallError, Declined, DoomLoop, PermissionDenied
from app.core.principals import OnAsk
from app.core.rules import DOOM_LOOP, Action, Need, Rule
from app.core.tools import Tool
from app.core.util.aio import finish_despite_cancel
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.asks import MICROSECONDS, AskQueue, Waiter
from app.dispatch.permission.doom_loop import DoomLoopGuard, digest_of
from app.dispatch.permission.permissions import Permissions, denied, doom_loop_sentence, unattended
from app.dispatch.prepared_call import PreparedCall
from app.dispatch.redaction import CallRedactor
from app.dispatch.session.sessions import Sessions


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """What a call wants to do. Its needs are resolved again each time they are judged."""

    tool: Tool
    payload: Any
    find_needs: Callable[[], list[Need]]
    metadata: dict[str, Any] | None = None


class PermissionStage:
    """`seconds`: how long a person has to answer. `on_ask`: wait or deny, unless call or key say otherwise."""

    def __init__(
        self,
        *,
        asks: AskQueue,
        permissions: Permissions,
        journal: Journal,
        doom_loops: DoomLoopGuard,
        hooks: Hooks,
        redactor: CallRedactor,
        sessions: Sessions,
        seconds: float,
        on_ask: OnAsk,
    ) -> None:
        self.asks = asks
        self._journal = journal
        self._doom_loops = doom_loops
        self.permissions = permissions
        self._hooks = hooks
        self._redactor = redactor
        self._sessions = sessions
        self._seconds = seconds
        self._on_ask = on_ask

    def needs_no_approval(self, live: LiveCall, prepared: PreparedCall) -> bool:
        """Whether the rules allow everything and nothing is asked. Raises `PermissionDenied` on a deny."""
        verdicts = self.permissions.verdicts(prepared.tool, prepared.needs, live.session, live.key)
        for verdict in verdicts:
            if verdict.action is Action.DENY:
                raise denied(verdict)
        if prepared.tool.asks is not None or any(verdict.action is Action.ASK for verdict in verdicts):
            return False
        if live.session.is_default or prepared.tool.polls:
            return True  # doom loops are looked for in named sessions only
        live.approval.digest = digest_of(prepared.tool.name, prepared.payload)
        return self._doom_loops.has_loaded(live.session) and not self._doom_loops.needs(
            prepared.tool, live.session, live.approval.digest
        )

    def record_end(self, live: LiveCall) -> None:
        """The call has ended and counts for doom loops."""
        if live.record.claimed is None and not live.session.is_default:
            self._doom_loops.record(live.session, live.approval.digest, live.call)

    async def run(self, live: LiveCall, prepared: PreparedCall) -> None:
        """Permission by rules or by a person; then the tool's own questions, if it has any."""
        live.approval.digest = digest_of(prepared.tool.name, prepared.payload)
        if self._doom_loops.watches(prepared.tool, live.session):
            await self._doom_loops.load(live.session)

        def doom_loop_needs() -> list[Need]:
            return self._doom_loops.needs(prepared.tool, live.session, live.approval.digest)

        metadata = prepared.tool.explains(prepared.args) if prepared.tool.explains else None
        request = PermissionRequest(
            prepared.tool, prepared.payload, lambda: [*prepared.find_needs(), *doom_loop_needs()], metadata
        )
        await self.require(live, request)
        if doom_loop_needs():
            self._doom_loops.reset(live.session)
        if prepared.tool.asks is not None:
            prepared.answer = await self.question(live, prepared.tool.asks(prepared.args))
            await self.require(live, request)  # rules may have changed while the person answered

    async def require(self, live: LiveCall, request: PermissionRequest) -> None:
        """Return when everything is allowed, by rules or by a person; raise otherwise."""
        async with live.approval.lock:
            is_running = live.call.status is Status.RUNNING
            approved = set(live.approval.approved) | (set() if is_running else _approved(live))
            while missing := self._needs_to_ask(live, request, approved):
                if waiter := self._waiter_of(live, missing):
                    ask = await self.asks.wait(waiter)
                    if not ask.is_open:
                        approved |= set(_allowed(ask))
                elif await self._allowed_by_hook(live, request, missing):
                    approved |= {self._shown(need) for need in missing}
                else:
                    await self._open(live, request, missing)
            if live.approval.ask is not None and live.approval.ask.kind is AskKind.PERMISSION:
                _allowed(await self.asks.resolve_by_rules(self.asks.waiter(live.approval.ask)))
            if not is_running:
                live.approval.approved = frozenset(approved)

    async def question(self, live: LiveCall, questions: list[dict[str, Any]]) -> dict[str, Any]:
        """A person's answers to a tool's questions, asked before the tool runs."""
        async with live.approval.lock:
            ask = _asked_questions(live)
            if ask is None:
                self._require_person(live)
                ask = await self.asks.open(live, AskKind.QUESTION, self._seconds_for(live), questions=questions)
            while ask.is_open:
                ask = await self.asks.wait(self.asks.waiter(ask))
            if ask.answer is None:
                raise expired(ask)
            if ask.answer.content is None:
                details = {"blocked": True, "action": ask.answer.action, "ask": ask.id}
                raise Declined(f"The person did not answer{_message(ask.answer)}", details=details)
            return ask.answer.content

    async def elicit(self, live: LiveCall, request: dict[str, Any]) -> Answer:
        """A person's answer to an MCP server that runs the call."""
        self._require_person(live)
        async with live.approval.lock:
            try:
                ask = await self.asks.open(live, AskKind.ELICITATION, self._seconds_for(live), metadata=request)
                while ask.is_open:
                    ask = await self.asks.wait(self.asks.waiter(ask))
            except asyncio.CancelledError:
                await finish_despite_cancel(self.asks.withdraw(live))
                raise
        if ask.answer is None:
            raise expired(ask)
        return ask.answer

    def _needs_to_ask(self, live: LiveCall, request: PermissionRequest, approved: set[Need]) -> list[Need]:
        """The needs that still have to be asked. Raises on a deny."""
        missing = []
        session = self._sessions.peek(live.session.principal, live.session.id) or live.session  # it may have changed
        for verdict in self.permissions.verdicts(request.tool, request.find_needs(), session, live.key):
            if verdict.action is Action.DENY:
                raise denied(verdict)
            assert verdict.need is not None, "a verdict on a need has it"
            if verdict.action is Action.ASK and self._shown(verdict.need) not in approved:
                missing.append(verdict.need)
        return missing

    def _waiter_of(self, live: LiveCall, needs: list[Need]) -> Waiter | None:
        """The open ask that shows all of this, if there is one."""
        ask = live.approval.ask
        if ask is None or ask.kind is not AskKind.PERMISSION or ask.digest != live.approval.digest:
            return None
        return self.asks.waiter(ask) if {self._shown(need) for need in needs} <= set(ask.needs) else None

    async def _open(self, live: LiveCall, request: PermissionRequest, needs: list[Need]) -> None:
        if self._policy(live) == "deny":
            raise unattended(needs[0])
        shown = tuple(self._shown(need) for need in needs)
        always = dict.fromkeys(Rule(need.permission, need.always or need.pattern, Action.ALLOW) for need in shown)
        await self.asks.open(
            live,
            AskKind.PERMISSION,
            self._seconds_for(live),
            needs=shown,
            always=tuple(always),
            metadata=request.metadata or {},
        )

    async def _allowed_by_hook(self, live: LiveCall, request: PermissionRequest, needs: list[Need]) -> bool:
        publish = partial(self._journal.publish_hook, live)
        decision = await self._hooks.decide(live.call, request.tool, live.session, request.payload, needs, publish)
        if decision is None:
            return False
        action, message, hook = decision
        if action is Action.ALLOW:
            return True
        details = {"hook": hook, "permission": needs[0].permission, "pattern": needs[0].pattern}
        raise PermissionDenied(message or f"Not allowed: the hook {hook} denied it.", details=details)

    def _require_person(self, live: LiveCall) -> None:
        if self._policy(live) == "deny":
            raise Declined("No person is there to answer questions; continue without an answer.")

    def _policy(self, live: LiveCall) -> OnAsk:
        root = _root(live)
        return root.request.on_ask or (root.key.bounds.on_ask if root.key else None) or self._on_ask

    def _seconds_for(self, live: LiveCall) -> float:
        return _root(live).request.ask_timeout or self._seconds

    def _shown(self, need: Need) -> Need:
        """The redacted need, as asks show and store it; asks of an earlier start are compared in this form."""
        pattern = self._redactor.redact_text(need.pattern)
        return need if pattern == need.pattern else Need(need.permission, pattern)


def expired(ask: Ask) -> CallError:
    seconds = (ask.expires_at - ask.created_at) / MICROSECONDS
    what = "whether this is allowed" if ask.kind is AskKind.PERMISSION else "the questions"
    message = f"No person answered {what} within {seconds:g} s; continue without it, or try again later."
    return AskExpired(message, details={"ask": ask.id})


def _root(live: LiveCall) -> LiveCall:
    """The call that a caller sent: its options about asks apply to all of its children."""
    while live.parent is not None:
        live = live.parent
    return live


def _asked_questions(live: LiveCall) -> Ask | None:
    """The ask with this call's questions, if it was opened before. One replaced by a permission ask does not count."""
    same = [ask for ask in live.approval.asks if ask.kind is AskKind.QUESTION and ask.digest == live.approval.digest]
    if not same or (same[-1].status is AskStatus.EXPIRED and same[-1] is not live.approval.asks[-1]):
        return None
    return same[-1]


def _approved(live: LiveCall) -> set[Need]:
    """What people approved for this call with these arguments, also before a restart."""
    same = [ask for ask in live.approval.asks if ask.kind is AskKind.PERMISSION and ask.digest == live.approval.digest]
    if same and same[-1].status is AskStatus.EXPIRED:
        raise expired(same[-1])
    return {need for ask in same if ask.status is AskStatus.ANSWERED for need in _allowed(ask)}


def _allowed(ask: Ask) -> tuple[Need, ...]:
    """What the answer allows. A deny is raised with the person's message."""
    if ask.answer is None:
        raise expired(ask)
    if ask.answer.decision is not Decision.DENY:
        return ask.needs
    need = ask.needs[0]
    details = {"blocked": True, "ask": ask.id, "permission": need.permission, "pattern": need.pattern}
    if need.permission == DOOM_LOOP:
        raise DoomLoop(
            f"{doom_loop_sentence(need.pattern)} The person denied it{_message(ask.answer)}", details=details
        )
    raise PermissionDenied(
        f"The person did not allow {need.permission} {need.pattern}{_message(ask.answer)}", details=details
    )


def _message(answer: Answer) -> str:
    return f": {answer.message}" if answer.message else "."
