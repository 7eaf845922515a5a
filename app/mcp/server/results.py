"""Ended calls as MCP results: of `tools/call`, `resources/read` and `prompts/get`."""

import base64
import json
import re
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.errors import McpFailed
from app.core.util.json_codec import Raw
from app.dispatch.attachments import Attached, load
from app.mcp.client.interfaces import MODERN
from app.mcp.client.results import blocks_of
from app.mcp.server.request_context import INTERNAL_ERROR, Ctx, call_failure, protocol_error
from app.store import outputs

ATTACHMENT_URI = "toolcrib:///v1/calls/{call}/attachments/{number}"
CALL_META = "io.toolcrib/call"
MISSING_CAPABILITY = -32021
AUDIO_SINCE = "2025-03-26"
LINKS_SINCE = "2025-06-18"
CHUNK_BYTES = 1024 * 1024
_ATTACHED_FILE = re.compile(r"attached as file (\d+)\]$")


async def tool_result(engine: AsyncEngine, ctx: Ctx, call: Call) -> Raw:
    """The result of `tools/call`: the output, then the error's sentence if there is one, and the attachments."""
    version = ctx.protocol_version
    result = json.loads(call.result) if call.result else None
    error = json.loads(call.error) if call.error else None
    if error and (error.get("details") or {}).get("code") == MISSING_CAPABILITY:
        details = error["details"]  # for the client, not for the model
        raise protocol_error(details["message"], MISSING_CAPABILITY, details["data"])
    content = await _content(engine, call.id, result) if result else []
    content += [_text_block(sentence) for sentence in _sentences(call, result, error)]
    server_meta = result["metadata"].get("_meta") if result else None
    answer: Raw = {
        "content": [_downgrade(block, version) for block in content],
        "isError": error is not None or not call.is_final,
        "_meta": (server_meta if isinstance(server_meta, dict) else {}) | {CALL_META: call.id},
    }
    structured = result["structured"] if result else None
    if isinstance(structured, dict) or (structured is not None and version >= MODERN):
        answer["structuredContent"] = structured
    return answer


def error_result(sentence: str) -> Raw:
    """The result of a `tools/call` for which no call was made."""
    return {"content": [_text_block(sentence)], "isError": True}


def _text_block(text: str) -> Raw:
    return {"type": "text", "text": text}


async def _content(engine: AsyncEngine, call: str, result: dict[str, Any]) -> list[Raw]:
    """An upstream server's content blocks unchanged, as long as the model's output is the same."""
    attached = await load(engine, call, result["attachments"])
    blocks = blocks_of(result, lambda number: base64.b64encode(attached[number][1] or b"").decode())
    if blocks is not None:
        return blocks
    blocks = [_attachment_block(item, call, number) for number, item in enumerate(attached)]
    return [_text_block(result["output"]), *blocks] if result["output"] or not blocks else blocks


def _attachment_block(attached: Attached, call: str, number: int) -> Raw:
    """Images and audio as such, other files as embedded resources, files elsewhere as links."""
    info, data = attached
    mime = info["mime"]
    if data is None:
        link = {"type": "resource_link", "uri": info["url"], "name": info["filename"] or info["url"]}
        return link | {"mimeType": mime}
    encoded = base64.b64encode(data).decode()
    kind = mime.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": encoded, "mimeType": mime}
    uri = ATTACHMENT_URI.format(call=call, number=number)
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


def _sentences(call: Call, result: dict[str, Any] | None, error: dict[str, Any] | None) -> list[str]:
    """What the model reads besides the tool's output. An upstream server's output has its error already."""
    sentences = []
    if result and result["metadata"].get("truncated") is True:
        size = result["metadata"].get("original_size")
        whole = f"The whole output ({size} characters)" if isinstance(size, int) else "The whole output"
        sentences.append(f"[{whole} can be read at GET /v1/calls/{call.id}/output.]")
    if not call.is_final:
        sentences.append(f"Interrupted: the service is stopping; call {call.id} continues after the restart.")
    if error and not (result and error["code"] == McpFailed.code):
        sentences.append(f"{error['code']}: {error['message']}")
    return sentences


def _downgrade(block: Raw, version: str) -> Raw:
    """A content block in a form that this version of the protocol knows."""
    if block["type"] == "resource_link" and version < LINKS_SINCE:
        title = block.get("description") or block.get("title") or block.get("name")
        return _text_block(f"[Resource {block['uri']}{f': {title}' if title else ''}]")
    if block["type"] == "audio" and version < AUDIO_SINCE:
        audio = {"uri": "toolcrib:///audio", "mimeType": block["mimeType"], "blob": block["data"]}
        return {"type": "resource", "resource": audio}
    return block


async def resource_result(engine: AsyncEngine, ctx: Ctx, call: Call) -> Raw:
    """The result of `resources/read`; raises an error of the protocol for a call that failed.

    The tool's output is the server's answer with its blobs moved to attachments; here they are put back.
    """
    result, answer = await _server_answer(engine, ctx, call)
    attached = await load(engine, call.id, result["attachments"])
    fields = {name: value for name, value in answer.items() if name not in ("server", "uri")}
    return fields | {"contents": [_with_blob(content, attached) for content in answer["contents"]]}


async def prompt_result(engine: AsyncEngine, ctx: Ctx, call: Call) -> Raw:
    """The result of `prompts/get`, likewise."""
    _, answer = await _server_answer(engine, ctx, call)
    return answer


async def _server_answer(engine: AsyncEngine, ctx: Ctx, call: Call) -> tuple[Raw, Raw]:
    """The stored result of a call, and the server's answer in it."""
    if call.error is not None:
        raise call_failure(json.loads(call.error), ctx)
    if call.result is None:
        message = f"The service is stopping; call {call.id} continues after the restart."
        raise protocol_error(message, INTERNAL_ERROR)
    result = json.loads(call.result)
    try:
        answer: Raw = json.loads(await _whole_output(engine, call.id, result))
    except ValueError:
        raise protocol_error("The server's answer is larger than the stored output.", INTERNAL_ERROR) from None
    return result, answer


async def _whole_output(engine: AsyncEngine, call: str, result: dict[str, Any]) -> str:
    if result["metadata"].get("truncated") is not True:
        return str(result["output"])
    pieces, offset = list[bytes](), 0
    while chunks := await outputs.chunks(engine, call, offset, CHUNK_BYTES):
        pieces += [data for _, _, data in chunks]
        offset = chunks[-1][0] + len(chunks[-1][2])
    return b"".join(pieces).decode()


def _with_blob(content: Any, attached: list[Attached]) -> Any:
    """One of the contents with its blob again; where it was not stored, with the reason as text."""
    if not isinstance(content, dict) or "blob" not in content:
        return content
    match = _ATTACHED_FILE.search(str(content["blob"]))
    data = attached[int(match[1]) - 1][1] if match and int(match[1]) <= len(attached) else None
    if data is not None:
        return content | {"blob": base64.b64encode(data).decode()}
    fields = {name: value for name, value in content.items() if name != "blob"}
    return fields | {"mimeType": "text/plain", "text": content["blob"]}
