"""Results: how a call ended, as a client of the door reads it.

Attachments as MCP clients take them: images and sounds as such, other files as embedded resources.
"""

import base64
import json
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.errors import McpFailed
from app.core.util.json_codec import Raw
from app.dispatch.attachments import Attached, load
from app.mcp.client.interfaces import MODERN
from app.mcp.client.results import blocks_of
from app.mcp.server.request_context import refusal

ADDRESS = "toolcrib:///v1/calls/{call}/attachments/{number}"


def block_of(attached: Attached, call: str, number: int) -> Raw:
    """One as a content block."""
    about, data = attached
    mime = about["mime"]
    if data is None:  # elsewhere, and the client may fetch it itself
        link = {"type": "resource_link", "uri": about["url"], "name": about["filename"] or about["url"]}
        return link | {"mimeType": mime}
    encoded = base64.b64encode(data).decode()
    kind = mime.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": encoded, "mimeType": mime}
    address = ADDRESS.format(call=call, number=number)
    return {"type": "resource", "resource": {"uri": address, "mimeType": mime, "blob": encoded}}


CALL_META = "io.toolcrib/call"
MISSING_CAPABILITY = -32021
AUDIO_SINCE = "2025-03-26"
LINKS_SINCE = "2025-06-18"


async def result_of(engine: AsyncEngine, call: Call, version: str) -> Raw:
    """What the model reads: the output, then the error's sentence if there is one; and what goes along with it."""
    result = json.loads(call.result) if call.result else None
    error = json.loads(call.error) if call.error else None
    if error and (error.get("details") or {}).get("code") == MISSING_CAPABILITY:
        details = error["details"]  # not the model's matter, but the client's
        raise refusal(details["message"], MISSING_CAPABILITY, details["data"])
    content = await _content(engine, call.id, result) if result else []
    content += [text_of(sentence) for sentence in _sentences(call, result, error)]
    answer: Raw = {
        "content": [_fitted(block, version) for block in content],
        "isError": error is not None or not call.is_final,
        "_meta": _meta(result) | {CALL_META: call.id},
    }
    structured = result["structured"] if result else None
    if isinstance(structured, dict) or (structured is not None and version >= MODERN):
        answer["structuredContent"] = structured
    return answer


def failed(sentence: str) -> Raw:
    """There is no call, and why."""
    return {"content": [text_of(sentence)], "isError": True}


def text_of(text: str) -> Raw:
    return {"type": "text", "text": text}


async def _content(engine: AsyncEngine, call: str, result: dict[str, Any]) -> list[Raw]:
    """What a server gave as it gave it, as long as that is what the model reads too."""
    attached = await load(engine, call, result["attachments"])
    blocks = blocks_of(result, lambda number: _encoded(attached[number]))
    if blocks is not None:
        return blocks
    blocks = [block_of(one, call, number) for number, one in enumerate(attached)]
    return [text_of(result["output"]), *blocks] if result["output"] or not blocks else blocks


def _encoded(attached: Attached) -> str:
    return base64.b64encode(attached[1] or b"").decode()


def _sentences(call: Call, result: dict[str, Any] | None, error: dict[str, Any] | None) -> list[str]:
    """What is to be said besides what the tool gave. A server that failed has said itself how."""
    said = []
    if result and result["metadata"].get("truncated") is True:
        size = result["metadata"].get("original_size")
        whole = f"The whole output ({size} characters)" if isinstance(size, int) else "The whole output"
        said.append(f"[{whole} can be read at GET /v1/calls/{call.id}/output.]")
    if not call.is_final:
        said.append(f"Interrupted: the service stops, and call {call.id} goes on when it is back.")
    if error and not (result and error["code"] == McpFailed.code):
        said.append(f"{error['code']}: {error['message']}")
    return said


def _meta(result: dict[str, Any] | None) -> Raw:
    """What a server said about its result."""
    said = result["metadata"].get("_meta") if result else None
    return dict(said) if isinstance(said, dict) else {}


def _fitted(block: Raw, version: str) -> Raw:
    """A block in a form that was known already in this version of the protocol."""
    if block["type"] == "resource_link" and version < LINKS_SINCE:
        about = block.get("description") or block.get("title") or block.get("name")
        return text_of(f"[Resource {block['uri']}{f': {about}' if about else ''}]")
    if block["type"] == "audio" and version < AUDIO_SINCE:
        sound = {"uri": "toolcrib:///audio", "mimeType": block["mimeType"], "blob": block["data"]}
        return {"type": "resource", "resource": sound}
    return block
