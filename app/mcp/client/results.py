"""What a tool of an MCP server gave, as a `Result`: nothing of it is lost, and nothing odd in it is an error."""

import base64
import binascii
import mimetypes
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from app.core.results import MAX_ATTACHED_BYTES, Attachment, Result, attach
from app.core.util.json_codec import Raw, dumps

VIOLATION = "output_schema_violation"
CONTENT = "content"
"""Where the metadata has the blocks as they came, if they were more than one text: each as `block`, and `attachment`
where its bytes are attached under that number."""
MOST_KEPT = 64 * 1024
"""Bytes of blocks that are kept as they came; of those that are not known, a larger one is a file."""
NOTHING = "The tool gave nothing back."
ANY_BYTES = "application/octet-stream"
MOST_SAID = 300
MOST_STRUCTURED = 4 * 1024 * 1024
MOST_DETAILED = 16 * 1024
EXTENSIONS = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "audio/wav": ".wav"}


Check = Callable[[Any], str | None]
"""Says in which way a value is not as its schema wants it; None when it is."""


def read(raw: Raw, title: str = "", check: Check | None = None) -> Result:
    """A `CallToolResult` as the model and the frontend see it. `check` is that of the tool's output schema."""
    reading = ParsedResult()
    blocks = raw.get("content")
    for block in blocks if isinstance(blocks, list) else []:
        reading.take(block)
    structured = raw.get("structuredContent")
    written = b"" if structured is None else dumps(structured)
    if written and not reading.has_text:
        reading.say(written.decode())
    if check is not None and not raw.get("isError") and (wrong := violation(structured, check)):
        reading.metadata[VIOLATION] = wrong
    if isinstance(meta := raw.get("_meta"), dict) and meta:
        reading.metadata["_meta"] = meta
    if len(written) > MOST_STRUCTURED:
        reading.file(written, "structured.json", f"structured content of {len(written):,} bytes")
        structured = None
    return reading.result(title, structured)


def violation(structured: Any, check: Check) -> str | None:
    """What about it is not as the tool's output schema says, in a sentence."""
    if structured is None:
        return "The tool has an output schema, and gave no structured content."
    wrong = check(structured)
    return wrong and f"The structured content is not as the tool's output schema says: {wrong}."


def details(code: int, message: str, data: Any) -> Raw:
    """A server's error as the call keeps it. Somebody may say a lot with one."""
    size = len(dumps(data))
    kept = data if size <= MOST_DETAILED else f"[{size:,} bytes, which is too much to keep]"
    return {"code": code, "message": message[:MOST_DETAILED], "data": kept}


