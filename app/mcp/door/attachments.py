"""Attachments as MCP clients take them: images and sounds as such, other files as embedded resources."""

import base64
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.jsons import Raw
from app.core.results import MOST_ATTACHED, data_of
from app.store import attachments

ADDRESS = "toolcrib:///v1/calls/{call}/attachments/{number}"

Attached = tuple[dict[str, Any], bytes | None]
"""What is said of an attachment, and its bytes; None when it is elsewhere."""


async def load(engine: AsyncEngine, call: str, listed: list[dict[str, Any]]) -> list[Attached]:
    """What goes along with a call's result, whether it is in it or kept beside it."""
    stored = await attachments.sizes(engine, call) if listed else {}
    found = list[Attached]()
    for number, about in enumerate(listed):
        is_beside = number in stored
        data = await attachments.read(engine, call, number, 0, MOST_ATTACHED) if is_beside else data_of(about["url"])
        found.append((about, data))
    return found


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
