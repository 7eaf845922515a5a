"""What a model on Bedrock gets back: one user message with a `toolResult` block for each call."""

import re
from collections.abc import Sequence
from typing import Any

from app.core.runs import Json, Media, Part, Reply, SearchResult
from app.providers import contents
from app.providers.dialects import Wire
from app.providers.media import kind_of

IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/markdown": "md",
}
VIDEOS = {
    "video/x-matroska": "mkv",
    "video/quicktime": "mov",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
LONGEST_NAME = 200
_ILLEGAL = re.compile(r"[^a-zA-Z0-9 ()\[\]-]+")


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    names: set[str] = set()
    return [{"role": "user", "content": [{"toolResult": _result(reply, names)} for reply in replies]}]


def _result(reply: Reply, names: set[str]) -> Wire:
    """`names` are those of documents that are taken: two of one name are refused."""
    blocks = [block for part in reply.parts if (block := _block(part, names)) is not None]
    if reply.error is not None:
        blocks.insert(0, {"text": f"[ERROR:{reply.error.code}] {reply.error.message}"})
    return {
        "toolUseId": reply.call.id,
        "content": blocks or [{"text": contents.NOTHING}],
        "status": "success" if reply.error is None else "error",
    }


def _block(part: Part, names: set[str]) -> Wire | None:
    match part:
        case Json(value):
            return {"json": value if isinstance(value, dict) else {"value": value}}
        case Media():
            return _file(part, names) or {"text": contents.placeholder(part)}
        case SearchResult() if part.text:
            return {"searchResult": {"source": part.source, "title": part.title, "content": [{"text": part.text}]}}
    text = contents.plain(part)
    return {"text": text} if text else None


def _file(media: Media, names: set[str]) -> Wire | None:
    """A file as the model can see it; None when it cannot."""
    if not media.data:
        return None
    kind, source = kind_of(media), {"bytes": media.data}
    if kind in IMAGES:
        return {"image": {"format": IMAGES[kind], "source": source}}
    if kind in VIDEOS:
        return {"video": {"format": VIDEOS[kind], "source": source}}
    form = DOCUMENTS.get(kind, "txt" if kind.startswith("text/") else None)
    return None if form is None else {"document": _document(form, source, _named(media, names))}


def _document(form: str, source: dict[str, Any], name: str) -> Wire:
    return {"format": form, "name": name, "source": source}


def _named(media: Media, names: set[str]) -> str:
    """A name of the few characters that may be in one, and of its own."""
    legal = " ".join(_ILLEGAL.sub("-", media.name or "").split()).strip("- ")[: LONGEST_NAME - 8] or "document"
    name, number = legal, 1
    while name in names:
        number += 1
        name = f"{legal} ({number})"
    names.add(name)
    return name
