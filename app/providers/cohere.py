"""Cohere Chat v2: tools and calls as in Chat Completions, results that may be documents to cite."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from app.core.runs import Known, Media, ParsedMessage, Part, Reply, SearchResult, ToolOffer, Unreadable
from app.providers import reply_content
from app.providers.chat import calls as chat_calls
from app.providers.chat.tools import NO_STRICT, export, fill
from app.providers.dialects import Dialect, Exported, ExportOptions, Mode, NameRule, Quirks, Supports, Wire

MODE_NAMES: dict[Mode, str] = {"none": "NONE", "required": "REQUIRED"}
STRICT = "Cohere is strict for all tools of a request or none: add `strict_tools: true` to the request."
STARTS = ("message-start", "tool-call-start", "content-start", "tool-plan-delta")
READABLE = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml)")


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = export(offers, options)
    exported.warnings = [STRICT if warning == NO_STRICT else warning for warning in exported.warnings]
    return exported


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case list() if any(isinstance(event, dict) and event.get("type") in STARTS for event in message):
            return _response(_to_response(message))
        case {"message": dict()}:
            return _response(message)
        case {"tool_plan": _}:
            return _message(message)
    return chat_calls.parse(message)


def _response(response: dict[str, Any]) -> ParsedMessage:
    parsed = _message(response["message"], is_cut=chat_calls.is_cut(response.get("finish_reason")))
    return replace(parsed, message_id=chat_calls.id_of(response), is_response=True)


def _message(message: dict[str, Any], *, is_cut: bool = False) -> ParsedMessage:
    """The `tool_plan` is text of the message."""
    try:
        parsed = chat_calls.parse_message(message, is_cut=is_cut)
    except RecursionError as error:
        raise Unreadable(chat_calls.TOO_DEEP) from error
    plan = message.get("tool_plan")
    texts = (plan if isinstance(plan, str) else "", parsed.text)
    return replace(parsed, text="\n".join(text for text in texts if text))


def _to_response(events: Sequence[Any]) -> dict[str, Any]:
    """The response of all events of a stream. Without `message-end` it was cut off."""
    calls: dict[str, _Call] = {}
    plan, text = list[str](), list[str]()
    response: dict[str, Any] = {"id": None, "finish_reason": "MAX_TOKENS"}
    for event in events:
        delta = _inner(_object(event), "delta")
        message = _inner(delta, "message")
        match _object(event).get("type"):
            case "message-start":
                response["id"] = event.get("id")
            case "tool-plan-delta":
                plan.append(_text(message.get("tool_plan")))
            case "content-start" | "content-delta":
                text.append(_text(_inner(message, "content").get("text")))
            case "tool-call-start" | "tool-call-delta":
                calls.setdefault(str(event.get("index")), _Call()).add(_inner(message, "tool_calls"))
            case "message-end":
                response["finish_reason"] = delta.get("finish_reason")
    whole = {
        "tool_plan": "".join(plan),
        "content": "".join(text),
        "tool_calls": [call.view() for call in calls.values()],
    }
    return response | {"message": whole}


@dataclass(slots=True)
class _Call:
    id: Any = None
    name: Any = None
    pieces: list[str] = field(default_factory=list)

    def add(self, fragment: dict[str, Any]) -> None:
        function = _inner(fragment, "function")
        self.id = fragment.get("id") or self.id
        self.name = function.get("name") or self.name
        self.pieces.append(_text(function.get("arguments")))

    def view(self) -> dict[str, Any]:
        return {"id": self.id, "function": {"name": self.name, "arguments": "".join(self.pieces)}}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _inner(value: dict[str, Any], name: str) -> dict[str, Any]:
    return _object(value.get(name))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _answer(reply: Reply) -> Wire:
    """Search results and text files are documents, all else is text."""
    documents = [document for part in reply.parts if (document := _document(part)) is not None]
    rest = tuple(part for part in reply.parts if _document(part) is None)
    placeholders = [reply_content.placeholder(part) for part in rest if isinstance(part, Media)]
    text = "\n".join(line for line in (reply_content.text_of(replace(reply, parts=rest)), *placeholders) if line)
    content = [*([{"type": "text", "text": text}] if text else []), *documents] if documents else text
    call_id = {} if reply.call.id is None else {"tool_call_id": reply.call.id}
    return {"role": "tool", **call_id, "content": content or reply_content.NO_OUTPUT}


def _document(part: Part) -> Wire | None:
    match part:
        case SearchResult():
            data = {"title": part.title, "source": part.source, "text": part.text}
        case Media(data=str(encoded)) if READABLE.fullmatch(part.mime):
            text = base64.b64decode(encoded).decode(errors="replace")
            data = {"title": part.name, "text": text} if part.name else {"text": text}
        case _:
            return None
    return {"type": "document", "document": {"data": data}}


dialect = Dialect(
    name="cohere",
    title="Cohere",
    export_tools=export_tools,
    fill_request=partial(fill, mode_names=MODE_NAMES),
    read_calls=read_calls,
    write_results=lambda replies: [_answer(reply) for reply in replies],
    supports=Supports(files=True, note=f"Of files, only text is read. {STRICT}"),
    quirks=Quirks(
        names=NameRule(re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")),
        modes=frozenset({"none", "required"}),
        has_parallel_choice=False,
    ),
    numbers_calls=True,
)
