"""Calls in Chat Completions output: a response, a message, a list of calls, or the chunks of a stream."""

import json
from collections.abc import Sequence
from typing import Any

from app.core.runs import ModelCall, ParsedMessage, Unreadable
from app.providers import call_arguments
from app.providers.chat import streams

CUT = frozenset(
    {"length", "max_tokens", "model_length", "content_filter", "error", "timeout", "insufficient_system_resource"}
)
"""Values of `finish_reason` that leave the last call incomplete."""
MODEL_ROLES = ("assistant", None, "")
MESSAGE_FIELDS = ("role", "content", "tool_calls", "function_call")
CALL_FIELDS = ("function", "custom")
TOO_DEEP = "The message is nested too deep."


def parse(message: Any) -> ParsedMessage:
    """Any of these forms. Raises `Unreadable`."""
    try:
        match message:
            case list() if streams.is_stream(message):
                return parse_response(streams.to_response(message))
            case list():
                return ParsedMessage(calls=parse_calls(message))
            case {"choices": list()} if streams.is_stream([message]):
                return parse_response(streams.to_response([message]))
            case {"choices": list()}:
                return parse_response(message)
            case dict() if any(name in message for name in MESSAGE_FIELDS):
                return parse_message(message)
            case dict() if _is_call(message):
                return ParsedMessage(calls=parse_calls([message]))
        raise Unreadable("This is not a response, message, list of calls or stream of Chat Completions.")
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error


def parse_response(response: dict[str, Any]) -> ParsedMessage:
    """All choices are one turn: some providers put the text into the first and the calls into another."""
    calls: list[ModelCall] = []
    texts: list[str] = []
    for choice in response["choices"]:
        if not isinstance(choice, dict):
            raise Unreadable("A choice is not an object.")
        for message in _messages(choice):
            parsed = parse_message(message, is_cut=is_cut(choice.get("finish_reason")))
            calls += parsed.calls
            texts.append(parsed.text)
    text = "\n".join(text for text in texts if text)
    return ParsedMessage(calls=tuple(calls), text=text, message_id=id_of(response), is_response=True)


def parse_message(message: dict[str, Any], *, is_cut: bool = False) -> ParsedMessage:
    """One message. Some gateways to Claude put its `tool_use` blocks into the content."""
    if message.get("role") not in MODEL_ROLES:
        raise Unreadable("The role of the message is not `assistant`.")
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Unreadable("`tool_calls` is not a list.")
    raw_calls = [*(calls or []), *(block for block in blocks if _is_tool_use(block))]
    if isinstance(message.get("function_call"), dict):
        raw_calls.append({"function": message["function_call"]})
    return ParsedMessage(
        calls=parse_calls(raw_calls, is_cut=is_cut or message.get("stop_reason") == "max_tokens"),
        text=text_of(message),
        message_id=id_of(message),
        is_response=message.get("type") == "message",
    )


def parse_calls(raw_calls: Sequence[Any], *, is_cut: bool = False) -> tuple[ModelCall, ...]:
    """The calls of a list. When it was cut off, only the last can be incomplete without a syntax error."""
    calls = [raw for raw in raw_calls if raw is not None]
    return tuple(_call(raw, is_cut, is_cut and number == len(calls)) for number, raw in enumerate(calls, 1))


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [block.get("text", block.get("refusal")) for block in blocks if _type_of(block) in ("text", "refusal")]
    text = "".join(text for text in texts if isinstance(text, str))
    refusal = message.get("refusal")
    return text or (refusal if isinstance(refusal, str) else "")


def id_of(message: dict[str, Any]) -> str | None:
    return message["id"] if isinstance(message.get("id"), str) else None


def is_cut(reason: Any) -> bool:
    return isinstance(reason, str) and reason.lower() in CUT


def _messages(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The message of a choice. Of several, some are results of tools that the provider ran itself."""
    if isinstance(choice.get("messages"), list) and not choice.get("message"):
        return [item for item in choice["messages"] if isinstance(item, dict) and item.get("role") in MODEL_ROLES]
    message = choice.get("message")
    if message is not None and not isinstance(message, dict):
        raise Unreadable("The message of a choice is not an object.")
    return [message] if message else []


def _type_of(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else None


def _is_tool_use(block: Any) -> bool:
    return _type_of(block) == "tool_use"


def _is_call(raw: dict[str, Any]) -> bool:
    return _is_tool_use(raw) or any(isinstance(raw.get(kind), dict) for kind in CALL_FIELDS)


def _call(raw: Any, is_cut: bool, is_last: bool) -> ModelCall:
    if not isinstance(raw, dict) or not _is_call(raw):
        raise Unreadable("A call has neither a `function` nor a `custom` object.")
    call_id = raw.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise Unreadable("The id of a call is not a string.")
    if _is_tool_use(raw):
        if is_last:
            arguments = call_arguments.incomplete(json.dumps(raw.get("input"), ensure_ascii=False))
        else:
            arguments = call_arguments.parse(raw.get("input"))
        return ModelCall(id=call_id, name=_name(raw), **arguments)
    if isinstance(raw.get("function"), dict):
        return _function(raw["function"], call_id, is_cut, is_last)
    return _custom(raw["custom"], call_id, is_last)


def _function(function: dict[str, Any], call_id: str | None, is_cut: bool, is_last: bool) -> ModelCall:
    """An incomplete call has arguments that are not JSON, or none."""
    raw = function.get("arguments")
    arguments = call_arguments.parse(raw)
    is_missing = raw is None or (isinstance(raw, str) and not raw.strip())
    if (is_cut and "arguments_error" in arguments) or (is_last and is_missing):
        arguments = call_arguments.incomplete(arguments.get("raw_arguments", ""))
    return ModelCall(id=call_id, name=_name(function), **arguments)


def _custom(custom: dict[str, Any], call_id: str | None, is_last: bool) -> ModelCall:
    text = custom.get("input")
    if text is not None and not isinstance(text, str):
        error, raw = "The input is not a string.", json.dumps(text, ensure_ascii=False)
        return ModelCall(id=call_id, name=_name(custom), type="custom", arguments_error=error, raw_arguments=raw)
    if is_last:
        return ModelCall(id=call_id, name=_name(custom), type="custom", **call_arguments.incomplete(text or ""))
    return ModelCall(id=call_id, name=_name(custom), type="custom", input=text or "")


def _name(call: dict[str, Any]) -> str:
    """A call without a name must be answered too, and no tool has the empty name."""
    return call["name"] if isinstance(call.get("name"), str) else ""
