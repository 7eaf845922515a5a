"""Attachments as MCP clients take them: images and sounds as such, other files as embedded resources."""

import base64
import json
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.results import MOST_ATTACHED, data_of
from app.store import attachments

if TYPE_CHECKING:
    from mcp import types

ADDRESS = "toolcrib:///v1/calls/{call}/attachments/{number}"


async def contents(engine: AsyncEngine, call: Call) -> "list[types.ContentBlock]":
    """What goes along with a call's result, whether it is in it or kept beside it."""
    listed = json.loads(call.result)["attachments"] if call.result else []
    stored = await attachments.sizes(engine, call.id) if listed else {}
    found = []
    for number, about in enumerate(listed):
        data = data_of(about["url"])
        if number in stored:
            data = await attachments.read(engine, call.id, number, 0, MOST_ATTACHED)
        found.append(_block(about, data, ADDRESS.format(call=call.id, number=number)))
    return found


def _block(about: dict[str, Any], data: bytes | None, address: str) -> "types.ContentBlock":
    from mcp import types

    mime = about["mime"]
    if data is None:  # elsewhere, and the client may fetch it itself
        return types.ResourceLink(uri=about["url"], name=about["filename"] or about["url"], mime_type=mime)
    encoded = base64.b64encode(data).decode()
    match mime.partition("/")[0]:
        case "image":
            return types.ImageContent(data=encoded, mime_type=mime)
        case "audio":
            return types.AudioContent(data=encoded, mime_type=mime)
    return types.EmbeddedResource(resource=types.BlobResourceContents(uri=address, mime_type=mime, blob=encoded))
