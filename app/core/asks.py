"""Asks: questions that wait for a person. Each belongs to one call; it is answered once or expires."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.core.calls import Waiting
from app.core.rules import Need, Rule, RuleScope
from app.core.util.clocks import rfc3339


class AskKind(StrEnum):
    PERMISSION = "permission"
    QUESTION = "question"
    ELICITATION = "elicitation"


class AskStatus(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


class Decision(StrEnum):
    ALLOW_ONCE = "allow_once"
    ALLOW_ALWAYS = "allow_always"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a person: a decision on a permission, content for questions, or `action` when declined."""

    decision: Decision | None = None
    message: str | None = None
    rules: tuple[Rule, ...] = ()
    scope: RuleScope | None = None
    content: dict[str, Any] | None = None
    action: str | None = None
    principal: str | None = None
    key: str | None = None

    def view(self) -> dict[str, Any]:
        return {
            "decision": self.decision and self.decision.value,
            "message": self.message,
            "rules": [rule.view() for rule in self.rules],
            "scope": self.scope and self.scope.value,
            "content": self.content,
            "action": self.action,
            "principal": self.principal,
            "key": self.key,
        }


@dataclass(slots=True, kw_only=True)
class Ask:
    """`digest` is that of the effective arguments; `always` are the rules that "allow always" adds unless edited.

    `reason` says why an ask ended without an answer.
    """

    id: str
    call: str
    principal: str
    session: str
    tool: str
    kind: AskKind
    digest: str
    created_at: int
    expires_at: int
    needs: tuple[Need, ...] = ()
    always: tuple[Rule, ...] = ()
    questions: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    status: AskStatus = AskStatus.OPEN
    answer: Answer | None = None
    reason: str | None = None
    ended_at: int | None = None

    @property
    def is_open(self) -> bool:
        return self.status is AskStatus.OPEN

    @property
    def waiting(self) -> Waiting:
        """What its call waits for."""
        return Waiting.PERMISSION if self.kind is AskKind.PERMISSION else Waiting.INPUT

    def view(self) -> dict[str, Any]:
        """The ask as API clients see it."""
        return {
            "id": self.id,
            "kind": self.kind.value,
            "status": self.status.value,
            "call": self.call,
            "tool": self.tool,
            "session": self.session,
            "principal": self.principal,
            "needs": [need.view() for need in self.needs],
            "always": [rule.view() for rule in self.always],
            "questions": self.questions,
            "metadata": self.metadata,
            "answer": self.answer and self.answer.view(),
            "reason": self.reason,
            "created_at": rfc3339(self.created_at),
            "expires_at": rfc3339(self.expires_at),
            "ended_at": None if self.ended_at is None else rfc3339(self.ended_at),
        }


def misfit(content: dict[str, Any], questions: list[dict[str, Any]]) -> str | None:
    """Why this is not an answer to the questions, in a sentence; None if it is. Any text answers a question."""
    asked = [question["id"] for question in questions]
    if unknown := sorted(content.keys() - set(asked)):
        return f"There is no question {', '.join(unknown)}; the questions are {', '.join(asked)}."
    if missing := [id for id in asked if id not in content]:
        return f"Not answered: {', '.join(missing)}."
    if empty := [id for id in asked if not _has_text(content[id])]:
        return f"Expected a text or a list of texts that are not empty: {', '.join(empty)}."
    return None


def _has_text(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) and bool(text.strip()) for text in texts)
