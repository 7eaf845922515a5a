"""What a tool gives back. The names are the ones agent frontends already know."""

import base64
from dataclasses import dataclass, field
from typing import Any


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
