"""Rules: who may do what. OpenCode's wildcards, last match wins, no match asks.

Rules stand in layers, and the layers are asked in order. Most layers decide: the
last match wins, whatever was said before. What was written by somebody the
operator does not fully trust has less power: it may turn ask into allow, or only
tighten. A deny of an earlier layer stays for those.
"""

import re
from collections.abc import Iterable, Sequence
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
    """What a call wants to do: `("read", "src/a.py")`.

    `always` is the pattern that an "always" would allow, when it is a wider one. One that `is_unclear` could mean
    anything, so that it is asked whatever rules allow.
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
        """Whether it speaks of this need. A tool's own name works as a permission too."""
        return self.concerns(need.permission, tool) and matches(self.pattern, need.pattern)

    def concerns(self, permission: str, tool: str | None) -> bool:
        return matches(self.permission, permission) or (tool is not None and matches(self.permission, tool))

    def view(self) -> dict[str, str]:
        return {"permission": self.permission, "pattern": self.pattern, "action": self.action.value}

    def __str__(self) -> str:
        return f"{self.action} {self.permission} {self.pattern}"


def to_rule(given: dict[str, Any]) -> Rule:
    """A rule as it is kept in JSON."""
    return Rule(given["permission"], given["pattern"], Action(given["action"]))


class RuleScope(StrEnum):
    """Where a rule that was written at run time counts."""

    SESSION = "session"
    WORKSPACE = "workspace"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule:
    """A rule written at run time: by a key that may, or by a person's "always". `session` and `workspace` narrow it."""

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
        """The rule as the world sees it."""
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
    """What the rules of a layer can do to what the layers before it said."""

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
        """Whether this layer can turn the one into the other."""
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
        Rule("mcp", "*/sampling:*", Action.ASK),  # a server wants the operator's model to work for it
    ),
)
UNTRUSTED = Layer(
    "approval untrusted",
    (
        Rule("*", "*", Action.ASK),
        Rule("read", "*", Action.ALLOW),
        Rule("write_stdin", "#*", Action.ALLOW),  # to look after a terminal; what is typed is a need of its own
    ),
    Power.TIGHTENS,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strictest answer over all needs; one that is not allow has the need that gave it, and the rule if any did."""

    action: Action
    need: Need | None = None
    rule: Rule | None = None
    layer: str | None = None


ALLOWED = Verdict(Action.ALLOW)


def judge(needs: Iterable[Need], layers: Sequence[Layer], tool: str | None = None) -> Verdict:
    """For each need the last match wins, as far as its layer's power goes; over all needs the strictest."""
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
    """Whether a tool is denied whatever it is used for, so that a model need not hear of it."""
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
    """`*` is any run of characters, `?` is one; a trailing ` *` may be missing from the text altogether."""
    return pattern == "*" or _compiled(pattern).fullmatch(text.replace("\\", "/")) is not None


def expression(pattern: str) -> str:
    """A pattern as a regular expression that has to match the whole text."""
    source = re.escape(pattern.replace("\\", "/")).replace(r"\*", ".*").replace(r"\?", ".")
    if source.endswith(r"\ .*"):
        source = source.removesuffix(r"\ .*") + _REST
    return source


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The same, such that nobody can write a pattern that takes ages: what stands between two stars is looked for from
    left to right and, once found, never again. For the whole it makes no difference: a star follows."""
    source = expression(pattern)
    rest = _REST if source.endswith(_REST) else ""
    first, *pieces = source.removesuffix(rest).split(".*")
    if len(pieces) > 1:
        source = first + "".join(f"(?>.*?{piece})" for piece in pieces[:-1]) + ".*" + pieces[-1] + rest
    return re.compile(source, re.DOTALL)
