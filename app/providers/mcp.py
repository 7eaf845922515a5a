"""mcp: words of the Model Context Protocol, for clients that speak it over a wire of their own.

What the service says as an MCP server it says here too, and in the same order: what the tool gave, then the error.
"""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from app.core.errors import McpFailed
from app.core.runs import Json, Known, Media, ModelCall, ParsedMessage, Part, Reply, Text, ToolOffer, Unreadable
from app.providers import call_arguments, reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, NameRule, Quirks, Supports, Wire
from app.providers.reply_content import kind_of
from app.providers.tool_limits import FittedTool, fit, mode_of, refuse, wire_name

NAMES = NameRule(re.compile(r"[A-Za-z0-9_.-]+"), longest=128)
HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
CALL = "tools/call"
JSONRPC_ID = "jsonrpc_id"
_NO_MESSAGE = "This is no message of MCP: a tools/call request, its params, or a list of these is expected."


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    refuse(options, offers, ("strict", "cache", "defer", "namespace", "native"), exported.warnings)
    fitted = fit(offers, options.quirks, exported.warnings)
    exported.tools = [_entry(tool, exported.warnings) for tool in fitted]
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """The answer to `tools/list`: which of them is used is nothing that a server can say."""
    mode_of(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("MCP has no list of allowed tools; the others are left out.")
        names = {wire_name(name, quirks.names) for name in choice.allowed}
        tools = [tool for tool in tools if tool["name"] in names]
    return {"tools": tools}


def read_calls(message: Any, known: Known) -> ParsedMessage:
    if isinstance(message, list):
        return ParsedMessage(calls=tuple(call for one in message for call in _calls(one)))
    return ParsedMessage(calls=tuple(_calls(message)))


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """A request gets a response under the id it came with, bare params the result alone."""
    answers: list[Wire] = []
    for reply in replies:
        result, caller = _result(reply), reply.call.caller or {}
        is_request = JSONRPC_ID in caller
        answers.append({"jsonrpc": "2.0", "id": caller[JSONRPC_ID], "result": result} if is_request else result)
    return answers


def _entry(tool: FittedTool, warnings: list[str]) -> Wire:
    offer = tool.offer
    made: Wire = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    if offer.title:
        made["title"] = offer.title
    if hints := {hint: offer.annotations[hint] for hint in HINTS if offer.annotations.get(hint) is not None}:
        made["annotations"] = hints
    if offer.output_schema is not None and offer.output_schema.get("type") == "object":
        made["outputSchema"] = offer.output_schema
    elif offer.output_schema is not None:
        warnings.append(f"The output schema of {tool.name} is left out: MCP takes only those of objects.")
    return made


def _calls(message: Any) -> list[ModelCall]:
    match message:
        case {"method": "tools/call", "params": dict(params)} if isinstance(params.get("name"), str):
            request_id = message.get("id")
            is_request = isinstance(request_id, str | int | float) and not isinstance(request_id, bool)
            return [_call(params, request_id if is_request else None)]
        case {"jsonrpc": str()} if message.get("method") != CALL:
            return []
        case {"name": str()} if "method" not in message:
            return [_call(message, None)]
    raise Unreadable(_NO_MESSAGE)


def _call(params: dict[str, Any], request_id: Any) -> ModelCall:
    """The id is kept as it came, because a number must go back as a number."""
    return ModelCall(
        id=None if request_id is None else str(request_id),
        name=params["name"],
        caller=None if request_id is None else {JSONRPC_ID: request_id},
        **call_arguments.read(params.get("arguments")),
    )


def _result(reply: Reply) -> Wire:
    has_text = any(isinstance(part, Text) for part in reply.parts)
    structured = next((part for part in reply.parts if isinstance(part, Json) and isinstance(part.value, dict)), None)
    said = [part for part in reply.parts if part is not structured or not has_text]
    content = [block for number, part in enumerate(said) if (block := _block(part, number)) is not None]
    is_said = bool(reply.parts) and reply.error is not None and reply.error.code == McpFailed.code
    if reply.error is not None and not is_said:  # a server that failed has said itself how
        content.append(_text(f"{reply.error.code}: {reply.error.message}"))
    made: Wire = {"resultType": "complete", "content": content or [_text("")], "isError": reply.error is not None}
    return made if structured is None else made | {"structuredContent": structured.value}


def _block(part: Part, number: int) -> Wire | None:
    if not isinstance(part, Media):
        text = reply_content.plain(part)
        return _text(text) if text else None
    kind = kind_of(part)
    if part.data is None:
        if part.url is None:
            return _text(reply_content.placeholder(part))
        return {"type": "resource_link", "uri": part.url, "name": part.name or part.url, "mimeType": kind}
    family = kind.partition("/")[0]
    if family in ("image", "audio"):
        return {"type": family, "data": part.data, "mimeType": kind}
    return {"type": "resource", "resource": {"uri": _address(part, number), "mimeType": kind, "blob": part.data}}


def _address(media: Media, number: int) -> str:
    """Where the file is; else an address that tells it from the other files of the result."""
    if media.url and not media.url.startswith("data:"):
        return media.url
    return f"toolcrib:///attachments/{number}/{quote(media.name or 'file', safe='')}"


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


dialect = Dialect(
    name="mcp",
    title="Model Context Protocol",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(images=True, files=True, streams=False),
    quirks=Quirks(names=NAMES, modes=frozenset(), says_parallel=False),
    numbers_calls=True,
)
