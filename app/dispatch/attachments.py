"""Attachments on their way to the store and back: small ones stay in the result, large ones are kept beside it.

What is beyond the limit of a call, or cannot be read, is not kept; the result's
metadata tells which, how large and why, as `attachments_dropped`.
"""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.results import MOST_ATTACHED, MOST_INLINE, Attachment, Result, attach, data_of
from app.dispatch.redaction import CallRedactor
from app.store import outputs

DROPPED = "attachments_dropped"
UNREADABLE = "its data URL cannot be read"
TOO_MUCH = f"a call keeps {MOST_ATTACHED:,} bytes of attachments"


Attached = tuple[dict[str, Any], bytes | None]
"""What is said of an attachment, and its bytes; None when it is elsewhere."""


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """An attachment that is kept beside its result, by its number there."""

    number: int
    data: bytes


def set_apart(result: Result, place: str, cover: CallRedactor) -> tuple[Result, list[StoredAttachment]]:
    """The result as it is kept, and what is kept beside it, at `{place}/{number}`. Large ones take a while."""
    kept, apart, dropped, room = list[Attachment](), list[StoredAttachment](), list[dict[str, Any]](), MOST_ATTACHED
    for one in result.attachments:
        data = data_of(one.url)
        if data is None and (len(one.url) <= MOST_INLINE or not one.url.lower().startswith("data:")):
            kept.append(one)
        elif data is None or len(data) > room:
            dropped.append(_dropped(one, data))
        else:
            room -= len(data)
            clean = cover.data(data)
            if len(clean) > MOST_INLINE:
                apart.append(StoredAttachment(len(kept), clean))
                kept.append(replace(one, url=f"{place}/{len(kept)}"))
            else:
                kept.append(one if clean == data else attach(clean, one.mime, one.filename))
    metadata = result.metadata | ({DROPPED: dropped} if dropped else {})
    return replace(result, metadata=metadata, attachments=tuple(kept)), apart


async def load(engine: AsyncEngine, call: str, listed: list[dict[str, Any]]) -> list[Attached]:
    """What goes along with a call's result, whether it is in it or kept beside it."""
    stored = await outputs.attachment_sizes(engine, call) if listed else {}
    found = list[Attached]()
    for number, about in enumerate(listed):
        is_beside = number in stored
        data = (
            await outputs.read_attachment(engine, call, number, 0, MOST_ATTACHED)
            if is_beside
            else data_of(about["url"])
        )
        found.append((about, data))
    return found


def is_large(result: Result) -> bool:
    """Whether there is so much to look at that the loop should not wait for it."""
    return sum(len(one.url) for one in result.attachments) > MOST_INLINE


def _dropped(one: Attachment, data: bytes | None) -> dict[str, Any]:
    about = {"mime": one.mime, "filename": one.filename}
    if data is None:
        return about | {"size": None, "reason": UNREADABLE}
    return about | {"size": len(data), "reason": TOO_MUCH}
