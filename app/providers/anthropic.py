"""anthropic: the Messages API. Calls are `tool_use` blocks; all results of a turn are `tool_result` blocks of one user
message, before anything else.
"""

import json
from collections.abc import Sequence
from typing import Any

from app.core.runs import (
    Known,
    Media,
    ModelCall,
    ParsedMessage,
    Part,
    Reply,
    SearchResult,
    ToolOffer,
    ToolReference,
    Unreadable,
)
from app.providers import call_arguments, reply_content
from app.providers.call_arguments import Arguments
from app.providers.dialects import COMMON, Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.reply_content import PDF, decode_text, media_type, text_with_placeholders, web_url
from app.providers.schema.anthropic_strict import grammar_budget
from app.providers.tool_limits import fit, supported_mode, warn_unsupported, wire_name, without_own_search

INCOMPLETE = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Values of `stop_reason` that may leave the last block incomplete."""
PAUSED = "pause_turn"
"""The provider continues when the message is sent back; until then there is nothing to run."""
INVALID = "INVALID_JSON"
"""The key under which clients store arguments that were not JSON, as the message needs an object."""
EVENTS = ("message_", "content_block_", "ping", "error")
"""Prefixes of the types of stream events."""
_NO_MESSAGE = "This is not an Anthropic message: an object with `content`, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"content": list() | str() as content} if message.get("role", "assistant") == "assistant":
            return _parse([_text_block(content)] if isinstance(content, str) else content, message)
        case {"type": "tool_use"}:
            return _parse([message], {})
        case [*events] if any((_type_of(event) or "").startswith(EVENTS) for event in events):
            return _parse_stream(events)
        case [*blocks]:
            return _parse(blocks, {})
    raise Unreadable(_NO_MESSAGE)


def _parse(blocks: list[Any], message: dict[str, Any], incomplete: frozenset[int] = frozenset()) -> ParsedMessage:
    """`incomplete` are the indexes of blocks that were cut off."""
    if any(_type_of(block) is None for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    stop_reason, message_id = message.get("stop_reason"), message.get("id")
    if stop_reason in INCOMPLETE:
        incomplete |= {len(blocks) - 1}
    return ParsedMessage(
        calls=tuple(
            _call(block, is_cut=number in incomplete)
            for number, block in enumerate(blocks)
            if block["type"] == "tool_use" and stop_reason != PAUSED
        ),
        text="".join(_text(block) for block in blocks),
        message_id=message_id if isinstance(message_id, str) else None,
        is_response=message.get("type") == "message" and isinstance(message_id, str),
    )


def _call(block: dict[str, Any], *, is_cut: bool) -> ModelCall:
    call_id, name = block.get("id"), block.get("name")
    caller, toolset = block.get("caller"), block.get("toolset_name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise Unreadable("A tool_use block needs an id and a name.")
    return ModelCall(
        id=call_id,
        name=name,
        caller=caller if isinstance(caller, dict) else None,
        toolset=toolset if isinstance(toolset, str) else None,
        **_arguments(block.get("input"), is_cut=is_cut),
    )


def _arguments(raw: Any, *, is_cut: bool) -> Arguments:
    if isinstance(raw, dict) and raw.keys() == {INVALID}:
        raw = raw[INVALID]
    if not is_cut:
        return call_arguments.parse(raw)
    return call_arguments.incomplete(raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False))


def _parse_stream(events: list[Any]) -> ParsedMessage:
    """The message of a stream's events. A block without `content_block_stop` was cut off."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    deltas: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case {"type": "message_start", "message": dict(start)}:
                message |= start
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                message["stop_reason"] = reason
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                blocks[index], deltas[index] = block, []
            case {
                "type": "content_block_delta",
                "index": int(index),
                "delta": {"type": "input_json_delta", "partial_json": str(piece)}
                | {"type": "text_delta", "text": str(piece)},
            } if index in blocks:
                deltas[index].append(piece)
            case {"type": "content_block_stop", "index": int(index)}:
                ended.add(index)
    indexes = sorted(blocks)
    incomplete = frozenset(number for number, index in enumerate(indexes) if index not in ended)
    whole = [_with_deltas(blocks[index], "".join(deltas[index])) for index in indexes]
    return _parse(whole, message, incomplete)


def _with_deltas(block: dict[str, Any], text: str) -> dict[str, Any]:
    match _type_of(block):
        case "tool_use" if text:
            return block | {"input": text}
        case "text":
            return block | {"text": _text(block) + text}
    return block


def _text(block: dict[str, Any]) -> str:
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else ""


def _type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    return [{"role": "user", "content": [*(_result(reply) for reply in replies), *_failed_files(replies)]}]


def _result(reply: Reply) -> Wire:
    result: Wire = {"type": "tool_result", "tool_use_id": reply.call.id, "content": _content(reply)}
    if reply.error is not None:
        result["is_error"] = True
    if reply.call.toolset is not None:
        result["toolset_name"] = reply.call.toolset
    return result


def _content(reply: Reply) -> str | list[Wire]:
    """A string if there is only text, as for errors."""
    if reply.error is not None:
        return text_with_placeholders(reply, lambda media: False)
    blocks = [block for part in reply.parts if (block := _block(part)) is not None]
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or reply_content.NO_OUTPUT
    return blocks


def _block(part: Part) -> Wire | None:
    match part:
        case Media():
            return _file(part) or _text_block(reply_content.placeholder(part))
        case SearchResult() if part.text:
            return {
                "type": "search_result",
                "source": part.source,
                "title": part.title,
                "content": [_text_block(part.text)],
            }
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": wire_name(name, COMMON)}
    text = reply_content.part_text(part)
    return _text_block(text) if text else None


