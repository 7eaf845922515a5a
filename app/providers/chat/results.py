"""Results in the shape of Chat Completions. A tool's message is text and nothing else: what a call gave besides follows
in one message of the user, after the messages of all tools."""

from collections.abc import Sequence

from app.core.runs import Media, Reply
from app.providers import reply_content
from app.providers.dialects import Wire

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
NAMELESS_PDF = "document.pdf"


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
        answers.append(_answer(reply, "\n".join(line for line in lines if line) or reply_content.NOTHING))
    return [*answers, {"role": "user", "content": attached}] if attached else answers


def attachment(media: Media) -> Wire | None:
    """A file as a part of a user's message; None for what a model cannot be shown."""
    if media.mime in PICTURES and (url := picture_url(media)):
        return {"type": "image_url", "image_url": {"url": url}}
    if media.mime == PDF and media.data is not None:
        file = {"filename": media.name or NAMELESS_PDF, "file_data": reply_content.data_url(media)}
        return {"type": "file", "file": file}
    return None


def picture_url(media: Media) -> str | None:
    """Where a picture is: in the address itself, or on the web."""
    if media.data is not None:
        return reply_content.data_url(media)
    return media.url if is_on_the_web(media) else None


def is_on_the_web(media: Media) -> bool:
    return media.url is not None and media.url.startswith(("https://", "http://"))


def _answer(reply: Reply, content: str) -> Wire:
    """Only the call of a function, as it was before there were tools, has no id. It is answered by its name."""
    if reply.call.id is None:
        return {"role": "function", "name": reply.call.name, "content": content}
    return {"role": "tool", "tool_call_id": reply.call.id, "content": content}
