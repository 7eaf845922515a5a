"""anthropic: the Messages API. Calls are `tool_use` blocks, and all results of a turn go back in one user message.

What Claude said: `tool_use` blocks out of a message, its content or the events of a stream.

What Claude gets back: one user message, a `tool_result` block for each call before anything else.
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
from app.providers.reply_content import PDF, address_of, kind_of, text_in, told
from app.providers.schema.anthropic_strict import GrammarBudget, allowance_for
from app.providers.tool_limits import FittedTool, fit, mode_of, refuse, wire_name, with_their_search

CUT = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Ends that can come in the middle of a call, which is then the last block."""
PAUSED = "pause_turn"
"""The provider goes on itself when it is sent the message back; until then there is nothing to run."""
INVALID = "INVALID_JSON"
"""Where a client keeps arguments that were no JSON, because the message must have an object."""
EVENTS = ("message_", "content_block_", "ping", "error")
"""How the types of a stream's events begin."""
_NO_MESSAGE = "This is no message of Anthropic's: an object with `content`, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"content": list() | str() as content} if message.get("role", "assistant") == "assistant":
            return _reading([_text_block(content)] if isinstance(content, str) else content, message)
        case {"type": "tool_use"}:
            return _reading([message], {})
        case [*events] if any((_type_of(event) or "").startswith(EVENTS) for event in events):
            return _streamed(events)
        case [*blocks]:
            return _reading(blocks, {})
    raise Unreadable(_NO_MESSAGE)


