"""Attachments of results: small ones stay in the result, large ones are stored in rows of their own.

Those beyond a call's limit or unreadable are dropped; `attachments_dropped` in the metadata lists them and says why.
"""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.results import MAX_ATTACHED_BYTES, MAX_INLINE_BYTES, Attachment, Result, attach, data_of
from app.dispatch.redaction import CallRedactor
from app.store import outputs

DROPPED = "attachments_dropped"
UNREADABLE = "its data URL cannot be read"
TOO_LARGE = f"a call stores at most {MAX_ATTACHED_BYTES:,} bytes of attachments"


Attached = tuple[dict[str, Any], bytes | None]
"""The description of an attachment, and its bytes; None when its URL points elsewhere."""


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """An attachment stored in a row of its own, by its number in the result."""

    number: int
    data: bytes


def separate(result: Result, base_url: str, redactor: CallRedactor) -> tuple[Result, list[StoredAttachment]]:
    """The result as it is stored, and the large attachments, whose URLs are `{base_url}/{number}`."""
    inline, stored, dropped = list[Attachment](), list[StoredAttachment](), list[dict[str, Any]]()
    room = MAX_ATTACHED_BYTES
    for one in result.attachments:
        data = data_of(one.url)
        if data is None and (len(one.url) <= MAX_INLINE_BYTES or not one.url.lower().startswith("data:")):
            inline.append(one)
        elif data is None or len(data) > room:
            size, reason = (None, UNREADABLE) if data is None else (len(data), TOO_LARGE)
            dropped.append({"mime": one.mime, "filename": one.filename, "size": size, "reason": reason})
        else:
            room -= len(data)
            clean = redactor.redact_bytes(data)
            if len(clean) > MAX_INLINE_BYTES:
                stored.append(StoredAttachment(len(inline), clean))
                inline.append(replace(one, url=f"{base_url}/{len(inline)}"))
            else:
                inline.append(one if clean == data else attach(clean, one.mime, one.filename))
    metadata = result.metadata | ({DROPPED: dropped} if dropped else {})
    return replace(result, metadata=metadata, attachments=tuple(inline)), stored


async def load(engine: AsyncEngine, call: str, listed: list[dict[str, Any]]) -> list[Attached]:
    """The attachments of a result with their bytes, inline or stored."""
    stored = await outputs.attachment_sizes(engine, call) if listed else {}
    loaded = list[Attached]()
    for number, about in enumerate(listed):
        if number in stored:
            loaded.append((about, await outputs.read_attachment(engine, call, number, 0, MAX_ATTACHED_BYTES)))
        else:
            loaded.append((about, data_of(about["url"])))
    return loaded


def is_large(result: Result) -> bool:
    """Whether redacting the attachments would block the event loop for long."""
    return sum(len(one.url) for one in result.attachments) > MAX_INLINE_BYTES
