"""Results in the Chat Completions format. Tool messages are text only; files follow in one user message."""

from collections.abc import Sequence

from app.core.runs import Media, Reply
from app.providers import reply_content
from app.providers.dialects import Wire

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
DEFAULT_PDF_NAME = "document.pdf"


def write(replies: Sequence[Reply]) -> list[Wire]:
    answers: list[Wire] = []
    attached: list[Wire] = []
    for reply in replies:
        lines = [reply_content.text_of(reply)]
        number = 0
        for media in reply_content.media_of(reply):
            part = attachment(media)
            if part is None:
                lines.append(reply_content.placeholder(media))
                continue
            number += 1
            label = f"{'image' if media.is_image else 'file'} {number} of {reply.call.id or reply.call.name}"
            lines.append(f"[{label} attached below]")
            attached += [{"type": "text", "text": f"[{label}]"}, part]
        answers.append(_answer(reply, "\n".join(line for line in lines if line) or reply_content.NO_OUTPUT))
    return [*answers, {"role": "user", "content": attached}] if attached else answers


def attachment(media: Media) -> Wire | None:
    """A file as a part of a user message; None for unsupported types."""
    if media.mime in IMAGE_TYPES and (url := image_url_of(media)):
        return {"type": "image_url", "image_url": {"url": url}}
    if media.mime == PDF and media.data is not None:
        file = {"filename": media.name or DEFAULT_PDF_NAME, "file_data": reply_content.data_url(media)}
        return {"type": "file", "file": file}
    return None


def image_url_of(media: Media) -> str | None:
    """A data URL, or a web URL."""
    if media.data is not None:
        return reply_content.data_url(media)
    return media.url if has_web_url(media) else None


def has_web_url(media: Media) -> bool:
    return media.url is not None and media.url.startswith(("https://", "http://"))


def _answer(reply: Reply, content: str) -> Wire:
    """Only a legacy `function_call` has no id; it is answered by its name."""
    if reply.call.id is None:
        return {"role": "function", "name": reply.call.name, "content": content}
    return {"role": "tool", "tool_call_id": reply.call.id, "content": content}
