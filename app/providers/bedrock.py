"""bedrock: Amazon Bedrock Converse. Calls are `toolUse` blocks; all results of a turn are `toolResult` blocks of one
user message. Bytes are base64, as on the wire; a client library that takes bytes needs them decoded.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from app.core.runs import Json, Known, Media, ModelCall, ParsedMessage, Part, Reply, SearchResult, ToolOffer, Unreadable
from app.providers import call_arguments, reply_content
from app.providers.dialects import COMMON, Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.reply_content import media_type
from app.providers.schema.anthropic_strict import grammar_budget
from app.providers.tool_limits import fit, supported_mode, warn_unsupported, wire_name

INCOMPLETE = ("max_tokens", "model_context_window_exceeded", "malformed_tool_use", "malformed_model_output")
"""Values of `stopReason` that may leave the last block incomplete."""
EVENTS = ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
_NO_MESSAGE = "This is not a Bedrock message: a response, a message, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"output": {"message": {"content": list(blocks)}}}:
            return _parse(blocks, message.get("stopReason"), message)
        case {"content": list(blocks)} if message.get("role", "assistant") == "assistant":
            return _parse(blocks, message.get("stopReason"))
        case {"toolUse": dict()}:
            return _parse([message], None)
        case [*events] if any(isinstance(event, dict) and event.keys() & set(EVENTS) for event in events):
            return _parse_stream(events)
        case [*blocks]:
            return _parse([_as_block(block) for block in blocks], None)
    raise Unreadable(_NO_MESSAGE)


def _parse(
    blocks: list[Any],
    stop_reason: Any,
    response: dict[str, Any] | None = None,
    incomplete: frozenset[int] = frozenset(),
) -> ParsedMessage:
    """`incomplete` are the indexes of blocks that were cut off."""
    if not all(isinstance(block, dict) for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    if stop_reason in INCOMPLETE:
        incomplete |= {len(blocks) - 1}
    uses = [(number, block["toolUse"]) for number, block in enumerate(blocks) if _is_client_tool(block.get("toolUse"))]
    return ParsedMessage(
        calls=tuple(_call(use, is_cut=number in incomplete) for number, use in uses),
        text="".join(block["text"] for block in blocks if isinstance(block.get("text"), str)),
        message_id=_request_id(response),
        is_response=response is not None,
    )


def _call(use: dict[str, Any], *, is_cut: bool) -> ModelCall:
    call_id, name, raw_input = use.get("toolUseId"), use.get("name"), use.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise Unreadable("A toolUse needs a toolUseId and a name.")
    if not is_cut:
        return ModelCall(id=call_id, name=name, **call_arguments.parse(raw_input))
    raw = raw_input if isinstance(raw_input, str) else json.dumps(raw_input, ensure_ascii=False)
    return ModelCall(id=call_id, name=name, **call_arguments.incomplete(raw))


def _parse_stream(events: list[Any]) -> ParsedMessage:
    """The message of a stream's events. A block without `contentBlockStop` was cut off."""
    blocks: dict[int, _Block] = {}
    ended: set[int] = set()
    stop_reason = None
    for event in events:
        match event:
            case {"contentBlockStart": {"contentBlockIndex": int(index), "start": {"toolUse": dict(use)}}}:
                blocks[index] = _Block(use)
            case {"contentBlockDelta": {"contentBlockIndex": int(index), "delta": dict(delta)}}:
                blocks.setdefault(index, _Block()).add(delta)
            case {"contentBlockStop": {"contentBlockIndex": int(index)}}:
                ended.add(index)
            case {"messageStop": {"stopReason": str(reason)}}:
                stop_reason = reason
    indexes = sorted(blocks)
    incomplete = frozenset(number for number, index in enumerate(indexes) if index not in ended)
    parsed = _parse([blocks[index].whole() for index in indexes], stop_reason, None, incomplete)
    return ParsedMessage(calls=parsed.calls, text=parsed.text, is_response=True)


