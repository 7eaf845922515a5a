"""Outputs of the Responses API: one item per call, of the type that belongs to it."""

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
"""File types that the API accepts; any other fails the whole request."""
BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR42mNgAAIAAAUAAen63NgAAAAASUVORK5CYII="
)
"""A transparent pixel, for a missing screenshot."""
NO_SCREENSHOT = "There is no screenshot."
SEARCHED = ExportOptions(strict="off", defers=lambda name: True, quirks=QUIRKS)


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """One item per call; text that an item cannot have follows in a user message."""
    replies = merge(replies)
    items = [WRITERS[reply.call.type](reply) for reply in replies]
    notes = [{"type": "input_text", "text": text} for reply in replies if (text := _note(reply))]
    return [*items, {"type": "message", "role": "user", "content": notes}] if notes else items


def _custom(reply: Reply) -> Wire:
    output = _output(reply)
    for block in output if isinstance(output, list) else []:
        if block["type"] == "input_image":
            block["detail"] = "auto"  # required here only
    return _answer("custom_tool_call_output", reply, output=output) | _caller(reply.call)


def _apply_patch(reply: Reply) -> Wire:
    status, text = "failed" if reply.error else "completed", _text(reply)
    output = {"output": text} if text else {}
    return _answer("apply_patch_call_output", reply, status=status, **output) | _caller(reply.call)


def _shell(reply: Reply) -> Wire:
    arguments = reply.call.arguments or {}
    max_length = arguments.get("max_output_length")
    is_limit = isinstance(max_length, int) and not isinstance(max_length, bool)
    limit: Wire = {"max_output_length": max_length} if is_limit else {}
    ends = [
        limit_output(end, limit.get("max_output_length"))
        for end in _ends(reply, len(arguments.get("commands") or [None]))
    ]
    return _answer("shell_call_output", reply, output=[_ended(end) for end in ends], **limit) | _caller(reply.call)


def _local_shell(reply: Reply) -> Wire:
    end = _ends(reply, 1)[0]
    result: Wire = {"stdout": end.stdout, "stderr": end.stderr, "exit_code": end.exit_code}
    if end.exit_code is None:
        result["timed_out"] = True
    output = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    return _without_nulls({"type": "local_shell_call_output", "id": reply.call.id, "output": output})


def _computer(reply: Reply) -> Wire:
    """Pending safety checks are not acknowledged: a person has to."""
    output = {"type": "computer_screenshot", "image_url": _screenshot(reply) or BLANK}
    return _answer("computer_call_output", reply, output=output)


def _tool_search(reply: Reply) -> Wire:
    tools = [define(offer, SEARCHED, []) for offer in reply.tools]
    return _answer("tool_search_output", reply, execution="client", status="completed", tools=tools)


WRITERS: dict[str, Callable[[Reply], Wire]] = {
    "function": lambda reply: _answer("function_call_output", reply, output=_output(reply)) | _caller(reply.call),
    "custom": _custom,
    "apply_patch": _apply_patch,
    "shell": _shell,
    "local_shell": _local_shell,
    "computer": _computer,
    "tool_search": _tool_search,
}


def _answer(kind: str, reply: Reply, **more: Any) -> Wire:
    return _without_nulls({"type": kind, "call_id": reply.call.id}) | more


def _without_nulls(item: Wire) -> Wire:
    """A call without an id is answered without one."""
    return {name: value for name, value in item.items() if value is not None}


def _caller(call: ModelCall) -> Wire:
    return {} if call.caller is None else {"caller": call.caller}


def _output(reply: Reply) -> str | list[Wire]:
    """A text; with files, a list of parts."""
    blocks = [_text_block(_failed(reply.error))] if reply.error else []
    blocks += [block for part in reply.parts if (block := _block(part)) is not None]
    if all(block["type"] == "input_text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or reply_content.NO_OUTPUT
    return blocks


def _text(reply: Reply) -> str:
    """A reply as text, with placeholders for files."""
    placeholders = [reply_content.placeholder(file) for file in reply_content.media_of(reply)]
    return "\n".join(text for text in (reply_content.text_of(reply), *placeholders) if text)


def _block(part: Part) -> Wire | None:
    if isinstance(part, Media):
        return _file(part) or _text_block(reply_content.placeholder(part))
    text = reply_content.part_text(part)
    return _text_block(text) if text else None


def _file(media: Media) -> Wire | None:
    """A file as a block; None for unsupported types."""
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


def _text_block(text: str) -> Wire:
    return {"type": "input_text", "text": text}


def _ends(reply: Reply, count: int) -> list[CommandEnd]:
    """The ends of `count` commands. Commands that did not run have the error."""
    ends = list(reply.commands)
    if reply.error is not None:
        return ends + [CommandEnd(stderr=_failed(reply.error), exit_code=1)] * (count - len(ends))
    return ends or [CommandEnd(stdout=_text(reply), exit_code=0)]


def _ended(end: CommandEnd) -> Wire:
    outcome: Wire = {"type": "timeout"} if end.exit_code is None else {"type": "exit", "exit_code": end.exit_code}
    return {"stdout": end.stdout, "stderr": end.stderr, "outcome": outcome}


def _screenshot(reply: Reply) -> str | None:
    """The last image."""
    files = [_file(media) for media in reversed(reply_content.media_of(reply))]
    return next((file["image_url"] for file in files if file and file["type"] == "input_image"), None)


def _note(reply: Reply) -> str | None:
    """What the item itself cannot contain."""
    if reply.call.type not in ("computer", "tool_search"):
        return None
    if reply.error is not None:
        return _failed(reply.error)
    if reply.call.type == "tool_search" or _screenshot(reply):
        return None
    return f"{NO_SCREENSHOT}\n{_text(reply)}".strip()