def _file(media: Media) -> Wire | None:
    """A file as a block; None for unsupported types."""
    kind = media_type(media)
    if kind in IMAGES and (source := _source(media)) is not None:
        return {"type": "image", "source": source}
    text = decode_text(media)
    source = _source(media) if kind == PDF else None
    if text:
        source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return None
    return {"type": "document", "source": source} | ({"title": media.name} if media.name else {})


def _source(media: Media) -> dict[str, Any] | None:
    if media.data is not None:
        return {"type": "base64", "media_type": media_type(media), "data": media.data}
    url = web_url(media)
    return None if url is None else {"type": "url", "url": url}


def _failed_files(replies: Sequence[Reply]) -> list[Wire]:
    """The files of failed calls, which their results may not have. Programmatic callers take results only."""
    if any((reply.call.caller or {}).get("type", "direct") != "direct" for reply in replies):
        return []
    failed = [reply for reply in replies if reply.error is not None]
    return [block for reply in failed for media in reply_content.media_of(reply) if (block := _file(media)) is not None]


def _text_block(text: str) -> Wire:
    return {"type": "text", "text": text}


SHELLS = ("shell_command", "shell", "exec_command")
FILES = ("read_file", "write_file", "edit_file")
BASH: Wire = {"type": "bash_20250124", "name": "bash"}
EDITOR: Wire = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
SEARCH: Wire = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
BUILT_IN = {name: BASH for name in SHELLS} | {name: EDITOR for name in FILES}
"""Our tools, and Anthropic's tools that do the same."""
CHOICES = {"auto": "auto", "required": "any", "tool": "tool", "none": "none"}


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    warn_unsupported(options, offers, ("namespace",), exported.warnings)
    offers = without_own_search(offers, options, exported.warnings)
    budget = grammar_budget(options, exported.warnings)
    builtins = _builtins(offers, exported.warnings) if options.is_native else {}
    for tool in fit(offers, options.quirks, exported.warnings):
        builtin = builtins.get(tool.offer.name)
        if builtin is None:
            definition: Wire = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            if not tool.description:
                del definition["description"]
            if budget is not None and (closed := budget.close(tool, exported.warnings)) is not None:
                definition |= {"input_schema": closed, "strict": True}
            if options.defers is not None and options.defers(tool.offer.name):
                definition["defer_loading"] = True
            exported.tools.append(definition)
        elif builtin not in exported.tools:
            exported.tools.append(dict(builtin))
    if any("defer_loading" in tool for tool in exported.tools):
        exported.tools.insert(0, dict(SEARCH))
    if options.cache is not None:
        _set_cache_control(exported.tools, {"type": "ephemeral"} | ({"ttl": "1h"} if options.cache == "1h" else {}))
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    mode = supported_mode(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Anthropic has no list of allowed tools; the other tools are left out of the request.")
        tools = _only_allowed(tools, choice.allowed, quirks)
    request: Wire = {"tools": tools}
    is_single = choice.parallel is False and quirks.has_parallel_choice and mode != "none"
    if not tools or (mode is None and not is_single):
        return request
    tool_choice: Wire = {"type": CHOICES[mode or "auto"]}
    if mode == "tool":
        tool_choice["name"] = _exported_name(choice.name or "", tools, quirks)
    if is_single:
        tool_choice["disable_parallel_tool_use"] = True
    return request | {"tool_choice": tool_choice}


def _builtins(offers: Sequence[ToolOffer], warnings: list[str]) -> dict[str, Wire]:
    """Our tools that are exported as Anthropic's own. Each name may be used once."""
    names = {offer.name for offer in offers}
    taken = {tool["name"] for tool in (BASH, EDITOR) if tool["name"] in names}
    warnings += [f"The built-in tool {name} is not exported: another tool has its name." for name in sorted(taken)]
    return {name: tool for name, tool in BUILT_IN.items() if tool["name"] not in taken}


def _set_cache_control(tools: list[Wire], mark: Wire) -> None:
    """`cache_control` on the last tool caches all; a deferred tool may not have it."""
    last = next((tool for tool in reversed(tools) if "defer_loading" not in tool), None)
    if last is not None:
        last["cache_control"] = mark


def _only_allowed(tools: list[Wire], allowed: Sequence[str], quirks: Quirks) -> list[Wire]:
    names = {_exported_name(name, tools, quirks) for name in allowed}
    allowed_tools = [dict(tool) for tool in tools if tool["name"] in names]
    if any("defer_loading" in tool for tool in allowed_tools):
        allowed_tools.insert(0, dict(SEARCH))
    mark = next((tool["cache_control"] for tool in tools if "cache_control" in tool), None)
    if mark is not None:
        for tool in allowed_tools:
            tool.pop("cache_control", None)
        _set_cache_control(allowed_tools, mark)
    return allowed_tools


def _exported_name(name: str, tools: list[Wire], quirks: Quirks) -> str:
    built_in = BUILT_IN.get(name)
    if built_in is not None and any(tool.get("type") == built_in["type"] for tool in tools):
        return str(built_in["name"])
    return wire_name(name, quirks.names)


dialect = Dialect(
    name="anthropic",
    title="Anthropic Messages",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(strict=True, images=True, files=True, builtins=(BASH["type"], EDITOR["type"])),
    quirks=Quirks(strict="on_request", names=COMMON),
)
