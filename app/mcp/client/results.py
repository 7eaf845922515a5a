"""A `CallToolResult` as a `Result`: no content is lost, and unknown content is not an error."""

import base64
import binascii
import mimetypes
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from app.core.results import MAX_ATTACHED_BYTES, Attachment, Result, attach
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import JsonRpcError

VIOLATION = "output_schema_violation"
CONTENT = "content"
"""The metadata field with the original blocks, unless they are a single text: each as `block`, with `attachment` as the
number of the attachment that holds its bytes."""
MAX_BLOCK_BYTES = 64 * 1024
"""Larger original blocks are not stored in the metadata; larger unknown blocks become attachments."""
EMPTY = "The tool returned nothing."
ANY_BYTES = "application/octet-stream"
MAX_EXCERPT = 300
MAX_STRUCTURED_BYTES = 4 * 1024 * 1024
MAX_DETAILS = 16 * 1024
EXTENSIONS = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "audio/wav": ".wav"}


Check = Callable[[Any], str | None]
"""Says how a value violates its schema; None when it is valid."""


def to_result(raw: Raw, title: str = "", check: Check | None = None) -> Result:
    """A `CallToolResult` as the model and the client see it. `check` is that of the tool's output schema."""
    builder = ResultBuilder()
    blocks = raw.get("content")
    for block in blocks if isinstance(blocks, list) else []:
        builder.add(block)
    structured = raw.get("structuredContent")
    encoded = b"" if structured is None else dumps(structured)
    if encoded and not builder.has_text:
        builder.add_line(encoded.decode())
    if check is not None and not raw.get("isError") and (problem := violation(structured, check)):
        builder.metadata[VIOLATION] = problem
    if isinstance(meta := raw.get("_meta"), dict) and meta:
        builder.metadata["_meta"] = meta
    if len(encoded) > MAX_STRUCTURED_BYTES:
        builder.attach_json(encoded, "structured.json", f"structured content of {len(encoded):,} bytes")
        structured = None
    return builder.result(title, structured)


def violation(structured: Any, check: Check) -> str | None:
    """How the structured content violates the tool's output schema, in a sentence."""
    if structured is None:
        return "The tool has an output schema, but returned no structured content."
    problem = check(structured)
    return problem and f"The structured content violates the tool's output schema: {problem}."


def error_details(error: JsonRpcError) -> Raw:
    """A server's error as the call stores it; large data is left out."""
    size = len(dumps(error.data))
    data = error.data if size <= MAX_DETAILS else f"[{size:,} bytes, too large to store]"
    return {"code": error.code, "message": error.message[:MAX_DETAILS], "data": data}


def excerpt(text: str) -> str:
    """The beginning of a text as one line, short enough for an error message."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_EXCERPT else line[: MAX_EXCERPT - 1].rstrip() + "…"


class ResultBuilder:
    """Builds a result from content blocks."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.has_text = False
        self._lines: list[str] = []
        self._attachments: list[Attachment] = []
        self._blocks: list[Raw] = []
        self._room = MAX_ATTACHED_BYTES

    def add(self, block: Any) -> None:
        number = len(self._attachments)
        self._read(block)
        kind = block.get("type") if isinstance(block, dict) else None
        is_attached = len(self._attachments) > number and kind in ("image", "audio", "resource")
        stored = {"block": _without_bytes(block), "attachment": number} if is_attached else {"block": block}
        self._blocks.append(stored)

    def _read(self, block: Any) -> None:
        match block:
            case {"type": "text", "text": str(text)}:
                self.has_text = True
                self.add_line(text)
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                mime = _mime(block, f"{kind}/*")
                name = f"{kind}{len(self._attachments) + 1}{_extension(mime)}"
                self._attach_base64(data, mime, name, f"{kind} of type {mime}")
            case {"type": "resource", "resource": dict(resource)}:
                self._embed(resource)
            case {"type": "resource_link", "uri": str(uri)}:
                self._add_link(block, uri)
            case _:
                self._add_unknown(block)

    def add_line(self, line: str) -> None:
        self._lines.append(line)

    def attach_json(self, data: bytes, name: str, what: str) -> None:
        """Attach JSON that is too large for its usual place."""
        if self._has_room(len(data), what):
            self._attachments.append(attach(data, "application/json", name))
            self.add_line(f"[The {what} is attached as {name}.]")

    def result(self, title: str, structured: Any) -> Result:
        if not self._lines:
            self.add_line(_attachment_summary(self._attachments) if self._attachments else EMPTY)
        is_single_text = [_is_text(stored["block"]) for stored in self._blocks] in ([], [True])
        if not is_single_text and len(dumps(self._blocks)) <= MAX_BLOCK_BYTES:
            self.metadata[CONTENT] = self._blocks
        return Result("\n".join(self._lines), title, self.metadata, tuple(self._attachments), structured)

    def _embed(self, resource: Raw) -> None:
        """An embedded resource: a text under its URI, or an attachment."""
        uri = str(resource.get("uri", ""))
        match resource:
            case {"text": str(text)}:
                self.has_text = True
                self.add_line(f"{uri}:\n{text}")
            case {"blob": str(data)}:
                self._attach_base64(data, _mime(resource, ANY_BYTES), file_name(uri), f"resource {uri}")
            case _:
                self._add_unknown({"type": "resource", "resource": resource})

    def _attach_base64(self, data: str, mime: str, name: str | None, what: str) -> None:
        """Attach bytes. Invalid base64, and bytes beyond the limit, are left out with a note."""
        encoded = "".join(data.split())
        try:
            size = len(base64.b64decode(encoded, validate=True))
        except (binascii.Error, ValueError):
            self._leave_out(what, "its base64 is invalid")
            return
        if self._has_room(size, what):
            self._attachments.append(Attachment(mime, f"data:{mime};base64,{encoded}", name))

    def _has_room(self, size: int, what: str) -> bool:
        if size > self._room:
            self._leave_out(
                what, f"it has {size:,} bytes, and all attachments of a call have at most {MAX_ATTACHED_BYTES:,}"
            )
            return False
        self._room -= size
        return True

    def _leave_out(self, what: str, why: str) -> None:
        self.add_line(f"[The {what} is left out: {why}.]")
        self.metadata.setdefault("left_out", []).append({"what": what, "reason": why})

    def _add_link(self, block: Raw, uri: str) -> None:
        description = block.get("description") or block.get("title") or block.get("name")
        self.add_line(f"[Resource {uri}{f': {description}' if description else ''}]")
        link = {name: value for name, value in block.items() if name != "type"}
        self.metadata.setdefault("resource_links", []).append(link)

    def _add_unknown(self, block: Any) -> None:
        kind = str(block.get("type") if isinstance(block, dict) else type(block).__name__)[:64]
        encoded = dumps(block)
        if len(encoded) > MAX_BLOCK_BYTES:
            self.attach_json(encoded, "content.json", f"content of the unknown type {kind}")
            return
        self.add_line(f"[Content of the unknown type {kind}; it is in the metadata.]")
        self.metadata.setdefault("unknown_content", []).append(block)