def _reading(blocks: list[Any], message: dict[str, Any], unfinished: frozenset[int] = frozenset()) -> ParsedMessage:
    """`unfinished` are the numbers of blocks that were cut off."""
    if any(_type_of(block) is None for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    stopped, message_id = message.get("stop_reason"), message.get("id")
    if stopped in CUT:
        unfinished |= {len(blocks) - 1}
    return ParsedMessage(
        calls=tuple(
            _call(block, is_cut=number in unfinished)
            for number, block in enumerate(blocks)
            if block["type"] == "tool_use" and stopped != PAUSED
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


def _arguments(given: Any, *, is_cut: bool) -> Arguments:
    if isinstance(given, dict) and given.keys() == {INVALID}:
        given = given[INVALID]
    if not is_cut:
        return call_arguments.read(given)
    return call_arguments.cut_short(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _streamed(events: list[Any]) -> ParsedMessage:
    """The message that the events of a stream build up. A block that never ends was cut off."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    said: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case {"type": "message_start", "message": dict(start)}:
                message |= start
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                message["stop_reason"] = reason
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                blocks[index], said[index] = block, []
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)} if index in blocks:
                said[index].append(_piece(delta))
            case {"type": "content_block_stop", "index": int(index)}:
                ended.add(index)
    places = sorted(blocks)
    unfinished = frozenset(number for number, index in enumerate(places) if index not in ended)
    built = [_built(blocks[index], "".join(said[index])) for index in places]
    return _reading(built, message, unfinished)


def _piece(delta: dict[str, Any]) -> str:
    match delta:
        case {"type": "input_json_delta", "partial_json": str(piece)} | {"type": "text_delta", "text": str(piece)}:
            return piece
    return ""


def _built(block: dict[str, Any], said: str) -> dict[str, Any]:
    """A block with what its deltas said; without any, it is as it began."""
    match _type_of(block):
        case "tool_use" if said:
            return block | {"input": said}
        case "text":
            return block | {"text": _text(block) + said}
    return block


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


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
    return [{"role": "user", "content": [*(_result(reply) for reply in replies), *_afterwards(replies)]}]


def _result(reply: Reply) -> Wire:
    made: Wire = {"type": "tool_result", "tool_use_id": reply.call.id, "content": _content(reply)}
    if reply.error is not None:
        made["is_error"] = True
    if reply.call.toolset is not None:
        made["toolset_name"] = reply.call.toolset
    return made


def _content(reply: Reply) -> str | list[Wire]:
    """Text alone is a string, and an error may be nothing else."""
    if reply.error is not None:
        return told(reply, lambda media: False)
    blocks = [block for part in reply.parts if (block := _block(part)) is not None]
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or reply_content.NOTHING
    return blocks


def _block(part: Part) -> Wire | None:
    match part:
        case Media():
            return _file(part) or _said(reply_content.placeholder(part))
        case SearchResult() if part.text:
            return {"type": "search_result", "source": part.source, "title": part.title, "content": [_said(part.text)]}
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": wire_name(name, COMMON)}
    text = reply_content.plain(part)
    return _said(text) if text else None


def _file(media: Media) -> Wire | None:
    """A file as the model can see it; None when it cannot."""
    kind = kind_of(media)
    if kind in IMAGES and (source := _source(media)) is not None:
        return {"type": "image", "source": source}
    text = text_in(media)
    source = _source(media) if kind == PDF else None
    if text:
        source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return None
    return {"type": "document", "source": source} | ({"title": media.name} if media.name else {})


def _source(media: Media) -> dict[str, Any] | None:
    if media.data is not None:
        return {"type": "base64", "media_type": kind_of(media), "data": media.data}
    address = address_of(media)
    return None if address is None else {"type": "url", "url": address}


def _afterwards(replies: Sequence[Reply]) -> list[Wire]:
    """The files of failed calls, which their results may not hold. A program that calls takes nothing but results."""
    if any((reply.call.caller or {}).get("type", "direct") != "direct" for reply in replies):
        return []
    failed = [reply for reply in replies if reply.error is not None]
    return [block for reply in failed for media in reply_content.media_of(reply) if (block := _file(media)) is not None]


def _said(text: str) -> Wire:
    return {"type": "text", "text": text}


SHELLS = ("shell_command", "shell", "exec_command")
FILES = ("read_file", "write_file", "edit_file")
BASH: Wire = {"type": "bash_20250124", "name": "bash"}
EDITOR: Wire = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
SEARCH: Wire = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
BUILT_IN = {name: BASH for name in SHELLS} | {name: EDITOR for name in FILES}
"""Our tools, and what the model was taught that does the same."""
CHOICES = {"auto": "auto", "required": "any", "tool": "tool", "none": "none"}


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    refuse(options, offers, ("namespace",), exported.warnings)
    offers = with_their_search(offers, options, exported.warnings)
    allowance = allowance_for(options, exported.warnings)
    builtins = _builtins(offers, exported.warnings) if options.is_native else {}
    for tool in fit(offers, options.quirks, exported.warnings):
        replaced = builtins.get(tool.offer.name)
        if replaced is None:
            exported.tools.append(_definition(tool, options, allowance, exported.warnings))
        elif replaced not in exported.tools:
            exported.tools.append(dict(replaced))
    if any("defer_loading" in tool for tool in exported.tools):
        exported.tools.insert(0, dict(SEARCH))
    if options.cache is not None:
        _mark(exported.tools, {"type": "ephemeral"} | ({"ttl": "1h"} if options.cache == "1h" else {}))
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    mode = mode_of(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Anthropic has no list of allowed tools; the others are left out of the request.")
        tools = _narrowed(tools, choice.allowed, quirks)
    filled: Wire = {"tools": tools}
    is_single = choice.parallel is False and quirks.says_parallel and mode != "none"
    if not tools or (mode is None and not is_single):
        return filled
    said: Wire = {"type": CHOICES[mode or "auto"]}
    if mode == "tool":
        said["name"] = _called(choice.name or "", tools, quirks)
    if is_single:
        said["disable_parallel_tool_use"] = True
    return filled | {"tool_choice": said}


def _builtins(offers: Sequence[ToolOffer], warnings: list[str]) -> dict[str, Wire]:
    """Which of the offers the model knows as a tool of its own. A name can be there only once."""
    names = {offer.name for offer in offers}
    taken = {tool["name"] for tool in (BASH, EDITOR) if tool["name"] in names}
    warnings += [f"The built-in tool {name} is not offered: another tool has its name." for name in sorted(taken)]
    return {name: tool for name, tool in BUILT_IN.items() if tool["name"] not in taken}


def _definition(tool: FittedTool, options: ExportOptions, allowance: GrammarBudget | None, warnings: list[str]) -> Wire:
    made: Wire = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    if not tool.description:
        del made["description"]
    if allowance is not None and (closed := allowance.close(tool, warnings)) is not None:
        made |= {"input_schema": closed, "strict": True}
    if options.defers is not None and options.defers(tool.offer.name):
        made["defer_loading"] = True
    return made


def _mark(tools: list[Wire], mark: Wire) -> None:
    """The mark on the last tool caches all; one that is deferred may not carry it."""
    last = next((tool for tool in reversed(tools) if "defer_loading" not in tool), None)
    if last is not None:
        last["cache_control"] = mark


def _narrowed(tools: list[Wire], allowed: Sequence[str], quirks: Quirks) -> list[Wire]:
    names = {_called(name, tools, quirks) for name in allowed}
    kept = [dict(tool) for tool in tools if tool["name"] in names]
    if any("defer_loading" in tool for tool in kept):
        kept.insert(0, dict(SEARCH))
    mark = next((tool["cache_control"] for tool in tools if "cache_control" in tool), None)
    if mark is not None:
        for tool in kept:
            tool.pop("cache_control", None)
        _mark(kept, mark)
    return kept


def _called(name: str, tools: list[Wire], quirks: Quirks) -> str:
    """What a tool of ours is called among these."""
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
