"""bedrock: Converse of Amazon Bedrock. Calls are `toolUse` blocks, and all results of a turn go back in one message.

Bytes are base64 here, as they are on the wire; a client that takes bytes itself is given them decoded.

What a model on Bedrock said: `toolUse` blocks out of a response, a message or the events of a stream.

What a model on Bedrock gets back: one user message with a `toolResult` block for each call.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from app.core.runs import Json, Known, Media, ModelCall, ParsedMessage, Part, Reply, SearchResult, ToolOffer, Unreadable
from app.providers import call_arguments, reply_content
from app.providers.dialects import COMMON, Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.reply_content import kind_of
from app.providers.schema.anthropic_strict import GrammarBudget, allowance_for
from app.providers.tool_limits import FittedTool, fit, mode_of, refuse, wire_name

CUT = ("max_tokens", "model_context_window_exceeded", "malformed_tool_use", "malformed_model_output")
"""Ends that can come in the middle of a call, which is then the last block."""
EVENTS = ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
_NO_MESSAGE = "This is no message of Bedrock's: a response, a message, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"output": {"message": {"content": list(blocks)}}}:
            return _reading(blocks, message.get("stopReason"), message)
        case {"content": list(blocks)} if message.get("role", "assistant") == "assistant":
            return _reading(blocks, message.get("stopReason"))
        case {"toolUse": dict()}:
            return _reading([message], None)
        case [*events] if any(isinstance(event, dict) and event.keys() & set(EVENTS) for event in events):
            return _streamed(events)
        case [*blocks]:
            return _reading([_wrapped(block) for block in blocks], None)
    raise Unreadable(_NO_MESSAGE)


def _reading(
    blocks: list[Any],
    stopped: Any,
    response: dict[str, Any] | None = None,
    unfinished: frozenset[int] = frozenset(),
) -> ParsedMessage:
    """`unfinished` are the numbers of blocks that were cut off."""
    if not all(isinstance(block, dict) for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    if stopped in CUT:
        unfinished |= {len(blocks) - 1}
    uses = [(number, block["toolUse"]) for number, block in enumerate(blocks) if _is_ours(block.get("toolUse"))]
    return ParsedMessage(
        calls=tuple(_call(use, is_cut=number in unfinished) for number, use in uses),
        text="".join(block["text"] for block in blocks if isinstance(block.get("text"), str)),
        message_id=_request_id(response),
        is_response=response is not None,
    )


def _call(use: dict[str, Any], *, is_cut: bool) -> ModelCall:
    call_id, name, given = use.get("toolUseId"), use.get("name"), use.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise Unreadable("A toolUse needs a toolUseId and a name.")
    if not is_cut:
        return ModelCall(id=call_id, name=name, **call_arguments.read(given))
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ModelCall(id=call_id, name=name, **call_arguments.cut_short(raw))


def _streamed(events: list[Any]) -> ParsedMessage:
    """The message that the events of a stream build up. A block that never ends was cut off."""
    blocks: dict[int, _Block] = {}
    ended: set[int] = set()
    stopped = None
    for event in events:
        match event:
            case {"contentBlockStart": {"contentBlockIndex": int(index), "start": {"toolUse": dict(use)}}}:
                blocks[index] = _Block(use)
            case {"contentBlockDelta": {"contentBlockIndex": int(index), "delta": dict(delta)}}:
                blocks.setdefault(index, _Block()).add(delta)
            case {"contentBlockStop": {"contentBlockIndex": int(index)}}:
                ended.add(index)
            case {"messageStop": {"stopReason": str(reason)}}:
                stopped = reason
    places = sorted(blocks)
    unfinished = frozenset(number for number, index in enumerate(places) if index not in ended)
    reading = _reading([blocks[index].built() for index in places], stopped, None, unfinished)
    return ParsedMessage(calls=reading.calls, text=reading.text, is_response=True)


class _Block:
    """A block that comes in pieces: of a call, or of text."""

    def __init__(self, use: dict[str, Any] | None = None) -> None:
        self._use = use
        self._pieces: list[str] = []

    def add(self, delta: dict[str, Any]) -> None:
        match delta:
            case {"toolUse": {"input": str(piece)}} if self._use is not None:
                self._pieces.append(piece)
            case {"text": str(piece)} if self._use is None:
                self._pieces.append(piece)

    def built(self) -> dict[str, Any]:
        said = "".join(self._pieces)
        return {"text": said} if self._use is None else {"toolUse": self._use | {"input": said}}


def _is_ours(use: Any) -> bool:
    """One that the provider runs itself says so."""
    return isinstance(use, dict) and use.get("type") != "server_tool_use"


def _wrapped(block: Any) -> Any:
    """A call without the block around it becomes one; blocks stay as they are."""
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
LONGEST_NAME = 200
_ILLEGAL = re.compile(r"[^a-zA-Z0-9 ()\[\]-]+")


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    names: set[str] = set()
    return [{"role": "user", "content": [{"toolResult": _result(reply, names)} for reply in replies]}]


def _result(reply: Reply, names: set[str]) -> Wire:
    """`names` are those of documents that are taken: two of one name are refused."""
    blocks = [block for part in reply.parts if (block := _block(part, names)) is not None]
    if reply.error is not None:
        blocks.insert(0, {"text": f"[ERROR:{reply.error.code}] {reply.error.message}"})
    return {
        "toolUseId": reply.call.id,
        "content": blocks or [{"text": reply_content.NOTHING}],
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
    text = reply_content.plain(part)
    return {"text": text} if text else None


def _file(media: Media, names: set[str]) -> Wire | None:
    """A file as the model can see it; None when it cannot."""
    if not media.data:
        return None
    kind, source = kind_of(media), {"bytes": media.data}
    if kind in IMAGES:
        return {"image": {"format": IMAGES[kind], "source": source}}
    if kind in VIDEOS:
        return {"video": {"format": VIDEOS[kind], "source": source}}
    form = DOCUMENTS.get(kind, "txt" if kind.startswith("text/") else None)
    return None if form is None else {"document": _document(form, source, _named(media, names))}


def _document(form: str, source: dict[str, Any], name: str) -> Wire:
    return {"format": form, "name": name, "source": source}


def _named(media: Media, names: set[str]) -> str:
    """A name of the few characters that may be in one, and of its own."""
    legal = " ".join(_ILLEGAL.sub("-", media.name or "").split()).strip("- ")[: LONGEST_NAME - 8] or "document"
    name, number = legal, 1
    while name in names:
        number += 1
        name = f"{legal} ({number})"
    names.add(name)
    return name


NO_TOOLS = (
    "Bedrock cannot be told to use no tools; they are left out of the request, which a conversation with calls in it "
    "may not allow."
)


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    refuse(options, offers, ("defer", "namespace", "native"), exported.warnings)
    allowance = allowance_for(options, exported.warnings)
    for tool in fit(offers, options.quirks, exported.warnings):
        exported.tools.append({"toolSpec": _spec(tool, allowance, exported.warnings)})
    if options.cache is not None and exported.tools:
        point = {"type": "default"} | ({"ttl": "1h"} if options.cache == "1h" else {})
        exported.tools.append({"cachePoint": point})
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """Without tools there is no `toolConfig` either: it may not be empty."""
    if choice.mode == "none":
        warnings.append(NO_TOOLS)
        return {}
    mode = mode_of(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Bedrock has no list of allowed tools; the others are left out of the request.")
        tools = _narrowed(tools, {wire_name(name, quirks.names) for name in choice.allowed})
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


def _spec(tool: FittedTool, allowance: GrammarBudget | None, warnings: list[str]) -> Wire:
    """The description may not be empty."""
    is_described = bool(tool.description.strip())
    made: Wire = {
        "name": tool.name,
        "description": tool.description if is_described else tool.offer.title or tool.name,
        "inputSchema": {"json": tool.schema},
    }
    if allowance is not None and (closed := allowance.close(tool, warnings)) is not None:
        made |= {"inputSchema": {"json": closed}, "strict": True}
    return made


def _narrowed(tools: list[Wire], names: set[str]) -> list[Wire]:
    kept = [tool for tool in tools if "toolSpec" in tool and tool["toolSpec"]["name"] in names]
    points = [tool for tool in tools if "cachePoint" in tool]
    return [*kept, *points] if kept else []


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
        note="Files are base64, as on the wire; a client that takes bytes must be given them decoded.",
    ),
    quirks=Quirks(
        strict="on_request",
        names=COMMON,
        modes=frozenset({"auto", "required", "tool"}),
        says_parallel=False,
    ),
)