class _Block:
    """A streamed block: a call, or text."""

    def __init__(self, use: dict[str, Any] | None = None) -> None:
        self._use = use
        self._pieces: list[str] = []

    def add(self, delta: dict[str, Any]) -> None:
        match delta:
            case {"toolUse": {"input": str(piece)}} if self._use is not None:
                self._pieces.append(piece)
            case {"text": str(piece)} if self._use is None:
                self._pieces.append(piece)

    def whole(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        return {"text": text} if self._use is None else {"toolUse": self._use | {"input": text}}


def _is_client_tool(use: Any) -> bool:
    """Not one that the provider runs itself."""
    return isinstance(use, dict) and use.get("type") != "server_tool_use"


def _as_block(block: Any) -> Any:
    """A bare call as a block; blocks are unchanged."""
    return {"toolUse": block} if isinstance(block, dict) and "toolUseId" in block else block


def _request_id(response: dict[str, Any] | None) -> str | None:
    match response:
        case {"ResponseMetadata": {"RequestId": str(request_id)}}:
            return request_id
    return None


IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/markdown": "md",
}
VIDEOS = {
    "video/x-matroska": "mkv",
    "video/quicktime": "mov",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
MAX_NAME_LENGTH = 200
_ILLEGAL = re.compile(r"[^a-zA-Z0-9 ()\[\]-]+")


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    names: set[str] = set()
    return [{"role": "user", "content": [{"toolResult": _result(reply, names)} for reply in replies]}]


def _result(reply: Reply, names: set[str]) -> Wire:
    """`names` are those of earlier documents: Bedrock rejects duplicates."""
    blocks = [block for part in reply.parts if (block := _block(part, names)) is not None]
    if reply.error is not None:
        blocks.insert(0, {"text": f"[ERROR:{reply.error.code}] {reply.error.message}"})
    return {
        "toolUseId": reply.call.id,
        "content": blocks or [{"text": reply_content.NO_OUTPUT}],
        "status": "success" if reply.error is None else "error",
    }


def _block(part: Part, names: set[str]) -> Wire | None:
    match part:
        case Json(value):
            return {"json": value if isinstance(value, dict) else {"value": value}}
        case Media():
            return _file(part, names) or {"text": reply_content.placeholder(part)}
        case SearchResult() if part.text:
            return {"searchResult": {"source": part.source, "title": part.title, "content": [{"text": part.text}]}}
    text = reply_content.part_text(part)
    return {"text": text} if text else None


def _file(media: Media, names: set[str]) -> Wire | None:
    """A file as a block; None for unsupported types."""
    if not media.data:
        return None
    kind, source = media_type(media), {"bytes": media.data}
    if kind in IMAGES:
        return {"image": {"format": IMAGES[kind], "source": source}}
    if kind in VIDEOS:
        return {"video": {"format": VIDEOS[kind], "source": source}}
    format = DOCUMENTS.get(kind, "txt" if kind.startswith("text/") else None)
    if format is None:
        return None
    return {"document": {"format": format, "name": _document_name(media, names), "source": source}}


def _document_name(media: Media, names: set[str]) -> str:
    """A unique name of allowed characters."""
    legal = " ".join(_ILLEGAL.sub("-", media.name or "").split()).strip("- ")[: MAX_NAME_LENGTH - 8] or "document"
    name, number = legal, 1
    while name in names:
        number += 1
        name = f"{legal} ({number})"
    names.add(name)
    return name


NO_TOOLS = (
    "Bedrock cannot forbid tool calls; the tools are left out of the request, which Bedrock may reject for a "
    "conversation with calls in it."
)


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    warn_unsupported(options, offers, ("defer", "namespace", "native"), exported.warnings)
    budget = grammar_budget(options, exported.warnings)
    for tool in fit(offers, options.quirks, exported.warnings):
        # The description may not be empty.
        is_described = bool(tool.description.strip())
        spec: Wire = {
            "name": tool.name,
            "description": tool.description if is_described else tool.offer.title or tool.name,
            "inputSchema": {"json": tool.schema},
        }
        if budget is not None and (closed := budget.close(tool, exported.warnings)) is not None:
            spec |= {"inputSchema": {"json": closed}, "strict": True}
        exported.tools.append({"toolSpec": spec})
    if options.cache is not None and exported.tools:
        point = {"type": "default"} | ({"ttl": "1h"} if options.cache == "1h" else {})
        exported.tools.append({"cachePoint": point})
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """Without tools there is no `toolConfig`: it may not be empty."""
    if choice.mode == "none":
        warnings.append(NO_TOOLS)
        return {}
    mode = supported_mode(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Bedrock has no list of allowed tools; the other tools are left out of the request.")
        names = {wire_name(name, quirks.names) for name in choice.allowed}
        allowed = [tool for tool in tools if "toolSpec" in tool and tool["toolSpec"]["name"] in names]
        tools = [*allowed, *(tool for tool in tools if "cachePoint" in tool)] if allowed else []
    if not tools:
        return {}
    config: Wire = {"tools": tools}
    match mode:
        case "auto":
            config["toolChoice"] = {"auto": {}}
        case "required":
            config["toolChoice"] = {"any": {}}
        case "tool":
            config["toolChoice"] = {"tool": {"name": wire_name(choice.name or "", quirks.names)}}
    return {"toolConfig": config}


dialect = Dialect(
    name="bedrock",
    title="Amazon Bedrock Converse",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(
        strict=True,
        images=True,
        files=True,
        note="Files are base64, as on the wire; a client library that takes bytes needs them decoded.",
    ),
    quirks=Quirks(
        strict="on_request",
        names=COMMON,
        modes=frozenset({"auto", "required", "tool"}),
        has_parallel_choice=False,
    ),
)
