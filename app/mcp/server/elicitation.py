"""Asks as a client of the door can put them to its user: a form for each kind, and what came back as an answer."""

from typing import Any

from app.core.asks import Answer, Ask, AskKind, Decision, misfit
from app.core.principals import Key, Scope
from app.core.util.json_codec import Raw

UNFITTING = "The answer of the MCP client does not fit what was asked."
FORM = "form"
URL = "url"


def form_of(ask: Ask, key: Key) -> Raw | None:
    """What `elicitation/create` says of an ask; None for one that this key may not answer."""
    match ask.kind:
        case AskKind.PERMISSION:
            return _permission(ask, key) if key.may(Scope.ASKS_ANSWER) else None
        case AskKind.QUESTION:
            return _questions(ask)
        case AskKind.ELICITATION:
            return _passed_on(ask)


def mode_of(form: Raw) -> str:
    return URL if form.get("mode") == URL else FORM


def answer_of(ask: Ask, said: Raw, key: Key) -> Answer:
    """What the user said. Who will not answer says no; so does whoever answers something else than was asked."""
    action, content = said.get("action"), said.get("content")
    if ask.kind is AskKind.PERMISSION:
        return _decided(ask, content if action == "accept" else None, key)
    if action != "accept":
        return Answer(action="decline" if action == "decline" else "cancel")
    given: Raw = content if isinstance(content, dict) else {}
    if ask.kind is AskKind.QUESTION and misfit(given, ask.questions):
        return Answer(action="cancel", message=UNFITTING)
    return Answer(content=given)


def _decided(ask: Ask, content: Any, key: Key) -> Answer:
    if not isinstance(content, dict):
        return Answer(Decision.DENY)
    message = content.get("message")
    told = message if isinstance(message, str) and message.strip() else None
    decision = content.get("decision")
    if decision not in _decisions(key):
        return Answer(Decision.DENY, told or UNFITTING)
    return Answer(Decision(decision), told)


def _decisions(key: Key) -> list[str]:
    always = [Decision.ALLOW_ALWAYS.value] if key.may(Scope.RULES_WRITE) else []
    return [Decision.ALLOW_ONCE.value, *always, Decision.DENY.value]


def _permission(ask: Ask, key: Key) -> Raw:
    wishes = "\n".join(f"- {need.permission}: {need.pattern}" for need in ask.needs)
    always = ", ".join(f"{rule.permission} {rule.pattern}" for rule in ask.always)
    more = f"\nallow_always would allow from now on in this session: {always}." if key.may(Scope.RULES_WRITE) else ""
    decision = {"type": "string", "title": "Decision", "enum": _decisions(key)}
    message = {"type": "string", "title": "Message", "description": "What the model is told along with a no."}
    return {
        "mode": FORM,
        "message": f"May {ask.tool} do this?\n{wishes}{more}",
        "requestedSchema": {
            "type": "object",
            "properties": {"decision": decision, "message": message},
            "required": ["decision"],
        },
    }


def _questions(ask: Ask) -> Raw:
    ids = [question["id"] for question in ask.questions]
    return {
        "mode": FORM,
        "message": "\n".join(question["question"] for question in ask.questions),
        "requestedSchema": {
            "type": "object",
            "properties": {question["id"]: _field(question) for question in ask.questions},
            "required": ids,
        },
    }


def _field(question: dict[str, Any]) -> Raw:
    """Where there are answers to choose from, one of them; own words where there are none."""
    field: Raw = {"type": "string", "title": question["header"], "description": question["question"]}
    labels = [option["label"] for option in question.get("options") or [] if not option.get("is_other")]
    return field | {"enum": labels} if labels else field


def _passed_on(ask: Ask) -> Raw | None:
    """What a server asks, in its own words."""
    match ask.metadata:
        case {"mode": "url", "url": str(url), "message": str(message)}:
            return {"mode": URL, "message": message, "url": url, "elicitationId": _elicitation(ask)}
        case {"requested_schema": dict(schema), "message": str(message)}:
            return {"mode": FORM, "message": message, "requestedSchema": schema}
    return None


def _elicitation(ask: Ask) -> str:
    """Clients of 2025 want an id with each page they open; a server that gave none gets the ask's."""
    id = ask.metadata.get("elicitation_id")
    return id if isinstance(id, str) else ask.id
