"""What a tool gives back. The names are the ones agent frontends already know."""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

MOST_INLINE = 256 * 1024
"""Bytes of an attachment that stays in its result; a larger one is kept beside it."""
MOST_ATTACHED = 32 * 1024 * 1024
"""Bytes that all attachments of a call may have together."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes along with a result; `url` is a data URL or a route of this service."""

    mime: str
    url: str
    filename: str | None = None
    type: str = "file"


@dataclass(frozen=True, slots=True)
class Result:
    """`output` is what the model reads; `metadata` is for the frontend; `structured` is data for programs."""

    output: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    structured: Any = None


def attach(data: bytes, mime: str, filename: str | None = None) -> Attachment:
    """Bytes as an attachment; where it ends up, in the result or beside it, is not the tool's matter."""
    return Attachment(mime, f"data:{mime};base64,{base64.b64encode(data).decode()}", filename)


def data_of(url: str) -> bytes | None:
    """The bytes in a data URL; None when it is another URL, or cannot be read."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    data = unquote_to_bytes(body)
    if not head.lower().endswith(";base64"):
        return data
    try:
        return base64.b64decode(data)
    except binascii.Error:
        return None
