"""Calls in what a model says by Chat Completions: a response, a message, the calls alone, or the chunks of a stream."""

import json
from collections.abc import Sequence
from typing import Any

from app.core.runs import ModelCall, ParsedMessage, Unreadable
from app.providers import call_arguments
from app.providers.chat import streams

CUT = frozenset(
    {"length", "max_tokens", "model_length", "content_filter", "error", "timeout", "insufficient_system_resource"}
)
"""Reasons to stop that leave the last call unfinished."""
BY_MODEL = ("assistant", None, "")
OF_MESSAGES = ("role", "content", "tool_calls", "function_call")
OF_CALLS = ("function", "custom")
TOO_DEEP = "The message is nested too deeply."


def read(message: Any) -> ParsedMessage:
    """What was said, whatever of it there is."""
    try:
        return _read(message)
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error


def _read(message: Any) -> ParsedMessage:
    match message:
        case list() if streams.is_stream(message):
            return of_response(streams.gather(message))
        case list():
            return ParsedMessage(calls=of_list(message))
        case {"choices": list()} if streams.is_stream([message]):
            return of_response(streams.gather([message]))
        case {"choices": list()}:
            return of_response(message)
        case dict() if any(name in message for name in OF_MESSAGES):
            return of_message(message)
        case dict() if _is_call(message):
            return ParsedMessage(calls=of_list([message]))
    raise Unreadable("This is no response, no message, no list of calls and no stream of Chat Completions.")


def of_response(response: dict[str, Any]) -> ParsedMessage:
    """All choices are one turn: some providers put the text into the first and the calls into another."""
    calls: list[ModelCall] = []
    texts: list[str] = []
    for choice in response["choices"]:
        if not isinstance(choice, dict):
            raise Unreadable("A choice is no object.")
        for message in _messages(choice):
            reading = of_message(message, is_cut=is_cut(choice.get("finish_reason")))
            calls += reading.calls
            texts.append(reading.text)
    text = "\n".join(text for text in texts if text)
    return ParsedMessage(calls=tuple(calls), text=text, message_id=id_of(response), is_response=True)


def of_message(message: dict[str, Any], *, is_cut: bool = False) -> ParsedMessage:
    """One message. Some Claude models answer by blocks of their own: whoever hands those on has no choices."""
    if message.get("role") not in BY_MODEL:
        raise Unreadable("The role of the message is not `assistant`, so no model said it.")
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    written = [*_list_of_calls(message), *(block for block in blocks if _is_block(block))]
    if isinstance(message.get("function_call"), dict):
        written.append({"function": message["function_call"]})
    return ParsedMessage(
        calls=of_list(written, is_cut=is_cut or message.get("stop_reason") == "max_tokens"),
        text=text_of(message),
        message_id=id_of(message),
        is_response=message.get("type") == "message",
    )


def of_list(written: Sequence[Any], *, is_cut: bool = False) -> tuple[ModelCall, ...]:
    """The calls of a list. When it was cut off, only the last can be unfinished without a sign of it."""
    given = [raw for raw in written if raw is not None]
    return tuple(_call(raw, is_cut, is_cut and number == len(given)) for number, raw in enumerate(given, 1))


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [block.get("text", block.get("refusal")) for block in blocks if _says(block)]
    text = "".join(text for text in texts if isinstance(text, str))
    refusal = message.get("refusal")
    return text or (refusal if isinstance(refusal, str) else "")


def id_of(message: dict[str, Any]) -> str | None:
    return message["id"] if isinstance(message.get("id"), str) else None


def is_cut(reason: Any) -> bool:
    return isinstance(reason, str) and reason.lower() in CUT


def _messages(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The message of a choice. Where there are several, some are of tools that the provider has run itself."""
    if isinstance(choice.get("messages"), list) and not choice.get("message"):
        return [one for one in choice["messages"] if isinstance(one, dict) and one.get("role") in BY_MODEL]
    message = choice.get("message")
    if message is not None and not isinstance(message, dict):
        raise Unreadable("The message of a choice is no object.")
    return [message] if message else []


def _list_of_calls(message: dict[str, Any]) -> list[Any]:
    given = message.get("tool_calls")
    if given is not None and not isinstance(given, list):
        raise Unreadable("`tool_calls` is no list.")
    return given or []


def _says(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("text", "refusal")


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_use"


def _is_call(raw: dict[str, Any]) -> bool:
    return _is_block(raw) or any(isinstance(raw.get(kind), dict) for kind in OF_CALLS)


def _call(raw: Any, is_cut: bool, is_last: bool) -> ModelCall:
    if not isinstance(raw, dict) or not _is_call(raw):
        raise Unreadable("A call has neither a `function` nor a `custom` object.")
    call_id = raw.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise Unreadable("The id of a call is no text.")
    if _is_block(raw):
        return _block(raw, call_id, is_last)
    if isinstance(raw.get("function"), dict):
        return _function(raw["function"], call_id, is_cut, is_last)
    return _custom(raw["custom"], call_id, is_last)


def _function(function: dict[str, Any], call_id: str | None, is_cut: bool, is_last: bool) -> ModelCall:
    """A cut call is told by its arguments: an object that is not closed is no JSON, and none at all are none yet."""
    given = function.get("arguments")
    found = call_arguments.read(given)
    is_missing = given is None or (isinstance(given, str) and not given.strip())
    if (is_cut and "arguments_error" in found) or (is_last and is_missing):
        found = call_arguments.cut_short(found.get("raw_arguments", ""))
    return ModelCall(id=call_id, name=_name(function), **found)


def _custom(custom: dict[str, Any], call_id: str | None, is_last: bool) -> ModelCall:
    given = custom.get("input")
    if given is not None and not isinstance(given, str):
        error, raw = "The input is no text.", json.dumps(given, ensure_ascii=False)
        return ModelCall(id=call_id, name=_name(custom), type="custom", arguments_error=error, raw_arguments=raw)
    if is_last:
        return ModelCall(id=call_id, name=_name(custom), type="custom", **call_arguments.cut_short(given or ""))
    return ModelCall(id=call_id, name=_name(custom), type="custom", input=given or "")


def _block(block: dict[str, Any], call_id: str | None, is_last: bool) -> ModelCall:
    if is_last:
        found = call_arguments.cut_short(json.dumps(block.get("input"), ensure_ascii=False))
    else:
        found = call_arguments.read(block.get("input"))
    return ModelCall(id=call_id, name=_name(block), **found)


def _name(given: dict[str, Any]) -> str:
    """A call without a name has to be answered too, and no tool has the empty name."""
    return given["name"] if isinstance(given.get("name"), str) else ""
