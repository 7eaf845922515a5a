"""Asks on the line: what a call needs and no rule settles is asked, and the call waits for a person.

An ask is bound to its call and to the arguments the call runs with, and counts for nothing else. When an answer comes,
or any rule changes, the needs are found and judged again: a deny wins, a need that was not shown is asked anew, and
what rules cover by now needs no answer.
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
from app.dispatch.hooks import Hooks
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.asks import MICROSECONDS, AskQueue, Waiter, to_its_end
from app.dispatch.permission.doom_loop import DoomLoopGuard, digest_of
from app.dispatch.permission.permissions import Permissions, denied, in_circles, unattended
from app.dispatch.prepared_call import PreparedCall
from app.dispatch.redaction import CallRedactor
from app.dispatch.session.sessions import Sessions


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """What a call wants to do, and with what. The needs are found anew each time they are judged."""

    tool: Tool
    payload: Any
    find_needs: Callable[[], list[Need]]
    metadata: dict[str, Any] | None = None


class PermissionStage:
    """The permission stage.

    `seconds` is how long a person has, `on_ask` what happens where nobody is there, unless call or key say otherwise.
    """

    def __init__(
        self,
        desk: AskQueue,
        permissions: Permissions,
        loops: DoomLoopGuard,
        hooks: Hooks,
        cover: CallRedactor,
        sessions: Sessions,
        *,
        seconds: float,
        on_ask: OnAsk,
    ) -> None:
        self.desk = desk
        self.loops = loops
        self.permissions = permissions
        self._hooks = hooks
        self._cover = cover
        self._sessions = sessions
        self._seconds = seconds
        self._on_ask = on_ask

    def has_none(self, live: LiveCall, step: PreparedCall) -> bool:
        """Whether rules alone let it run and nothing is asked, as far as that is known now. A deny is raised."""
        verdicts = self.permissions.verdicts(step.tool, step.needs, live.session, live.key)
        for verdict in verdicts:
            if verdict.action is Action.DENY:
                raise denied(verdict)
        if step.tool.asks is not None or any(verdict.action is Action.ASK for verdict in verdicts):
            return False
        if not self.loops.watches(step.tool, live.session):
            return True
        live.digest = digest_of(step.tool.name, step.payload)
        return self.loops.knows(live.session) and not self.loops.needs(step.tool, live.session, live.digest)

    def note(self, live: LiveCall) -> None:
        """The call has ended, and counts among the last of its session."""
        if live.claimed is None and not live.session.is_default:
            self.loops.note(live.session, live.digest, live.call)

    async def meet(self, live: LiveCall, step: PreparedCall) -> None:
        """Permission, by rules or by a person; then the tool's own questions, if it has any."""
        live.digest = digest_of(step.tool.name, step.payload)
        if self.loops.watches(step.tool, live.session):
            await self.loops.learn(live.session)

        def circles() -> list[Need]:
            return self.loops.needs(step.tool, live.session, live.digest)

        about = step.tool.explains(step.args) if step.tool.explains else None
        wish = PermissionRequest(step.tool, step.payload, lambda: [*step.find_needs(), *circles()], about)
        await self.require(live, wish)
        if circles():
            self.loops.forgive(live.session)
        if step.tool.asks is not None:
            step.answer = await self.question(live, step.tool.asks(step.args))
            await self.require(live, wish)  # while the person thought, rules may have changed

    async def require(self, live: LiveCall, wish: PermissionRequest) -> None:
        """Come back only when everything is allowed, by rules or by a person."""
        async with live.asking:
            is_running = live.call.status is Status.RUNNING
            approved = set(live.approved) | (set() if is_running else _approved(live))
            while wanted := self._wanted(live, wish, approved):
                if waiter := self._waiter_of(live, wanted):
                    ask = await self.desk.wait(waiter)
                    if not ask.is_open:
                        approved |= set(_allowed(ask))
                elif await self._allowed_by_hook(live, wish, wanted):
                    approved |= {self._shown(need) for need in wanted}
                else:
                    await self._open(live, wish, wanted)
            if live.ask is not None and live.ask.kind is AskKind.PERMISSION:
                _allowed(await self.desk.settle(self.desk.waiter(live.ask)))
            if not is_running:
                live.approved = frozenset(approved)

    async def question(self, live: LiveCall, questions: list[dict[str, Any]]) -> dict[str, Any]:
        """What a person answers to a tool's questions, asked before the tool runs."""
        async with live.asking:
            ask = _questioned(live) or await self._put(live, questions)
            while ask.is_open:
                ask = await self.desk.wait(self.desk.waiter(ask))
            if ask.answer is None:
                raise expired(ask)
            if ask.answer.content is None:
                details = {"blocked": True, "action": ask.answer.action, "ask": ask.id}
                raise Declined(f"The person did not want to answer{_said(ask.answer)}", details=details)
            return ask.answer.content

    async def elicit(self, live: LiveCall, shows: dict[str, Any]) -> Answer:
        """What a person answers to an MCP server that has the call."""
        if self._policy(live) == "deny":
            raise Declined("Nobody is there to answer questions; go on without an answer.")
        async with live.asking:
            try:
                ask = await self.desk.open(live, AskKind.ELICITATION, self._seconds_for(live), metadata=shows)
                while ask.is_open:
                    ask = await self.desk.wait(self.desk.waiter(ask))
            except asyncio.CancelledError:
                await to_its_end(self.desk.withdraw(live))
                raise
        if ask.answer is None:
            raise expired(ask)
        return ask.answer

    def _wanted(self, live: LiveCall, wish: PermissionRequest, approved: set[Need]) -> list[Need]:
        """The needs that must be asked still. A deny ends it here."""
        wanted = []
        session = self._sessions.peek(live.session.principal, live.session.id) or live.session  # as it is by now
        for verdict in self.permissions.verdicts(wish.tool, wish.find_needs(), session, live.key):
            if verdict.action is Action.DENY:
                raise denied(verdict)
            assert verdict.need is not None, "a verdict on a need has it"
            if verdict.action is Action.ASK and self._shown(verdict.need) not in approved:
                wanted.append(verdict.need)
        return wanted

    def _waiter_of(self, live: LiveCall, wanted: list[Need]) -> Waiter | None:
        """The open ask that shows all of this, if there is one."""
        ask = live.ask
        if ask is None or ask.kind is not AskKind.PERMISSION or ask.digest != live.digest:
            return None
        return self.desk.waiter(ask) if {self._shown(need) for need in wanted} <= set(ask.needs) else None

    async def _open(self, live: LiveCall, wish: PermissionRequest, wanted: list[Need]) -> None:
        if self._policy(live) == "deny":
            raise unattended(wanted[0])
        needs = tuple(self._shown(need) for need in wanted)
        always = dict.fromkeys(Rule(need.permission, need.always or need.pattern, Action.ALLOW) for need in needs)
        shows = {"needs": needs, "always": tuple(always), "metadata": wish.metadata or {}}
        await self.desk.open(live, AskKind.PERMISSION, self._seconds_for(live), **shows)

    async def _put(self, live: LiveCall, questions: list[dict[str, Any]]) -> Ask:
        if self._policy(live) == "deny":
            raise Declined("Nobody is there to answer questions; go on without an answer.")
        return await self.desk.open(live, AskKind.QUESTION, self._seconds_for(live), questions=questions)

    async def _allowed_by_hook(self, live: LiveCall, wish: PermissionRequest, wanted: list[Need]) -> bool:
        tell = partial(self.desk.journal.tell_hook, live)
        said = await self._hooks.asked(live.call, wish.tool, live.session, wish.payload, wanted, tell)
        if said is None:
            return False
        action, message, hook = said
        if action is Action.ALLOW:
            return True
        details = {"hook": hook, "permission": wanted[0].permission, "pattern": wanted[0].pattern}
        raise PermissionDenied(message or f"Not allowed: the hook {hook} said no.", details=details)

    def _policy(self, live: LiveCall) -> OnAsk:
        first = _first(live)
        return first.request.on_ask or (first.key.bounds.on_ask if first.key else None) or self._on_ask

    def _seconds_for(self, live: LiveCall) -> float:
        return _first(live).request.ask_timeout or self._seconds

    def _shown(self, need: Need) -> Need:
        """The need as it may be shown and kept; asks of an earlier start are compared in this form."""
        pattern = self._cover.text(need.pattern)
        return need if pattern == need.pattern else Need(need.permission, pattern)


