"""Attachments as MCP clients take them: images and sounds as such, other files as embedded resources."""

import base64

from app.core.jsons import Raw
from app.dispatch.attachments import Attached

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