def sentence(text: str) -> str:
    """The beginning of a text, short enough for an error's message."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SAID else line[: MOST_SAID - 1].rstrip() + "…"


class ParsedResult:
    """Content blocks, put together one after the other."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.has_text = False
        self._lines: list[str] = []
        self._attached: list[Attachment] = []
        self._blocks: list[Raw] = []
        self._room = MAX_ATTACHED_BYTES

    def take(self, block: Any) -> None:
        before = len(self._attached)
        self._read(block)
        kind = block.get("type") if isinstance(block, dict) else None
        is_attached = len(self._attached) > before and kind in ("image", "audio", "resource")
        self._blocks.append({"block": _bare(block), "attachment": before} if is_attached else {"block": block})

    def _read(self, block: Any) -> None:
        match block:
            case {"type": "text", "text": str(text)}:
                self.has_text = True
                self.say(text)
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                mime = _mime(block, f"{kind}/*")
                self.attach(data, mime, f"{kind}{len(self._attached) + 1}{_extension(mime)}", f"{kind} of type {mime}")
            case {"type": "resource", "resource": dict(resource)}:
                self.embed(resource)
            case {"type": "resource_link", "uri": str(uri)}:
                self._link(block, uri)
            case _:
                self._keep(block)

    def say(self, line: str) -> None:
        self._lines.append(line)

    def embed(self, resource: Raw) -> None:
        """A resource: a text under its address, or a file."""
        uri = str(resource.get("uri", ""))
        match resource:
            case {"text": str(text)}:
                self.has_text = True
                self.say(f"{uri}:\n{text}")
            case {"blob": str(data)}:
                self.attach(data, _mime(resource, ANY_BYTES), file_name(uri), f"resource {uri}")
            case _:
                self._keep({"type": "resource", "resource": resource})

    def attach(self, data: str, mime: str, name: str | None, what: str) -> Attachment | None:
        """Something in base64. What it is not, and what there is no room for, is said and costs only itself."""
        try:
            size = len(base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):
            self.leave_out(what, "its base64 cannot be read")
            return None
        if size > self._room:
            self.leave_out(what, f"it has {size:,} bytes, and a call keeps {MAX_ATTACHED_BYTES:,} of all attachments")
            return None
        self._room -= size
        attached = Attachment(mime, f"data:{mime};base64,{''.join(data.split())}", name)
        self._attached.append(attached)
        return attached

    def file(self, data: bytes, name: str, what: str) -> None:
        """Something of JSON that is too large for where it would be otherwise."""
        if len(data) > self._room:
            self.leave_out(
                what, f"it has {len(data):,} bytes, and a call keeps {MAX_ATTACHED_BYTES:,} of all attachments"
            )
            return
        self._room -= len(data)
        self._attached.append(attach(data, "application/json", name))
        self.say(f"[The {what} is attached as {name}.]")

    def result(self, title: str, structured: Any) -> Result:
        if not self._lines:
            self.say(_count(self._attached) if self._attached else NOTHING)
        is_plain = [_is_text(kept["block"]) for kept in self._blocks] in ([], [True])
        if not is_plain and len(dumps(self._blocks)) <= MOST_KEPT:
            self.metadata[CONTENT] = self._blocks
        return Result("\n".join(self._lines), title, self.metadata, tuple(self._attached), structured)

    def leave_out(self, what: str, why: str) -> None:
        self.say(f"[The {what} is left out: {why}.]")
        self.metadata.setdefault("left_out", []).append({"what": what, "reason": why})

    def _link(self, block: Raw, uri: str) -> None:
        about = block.get("description") or block.get("title") or block.get("name")
        self.say(f"[Resource {uri}{f': {about}' if about else ''}]")
        link = {name: value for name, value in block.items() if name != "type"}
        self.metadata.setdefault("resource_links", []).append(link)

    def _keep(self, block: Any) -> None:
        kind = str(block.get("type") if isinstance(block, dict) else type(block).__name__)[:64]
        written = dumps(block)
        if len(written) > MOST_KEPT:
            self.file(written, "content.json", f"content of the kind {kind}, which is not known here,")
            return
        self.say(f"[Content of the kind {kind}, which is not known here; it is kept in the metadata.]")
        self.metadata.setdefault("unknown_content", []).append(block)


def blocks_of(result: Raw, data: Callable[[int], str]) -> list[Raw] | None:
    """The blocks of a result as they came, where they are kept and still say what the model reads. `data` gives what
    is attached under a number, in base64. What could not be kept, or is not known, is what was said of it."""
    kept = result["metadata"].get(CONTENT)
    if not isinstance(kept, list):
        return None
    again = ParsedResult()
    for one in kept:
        again.take(_whole(one, lambda number: ""))
    structured = result.get("structured")
    if structured is not None and not again.has_text:
        again.say(dumps(structured).decode())
    if again.result("", None).output != result["output"]:
        return None  # cut, or changed by a hook
    return [_whole(one, data) if _is_known(one) else _said(one["block"]) for one in kept]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.keys() == {"type", "text"} and isinstance(block["text"], str)


def _is_known(kept: Raw) -> bool:
    match kept["block"]:
        case {"type": "text", "text": str()} | {"type": "resource_link", "uri": str()}:
            return True
        case {"type": "resource", "resource": {"text": str()}}:
            return True
    return "attachment" in kept


def _said(block: Any) -> Raw:
    reading = ParsedResult()
    reading.take(block)
    return {"type": "text", "text": reading.result("", None).output}


def _bare(block: Raw) -> Raw:
    if block["type"] != "resource":
        return {name: value for name, value in block.items() if name != "data"}
    return block | {"resource": {name: value for name, value in block["resource"].items() if name != "blob"}}


def _whole(kept: Raw, data: Callable[[int], str]) -> Any:
    """A block with its bytes in it again."""
    block = kept["block"]
    if "attachment" not in kept:
        return block
    encoded = data(kept["attachment"])
    if block["type"] != "resource":
        return block | {"data": encoded}
    return block | {"resource": block["resource"] | {"blob": encoded}}


def file_name(uri: str) -> str | None:
    """What a file would be called that came from this address."""
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


def _count(attached: list[Attachment]) -> str:
    one = len(attached) == 1
    return f"The tool gave {'a file' if one else f'{len(attached)} files'}, attached here: " + ", ".join(
        item.filename or item.mime for item in attached
    )
