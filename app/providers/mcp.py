"""mcp: Model Context Protocol messages, for clients with a transport of their own.

Results have the same form as those of Toolcrib's MCP server: the tool's output, then the error.
"""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from app.core.errors import McpFailed
from app.core.runs import Json, Known, Media, ModelCall, ParsedMessage, Part, Reply, Text, ToolOffer, Unreadable
from app.providers import call_arguments, reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, NameRule, Quirks, Supports, Wire
from app.providers.reply_content import media_type
from app.providers.tool_limits import FittedTool, fit, supported_mode, warn_unsupported, wire_name

NAMES = NameRule(re.compile(r"[A-Za-z0-9_.-]+"), max_length=128)
HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
CALL = "tools/call"
JSONRPC_ID = "jsonrpc_id"
_NO_MESSAGE = "This is not an MCP message: a tools/call request, its params, or a list of these is expected."


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    warn_unsupported(options, offers, ("strict", "cache", "defer", "namespace", "native"), exported.warnings)
    fitted = fit(offers, options.quirks, exported.warnings)
    exported.tools = [_entry(tool, exported.warnings) for tool in fitted]
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """The result of `tools/list`. An MCP server has no tool choice."""
    supported_mode(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("MCP has no list of allowed tools; the other tools are left out.")
        names = {wire_name(name, quirks.names) for name in choice.allowed}
        tools = [tool for tool in tools if tool["name"] in names]
    return {"tools": tools}


def read_calls(message: Any, known: Known) -> ParsedMessage:
    if isinstance(message, list):
        return ParsedMessage(calls=tuple(call for item in message for call in _calls(item)))
    return ParsedMessage(calls=tuple(_calls(message)))


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """A response for each request, and a bare result for bare params."""
    answers: list[Wire] = []
    for reply in replies:
        result, caller = _result(reply), reply.call.caller or {}
        is_request = JSONRPC_ID in caller
        answers.append({"jsonrpc": "2.0", "id": caller[JSONRPC_ID], "result": result} if is_request else result)
    return answers


def _entry(tool: FittedTool, warnings: list[str]) -> Wire:
    offer = tool.offer
    entry: Wire = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    if offer.title:
        entry["title"] = offer.title
    if hints := {hint: offer.annotations[hint] for hint in HINTS if offer.annotations.get(hint) is not None}:
        entry["annotations"] = hints
    if offer.output_schema is not None and offer.output_schema.get("type") == "object":
        entry["outputSchema"] = offer.output_schema
    elif offer.output_schema is not None:
        warnings.append(f"The output schema of {tool.name} is left out: MCP takes only object schemas.")
    return entry


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
    """The original id is kept, as a number must be answered with a number."""
    return ModelCall(
        id=None if request_id is None else str(request_id),
        name=params["name"],
        caller=None if request_id is None else {JSONRPC_ID: request_id},
        **call_arguments.parse(params.get("arguments")),
    )


def _result(reply: Reply) -> Wire:
    has_text = any(isinstance(part, Text) for part in reply.parts)
    structured = next((part for part in reply.parts if isinstance(part, Json) and isinstance(part.value, dict)), None)
    parts = [part for part in reply.parts if part is not structured or not has_text]
    content = [block for number, part in enumerate(parts) if (block := _block(part, number)) is not None]
    is_reported = bool(reply.parts) and reply.error is not None and reply.error.code == McpFailed.code
    if reply.error is not None and not is_reported:  # the upstream server's output has its error
        content.append(_text(f"{reply.error.code}: {reply.error.message}"))
    result: Wire = {"resultType": "complete", "content": content or [_text("")], "isError": reply.error is not None}
    return result if structured is None else result | {"structuredContent": structured.value}


def _block(part: Part, number: int) -> Wire | None:
    if not isinstance(part, Media):
        text = reply_content.part_text(part)
        return _text(text) if text else None
    kind = media_type(part)
    if part.data is None:
        if part.url is None:
            return _text(reply_content.placeholder(part))
        return {"type": "resource_link", "uri": part.url, "name": part.name or part.url, "mimeType": kind}
    family = kind.partition("/")[0]
    if family in ("image", "audio"):
        return {"type": family, "data": part.data, "mimeType": kind}
    return {"type": "resource", "resource": {"uri": _uri(part, number), "mimeType": kind, "blob": part.data}}


def _uri(media: Media, number: int) -> str:
    """The file's URL, else a URI that is unique in the result."""
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
    quirks=Quirks(names=NAMES, modes=frozenset(), has_parallel_choice=False),
    numbers_calls=True,
)
