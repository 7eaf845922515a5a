"""What a tool gives back. The names are the ones agent frontends already know."""

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
