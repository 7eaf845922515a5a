"""The layers of rules that apply to a call, and their verdicts on what it needs.

    defaults < configuration < agent < global < workspace < key     the operator's part
      < session < answers                                           what callers and people added

An approval preset stands before the rules of its layer and only tightens; `never`, in any layer, turns ask into deny.
Global and workspace rules of all principals were written by an admin and decide; a principal's own rules may turn ask
into allow, never more. So may a session's, if its writer could write rules, and answers; others only tighten.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.errors import DoomLoop, PermissionDenied
from app.core.principals import Key
from app.core.rules import (
    DEFAULTS,
    DOOM_LOOP,
    UNTRUSTED,
    Action,
    Approval,
    Layer,
    Need,
    Power,
    Rule,
    RuleScope,
    StoredRule,
    Verdict,
    hides,
    judge_one,
)
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.core.tools import Tool
from app.dispatch.permission.rules import RuleStore, workspace_of

MAX_RULESETS = 4096
MAX_VERDICTS = 1024


@dataclass(frozen=True, slots=True)
class RuleSource:
    """Rules and an approval preset of one origin."""

    rules: tuple[Rule, ...] = ()
    approval: Approval | None = None

    def layers(self, name: str, power: Power = Power.DECIDES) -> list[Layer]:
        preset = [UNTRUSTED] if self.approval == "untrusted" else []
        return [*preset, Layer(name, self.rules, power)] if self.rules else preset


@dataclass(slots=True)
class Ruleset:
    """All rules that count for one key in one session."""

    session: Session
    layers: tuple[Layer, ...]
    never: str | None
    _verdicts: dict[tuple[str, Need], Verdict] = field(default_factory=dict)

    def judge(self, tool: Tool, need: Need) -> Verdict:
        known = self._verdicts.get((tool.name, need))
        if known is None:
            known = judge_one(need, self.layers, tool.name)
            if known.action is Action.ASK and self.never:
                known = Verdict(Action.DENY, need, known.rule, self.never)
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()  # a search asks about thousands of names once
            self._verdicts[tool.name, need] = known
        return known


class Permissions:
    """Builds the layers for each key and session once, until a rule changes."""

    def __init__(self, configuration: RuleSource, agents: Mapping[str, RuleSource], rules: RuleStore) -> None:
        self._configuration = configuration
        self._agents = agents
        self._stored = rules
        self._rulesets: dict[tuple[str, str, str | None], Ruleset] = {}
        rules.watch(self._rulesets.clear)

    def verdicts(self, tool: Tool, needs: Sequence[Need], session: Session, key: Key | None) -> list[Verdict]:
        """The verdict on each need. A tool without needs needs itself."""
        if key is not None and not key.bounds.allows_tool(tool.name):
            return [Verdict(Action.DENY, Need(tool.name, "*"), None, "key")]
        ruleset = self.ruleset(session, key)
        return [ruleset.judge(tool, need) for need in needs or [Need(tool.name, "*")]]

    def hides(self, tool: Tool, session: Session, key: Key | None) -> bool:
        """Whether a tool is hidden from this caller because it may never use it."""
        if key is not None and not key.bounds.allows_tool(tool.name):
            return True
        return hides(self.ruleset(session, key).layers, tool.permission or tool.name, tool.name)

    def allows_mcp(self, server: str, part: str, session: Session, key: Key | None) -> bool:
        """Whether the rules allow this part of an MCP server: `resources`, `prompts`."""
        ruleset = self.ruleset(session, key)
        action = judge_one(Need("mcp", f"{server}/{part}"), ruleset.layers).action
        return action is Action.ALLOW or (action is Action.ASK and ruleset.never is None)

    def ruleset(self, session: Session, key: Key | None) -> Ruleset:
        id = (session.principal, session.id, key.id if key else None)
        known = self._rulesets.get(id)
        if known is None or known.session is not session:
            if len(self._rulesets) >= MAX_RULESETS:
                self._rulesets.clear()
            known = self._rulesets[id] = self._build(session, key)
        return known

    def _build(self, session: Session, key: Key | None) -> Ruleset:
        agent = self._agents.get(session.agent or "", RuleSource())
        bounds = RuleSource(key.bounds.rules, key.bounds.approval) if key else RuleSource()
        own = RuleSource(session.rules, session.approval)
        power = Power.LOOSENS if session.is_trusted else Power.TIGHTENS
        layers = [
            DEFAULTS,
            *self._configuration.layers("configuration"),
            *agent.layers(f"agent {session.agent}"),
            *self._stored_layers(session),
            *bounds.layers("key"),
            *own.layers("session", power),
            *self._session_layers(session),
        ]
        parts = {"configuration": self._configuration, "agent": agent, "key": bounds, "session": own}
        never = next((name for name, part in parts.items() if part.approval == "never"), None)
        return Ruleset(session, tuple(layers), never and f"approval `never` of the {never}")

    def _stored_layers(self, session: Session) -> list[Layer]:
        """Global rules of all principals, the principal's own, then the same for the workspace."""
        written = [kept for kept in self._stored.applying_to(session.principal) if not kept.is_answer]
        layers = []
        for scope in (RuleScope.GLOBAL, RuleScope.WORKSPACE):
            for owner, power in ((GLOBAL_PRINCIPAL, Power.DECIDES), (session.principal, Power.LOOSENS)):
                rules = _rules(one for one in written if one.principal == owner and _applies(one, scope, session))
                layers.append(Layer(scope.value, rules, power))
        return [layer for layer in layers if layer.rules]

    def _session_layers(self, session: Session) -> list[Layer]:
        """Rules written for the session, then those of answers."""
        applying = [kept for kept in self._stored.applying_to(session.principal) if _applies(kept, kept.scope, session)]
        written = _rules(one for one in applying if one.scope is RuleScope.SESSION and not one.is_answer)
        answers = _rules(one for one in applying if one.is_answer)
        layers = Layer("session", written, Power.LOOSENS), Layer("answers", answers, Power.LOOSENS)
        return [layer for layer in layers if layer.rules]


