"""Permission rules with OpenCode's wildcards: the last match wins, no match asks.

Rules come in layers, which are evaluated in order. Most layers decide: the last
match wins, whatever earlier layers said. Layers of principals that the operator
does not fully trust have less power: they may turn ask into allow, or only
tighten. For those, a deny of an earlier layer stays.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from app.core.util.clocks import rfc3339


class Action(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


STRICTNESS = {Action.ALLOW: 0, Action.ASK: 1, Action.DENY: 2}
DOOM_LOOP = "doom_loop"
_REST = r"(\ .*)?"
Approval = Literal["untrusted", "on-request", "never"]


@dataclass(frozen=True, slots=True)
class Need:
    """A permission that a call needs: `("read", "src/a.py")`.

    `always` is the wider pattern that "allow always" would allow. A need that `is_unclear` could mean anything,
    so it asks even if rules allow it.
    """

    permission: str
    pattern: str
    always: str | None = field(default=None, compare=False)
    is_unclear: bool = field(default=False, compare=False)

    def view(self) -> dict[str, str]:
        return {"permission": self.permission, "pattern": self.pattern}


@dataclass(frozen=True, slots=True)
class Rule:
    permission: str
    pattern: str
    action: Action

    def covers(self, need: Need, tool: str | None = None) -> bool:
        """Whether the rule matches a need. A tool's own name works as a permission too."""
        return self.concerns(need.permission, tool) and matches(self.pattern, need.pattern)

    def concerns(self, permission: str, tool: str | None) -> bool:
        return matches(self.permission, permission) or (tool is not None and matches(self.permission, tool))

    def view(self) -> dict[str, str]:
        return {"permission": self.permission, "pattern": self.pattern, "action": self.action.value}

    def __str__(self) -> str:
        return f"{self.action} {self.permission} {self.pattern}"


def to_rule(view: Mapping[Any, Any]) -> Rule:
    """A rule from its JSON form or its row."""
    return Rule(view["permission"], view["pattern"], Action(view["action"]))


class RuleScope(StrEnum):
    """Where a rule written at run time applies."""

    SESSION = "session"
    WORKSPACE = "workspace"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule:
    """A rule written at run time: over the API, or by an answer "allow always". `session` and `workspace` narrow it."""

    id: str
    principal: str
    rule: Rule
    scope: RuleScope
    session: str | None = None
    workspace: str | None = None
    ask: str | None = None
    created_by: str | None = None
    created_at: int = 0

    @property
    def is_answer(self) -> bool:
        return self.ask is not None

    def view(self) -> dict[str, Any]:
        """The rule as API clients see it."""
        return {
            "id": self.id,
            **self.rule.view(),
            "scope": self.scope.value,
            "session": self.session,
            "workspace": self.workspace,
            "ask": self.ask,
            "principal": self.principal,
            "created_by": self.created_by,
            "created_at": rfc3339(self.created_at),
        }


class Power(StrEnum):
    """How the rules of a layer can change the action of earlier layers."""

    DECIDES = "decides"
    LOOSENS = "loosens"  # may turn ask into allow; a deny stays
    TIGHTENS = "tightens"  # only ever stricter


@dataclass(frozen=True, slots=True)
class Layer:
    """Rules of one origin, in order."""

    name: str
    rules: tuple[Rule, ...]
    power: Power = Power.DECIDES

    def moves(self, before: Action, after: Action) -> bool:
        """Whether this layer can change the action `before` into `after`."""
        if self.power is Power.DECIDES or STRICTNESS[after] > STRICTNESS[before]:
            return True
        return self.power is Power.LOOSENS and before is not Action.DENY


DEFAULTS = Layer(
    "defaults",
    (
        Rule("*", "*", Action.ALLOW),
        *(
            Rule(permission, pattern, action)
            for permission in ("read", "edit")
            for pattern, action in (
                ("*.env", Action.ASK),
                ("*.env.*", Action.ASK),
                ("*.env.example", Action.ALLOW),
            )
        ),
        Rule("external_directory", "*", Action.ASK),
        Rule(DOOM_LOOP, "*", Action.ASK),
        Rule("escalate", "*", Action.ASK),
        Rule("mcp", "*/sampling:*", Action.ASK),  # an MCP server uses the operator's model
    ),
)
UNTRUSTED = Layer(
    "approval untrusted",
    (
        Rule("*", "*", Action.ASK),
        Rule("read", "*", Action.ALLOW),
        Rule("write_stdin", "#*", Action.ALLOW),  # to poll a terminal; typed input is a need of its own
    ),
    Power.TIGHTENS,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strictest action over all needs, with the need and the rule it comes from unless it is allow."""

    action: Action
    need: Need | None = None
    rule: Rule | None = None
    layer: str | None = None


ALLOWED = Verdict(Action.ALLOW)


def judge(needs: Iterable[Need], layers: Sequence[Layer], tool: str | None = None) -> Verdict:
    """For each need the last match wins, within the power of its layer; over all needs the strictest action wins."""
    strictest = ALLOWED
    for need in needs:
        verdict = judge_one(need, layers, tool)
        if STRICTNESS[verdict.action] > STRICTNESS[strictest.action]:
            strictest = verdict
    return strictest


def judge_one(need: Need, layers: Sequence[Layer], tool: str | None = None) -> Verdict:
    verdict = Verdict(Action.ASK, need)
    for layer in layers:
        found = next((rule for rule in reversed(layer.rules) if rule.covers(need, tool)), None)
        if found is not None and layer.moves(verdict.action, found.action):
            verdict = Verdict(found.action, need, found, layer.name)
    if need.is_unclear and verdict.action is Action.ALLOW:
        return Verdict(Action.ASK, need)
    return verdict


def hides(layers: Sequence[Layer], permission: str, tool: str) -> bool:
    """Whether a tool is always denied, so that models need not see it."""
    is_hidden = False
    for layer in layers:
        found = next((rule for rule in reversed(layer.rules) if rule.concerns(permission, tool)), None)
        if found is None:
            continue
        if found.action is Action.DENY and found.pattern == "*":
            is_hidden = True
        elif layer.power is Power.DECIDES:
            is_hidden = False
    return is_hidden


def matches(pattern: str, text: str) -> bool:
    """`*` matches any characters, `?` matches one; a trailing ` *` also matches nothing."""
    return pattern == "*" or _compiled(pattern).fullmatch(text.replace("\\", "/")) is not None


def expression(pattern: str) -> str:
    """The pattern as a regular expression for a full match."""
    source = re.escape(pattern.replace("\\", "/")).replace(r"\*", ".*").replace(r"\?", ".")
    if source.endswith(r"\ .*"):
        source = source.removesuffix(r"\ .*") + _REST
    return source


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The same without catastrophic backtracking: the text between two stars is matched at its first occurrence and
    never again (atomic group). This does not change the result, since a star follows."""
    source = expression(pattern)
    rest = _REST if source.endswith(_REST) else ""
    first, *pieces = source.removesuffix(rest).split(".*")
    if len(pieces) > 1:
        source = first + "".join(f"(?>.*?{piece})" for piece in pieces[:-1]) + ".*" + pieces[-1] + rest
    return re.compile(source, re.DOTALL)
