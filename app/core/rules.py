"""Rules: who may do what. OpenCode's wildcards, last match wins, no match asks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Action(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


STRICTNESS = {Action.ALLOW: 0, Action.ASK: 1, Action.DENY: 2}


@dataclass(frozen=True, slots=True)
class Need:
    """What a call wants to do: `("read", "src/a.py")`."""

    permission: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Rule:
    permission: str
    pattern: str
    action: Action

    def covers(self, need: Need) -> bool:
        return matches(self.permission, need.permission) and matches(self.pattern, need.pattern)

    def __str__(self) -> str:
        return f"{self.action} {self.permission} {self.pattern}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strictest answer over all needs; one that is not allow has the need that gave it, and the rule if any did."""

    action: Action
    need: Need | None = None
    rule: Rule | None = None


ALLOWED = Verdict(Action.ALLOW)


def judge(needs: Iterable[Need], rules: Sequence[Rule]) -> Verdict:
    """For each need the last matching rule wins; over all needs the strictest."""
    strictest = ALLOWED
    for need in needs:
        verdict = _judge_one(need, rules)
        if STRICTNESS[verdict.action] > STRICTNESS[strictest.action]:
            strictest = verdict
    return strictest


def _judge_one(need: Need, rules: Sequence[Rule]) -> Verdict:
    for rule in reversed(rules):
        if rule.covers(need):
            return Verdict(rule.action, need, rule)
    return Verdict(Action.ASK, need)


def matches(pattern: str, text: str) -> bool:
    """`*` is any run of characters, `?` is one; a trailing ` *` may be missing from the text altogether."""
    return pattern == "*" or _compiled(pattern).fullmatch(text.replace("\\", "/")) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    source = re.escape(pattern.replace("\\", "/")).replace(r"\*", ".*").replace(r"\?", ".")
    if source.endswith(r"\ .*"):
        source = source.removesuffix(r"\ .*") + r"(\ .*)?"
    return re.compile(source, re.DOTALL)