def _applies(kept: StoredRule, scope: RuleScope, session: Session) -> bool:
    if kept.scope is not scope:
        return False
    if scope is RuleScope.SESSION:
        return kept.session == session.id
    return scope is RuleScope.GLOBAL or kept.workspace == workspace_of(session)


def _rules(kept: Iterable[StoredRule]) -> tuple[Rule, ...]:
    return tuple(one.rule for one in kept)


def denied(verdict: Verdict) -> PermissionDenied:
    """The sentence for the model, naming the rule that decided."""
    need = verdict.need
    assert need is not None, "only a need can be denied"
    action = f"{need.permission} {need.pattern}"
    details = {"permission": need.permission, "pattern": need.pattern, "rule": verdict.rule and str(verdict.rule)}
    if need.permission == DOOM_LOOP:
        return DoomLoop(f"{doom_loop_sentence(need.pattern)} A rule does not allow it again.", details=details)
    if verdict.layer == "key" and verdict.rule is None:
        return PermissionDenied(f"Not allowed: the key of this call may not use {need.permission}.", details=details)
    if verdict.rule is not None and verdict.rule.action is Action.DENY:
        return PermissionDenied(f"Not allowed: {action} is denied by the rule `{verdict.rule}`.", details=details)
    return PermissionDenied(f"Not allowed: {action} would have to be asked ({verdict.layer}).", details=details)


def unattended(need: Need) -> PermissionDenied:
    """The error where no person is there to answer."""
    action = f"{need.permission} {need.pattern}"
    message = f"Not allowed: {action} needs a person's approval, and this call does not wait for one."
    return PermissionDenied(message, details={"permission": need.permission, "pattern": need.pattern, "rule": None})


def doom_loop_sentence(tool: str) -> str:
    return f"{tool} was called with the same arguments and gave the same result twice in a row; do something else."
