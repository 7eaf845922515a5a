"""Answers as the Responses dialect takes them: one item for each call, of the kind that belongs to it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from app.core.runs import CommandEnd, Failure, Media, ModelCall, Part, Reply
from app.providers import reply_content
from app.providers.builtin_calls import limit_output
from app.providers.dialects import ExportOptions, Wire
from app.providers.parallel_wrapper import merge
from app.providers.responses.tools import QUIRKS, define

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FILES = (
    "text/",
    "application/pdf",
    "application/json",
    "application/xml",
    "application/rtf",
    "application/msword",
    "application/vnd.ms-",
    "application/vnd.oasis.opendocument.",
    "application/vnd.openxmlformats-officedocument.",
)
"""What models are shown of other files; the rest would be refused together with the whole request."""
BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR42mNgAAIAAAUAAen63NgAAAAASUVORK5CYII="
)
"""A transparent pixel, where a screenshot has to be and there is none."""
NO_SCREENSHOT = "There is no screenshot."
SEARCHED = ExportOptions(strict="off", defers=lambda name: True, quirks=QUIRKS)


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """One item for each call. What an item has no place for comes after all of them, as a message."""
    replies = merge(replies)
    items = [WRITERS[reply.call.type](reply) for reply in replies]
    beside = [{"type": "input_text", "text": text} for reply in replies if (text := _beside(reply))]
    return [*items, {"type": "message", "role": "user", "content": beside}] if beside else items


def _function(reply: Reply) -> Wire:
    return _answer("function_call_output", reply, output=_output(reply)) | _caller(reply.call)


def _custom(reply: Reply) -> Wire:
    output = _output(reply)
    for block in output if isinstance(output, list) else []:
        if block["type"] == "input_image":
            block["detail"] = "auto"  # only here it has to be said
    return _answer("custom_tool_call_output", reply, output=output) | _caller(reply.call)


def _apply_patch(reply: Reply) -> Wire:
    status, said = "failed" if reply.error else "completed", _said(reply)
    told = {"output": said} if said else {}
    return _answer("apply_patch_call_output", reply, status=status, **told) | _caller(reply.call)


def _shell(reply: Reply) -> Wire:
    asked = reply.call.arguments or {}
    most = asked.get("max_output_length")
    limit: Wire = {"max_output_length": most} if isinstance(most, int) and not isinstance(most, bool) else {}
    ends = [
        limit_output(end, limit.get("max_output_length")) for end in _ends(reply, len(asked.get("commands") or [None]))
    ]
    return _answer("shell_call_output", reply, output=[_ended(end) for end in ends], **limit) | _caller(reply.call)


def _local_shell(reply: Reply) -> Wire:
    end = _ends(reply, 1)[0]
    told: Wire = {"stdout": end.stdout, "stderr": end.stderr, "exit_code": end.exit_code}
    if end.exit_code is None:
        told["timed_out"] = True
    output = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return _without_nothing({"type": "local_shell_call_output", "id": reply.call.id, "output": output})


def _computer(reply: Reply) -> Wire:
    """Checks that are pending are not acknowledged here: that is for a person to do."""
    output = {"type": "computer_screenshot", "image_url": _screenshot(reply) or BLANK}
    return _answer("computer_call_output", reply, output=output)


def _tool_search(reply: Reply) -> Wire:
    tools = [define(offer, SEARCHED, []) for offer in reply.tools]
    return _answer("tool_search_output", reply, execution="client", status="completed", tools=tools)


WRITERS: dict[str, Callable[[Reply], Wire]] = {
    "function": _function,
    "custom": _custom,
    "apply_patch": _apply_patch,
    "shell": _shell,
    "local_shell": _local_shell,
    "computer": _computer,
    "tool_search": _tool_search,
}


def _answer(kind: str, reply: Reply, **more: Any) -> Wire:
    return _without_nothing({"type": kind, "call_id": reply.call.id}) | more


def _without_nothing(item: Wire) -> Wire:
    """An id that the provider did not give is not made up."""
    return {name: value for name, value in item.items() if value is not None}


def _caller(call: ModelCall) -> Wire:
    return {} if call.caller is None else {"caller": call.caller}


def _output(reply: Reply) -> str | list[Wire]:
    """A text; with files, a list of parts."""
    blocks = [_text(_failed(reply.error))] if reply.error else []
    blocks += [block for part in reply.parts if (block := _block(part)) is not None]
    if all(block["type"] == "input_text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or reply_content.NO_OUTPUT
    return blocks


def _said(reply: Reply) -> str:
    """All of it as text, for items that have no room for files."""
    kept = [reply_content.placeholder(file) for file in reply_content.media_of(reply)]
    return "\n".join(text for text in (reply_content.text_of(reply), *kept) if text)


def _block(part: Part) -> Wire | None:
    if isinstance(part, Media):
        return _file(part) or _text(reply_content.placeholder(part))
    said = reply_content.part_text(part)
    return _text(said) if said else None


def _file(media: Media) -> Wire | None:
    """A file as the provider takes it, if it does."""
    kind = media.mime.partition(";")[0].strip().lower()
    url = media.url if media.url and media.url.startswith(("https://", "http://")) else None
    if kind in IMAGES:
        source = reply_content.data_url(media) if media.data is not None else url
        return None if source is None else {"type": "input_image", "image_url": source}
    if not kind.startswith(FILES):
        return None
    if media.data is not None:
        return {"type": "input_file", "filename": media.name or "file", "file_data": reply_content.data_url(media)}
    return None if url is None else {"type": "input_file", "file_url": url}


def _failed(error: Failure) -> str:
    return f"[ERROR:{error.code}] {error.message}"


def _text(text: str) -> Wire:
    return {"type": "input_text", "text": text}


def _ends(reply: Reply, asked: int) -> list[CommandEnd]:
    """How each command ended. Those that never ran because the call failed say why."""
    ends = list(reply.commands)
    if reply.error is not None:
        return ends + [CommandEnd(stderr=_failed(reply.error), exit_code=1)] * (asked - len(ends))
    return ends or [CommandEnd(stdout=_said(reply), exit_code=0)]


def _ended(end: CommandEnd) -> Wire:
    outcome: Wire = {"type": "timeout"} if end.exit_code is None else {"type": "exit", "exit_code": end.exit_code}
    return {"stdout": end.stdout, "stderr": end.stderr, "outcome": outcome}


def _screenshot(reply: Reply) -> str | None:
    """The last image: how it looks after all that was done."""
    files = [_file(media) for media in reversed(reply_content.media_of(reply))]
    return next((file["image_url"] for file in files if file and file["type"] == "input_image"), None)


def _beside(reply: Reply) -> str | None:
    """What the item itself cannot tell."""
    if reply.call.type not in ("computer", "tool_search"):
        return None
    if reply.error is not None:
        return _failed(reply.error)
    if reply.call.type == "tool_search" or _screenshot(reply):
        return None
    return f"{NO_SCREENSHOT}\n{_said(reply)}".strip()