def blocks_of(result: Raw, data: Callable[[int], str]) -> list[Raw] | None:
    """The original blocks of a stored result, if they are stored and still match its output. `data` returns the
    attachment of a number in base64. A block that was left out or is unknown becomes the text about it."""
    stored_blocks = result["metadata"].get(CONTENT)
    if not isinstance(stored_blocks, list):
        return None
    builder = ResultBuilder()
    for stored in stored_blocks:
        builder.add(_with_bytes(stored, lambda number: ""))
    structured = result.get("structured")
    if structured is not None and not builder.has_text:
        builder.add_line(dumps(structured).decode())
    if builder.result("", None).output != result["output"]:
        return None  # truncated, or changed by a hook
    return [_with_bytes(stored, data) if _is_known(stored) else _as_text(stored["block"]) for stored in stored_blocks]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.keys() == {"type", "text"} and isinstance(block["text"], str)


def _is_known(stored: Raw) -> bool:
    match stored["block"]:
        case {"type": "text", "text": str()} | {"type": "resource_link", "uri": str()}:
            return True
        case {"type": "resource", "resource": {"text": str()}}:
            return True
    return "attachment" in stored


def _as_text(block: Any) -> Raw:
    builder = ResultBuilder()
    builder.add(block)
    return {"type": "text", "text": builder.result("", None).output}


def _without_bytes(block: Raw) -> Raw:
    if block["type"] != "resource":
        return {name: value for name, value in block.items() if name != "data"}
    return block | {"resource": {name: value for name, value in block["resource"].items() if name != "blob"}}


def _with_bytes(stored: Raw, data: Callable[[int], str]) -> Any:
    block = stored["block"]
    if "attachment" not in stored:
        return block
    encoded = data(stored["attachment"])
    if block["type"] != "resource":
        return block | {"data": encoded}
    return block | {"resource": block["resource"] | {"blob": encoded}}


def file_name(uri: str) -> str | None:
    """A file name for the resource of this URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    last = unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.netloc
    return "".join(char for char in last if char.isprintable() and char not in '/\\"')[:128] or None


def _mime(block: Raw, default: str) -> str:
    mime = block.get("mimeType")
    is_plain = isinstance(mime, str) and mime.isascii() and mime.isprintable() and "," not in mime and ";" not in mime
    return mime.strip() if isinstance(mime, str) and is_plain and mime.strip() else default.replace("/*", "/x-unknown")


def _extension(mime: str) -> str:
    return EXTENSIONS.get(mime) or mimetypes.guess_extension(mime, strict=False) or ""


def _attachment_summary(attachments: list[Attachment]) -> str:
    count = "a file" if len(attachments) == 1 else f"{len(attachments)} files"
    return f"The tool returned {count}, attached: " + ", ".join(one.filename or one.mime for one in attachments)