def expired(ask: Ask) -> CallError:
    seconds = (ask.expires_at - ask.created_at) / MICROSECONDS
    what = "whether this is allowed" if ask.kind is AskKind.PERMISSION else "the questions"
    message = f"Nobody answered {what} within {seconds:g} s; go on without it, or ask again later."
    return AskExpired(message, details={"ask": ask.id})


def _first(live: LiveCall) -> LiveCall:
    """The call that a caller sent: what it said about asks counts for all that its tool calls."""
    while live.parent is not None:
        live = live.parent
    return live


def _questioned(live: LiveCall) -> Ask | None:
    """The questions this call has put already. Those that ended because a permission had to be asked do not count."""
    mine = [ask for ask in live.asks if ask.kind is AskKind.QUESTION and ask.digest == live.digest]
    if not mine or (mine[-1].status is AskStatus.EXPIRED and mine[-1] is not live.asks[-1]):
        return None
    return mine[-1]


def _approved(live: LiveCall) -> set[Need]:
    """What people allowed this very call with these very arguments, at an earlier start too."""
    mine = [ask for ask in live.asks if ask.kind is AskKind.PERMISSION and ask.digest == live.digest]
    if mine and mine[-1].status is AskStatus.EXPIRED:
        raise expired(mine[-1])
    return {need for ask in mine if ask.status is AskStatus.ANSWERED for need in _allowed(ask)}


def _allowed(ask: Ask) -> tuple[Need, ...]:
    """What the answer allows. A no is the call's end, and says what the person said."""
    if ask.answer is None:
        raise expired(ask)
    if ask.answer.decision is not Decision.DENY:
        return ask.needs
    need = ask.needs[0]
    details = {"blocked": True, "ask": ask.id, "permission": need.permission, "pattern": need.pattern}
    if need.permission == DOOM_LOOP:
        raise DoomLoop(f"{in_circles(need.pattern)} The person said no{_said(ask.answer)}", details=details)
    wish = f"{need.permission} {need.pattern}"
    raise PermissionDenied(f"The person did not allow {wish}{_said(ask.answer)}", details=details)


def _said(answer: Answer) -> str:
    return f": {answer.message}" if answer.message else "."
