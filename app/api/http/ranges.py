"""Downloads with conditions and ranges as in RFC 9110, and headers that keep a browser from running the content.

A request for one range gets it; a request for several gets the whole, which the RFC allows. Text and images may be
displayed, everything else is an attachment.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.problems import Problem
from app.api.http.sse import SEND_SECONDS, client_left

ANY_MIME = "application/octet-stream"
DISPLAYED = {"text/plain", "image/png", "image/jpeg", "image/gif", "image/webp"}
_MIME = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}( ?; ?charset=[\w-]{1,32})?", re.ASCII)
_RANGE = re.compile(r" *bytes *= *(\d{0,18}) *- *(\d{0,18}) *", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'(W/)?"([^"]*)"')
_NOT_IN_QUOTES = re.compile(r"[^ !#-\[\]-~]")

_BYTES = {
    "content": {"*/*": {}},
    "headers": {"ETag": {"description": "Its state.", "schema": {"type": "string"}}},
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _BYTES | {"description": "All of it."},
    206: _BYTES | {"description": "The requested range."},
    304: {"description": "The client has it already."},
    412: {"description": "It is not in the expected state."},
    416: {"description": "It has no such range."},
}
"""Responses of a download, besides the problems of its route."""

ReadChunks = Callable[[int, int], AsyncIterator[bytes]]
"""Reads the bytes from the first offset up to the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What is known of a file before it is read."""

    size: int
    etag: str
    mime: str
    filename: str | None = None
    modified: datetime | None = None

    @property
    def headers(self) -> dict[str, str]:
        mime = self.mime if _MIME.fullmatch(self.mime) else ANY_MIME
        modified = {} if self.modified is None else {"Last-Modified": format_datetime(self.modified, usegmt=True)}
        return modified | {
            "Content-Type": mime,
            "Content-Disposition": _disposition(mime, self.filename),
            "ETag": f'"{self.etag}"',
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, no-cache",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }


class Span(NamedTuple):
    """The bytes to send."""

    start: int
    stop: int


async def conditions(
    etags: Annotated[str | None, Header(alias="If-None-Match", description="ETags of what the client has.")] = None,
    expected: Annotated[str | None, Header(alias="If-Match", description="ETags one of which it must have.")] = None,
    since: Annotated[
        str | None, Header(alias="If-Modified-Since", description="Only if it changed after this HTTP date.")
    ] = None,
    until: Annotated[
        str | None, Header(alias="If-Unmodified-Since", description="Only if it did not change after this HTTP date.")
    ] = None,
    part: Annotated[str | None, Header(alias="Range", description="A part of it, as `bytes=0-99`.")] = None,
    same: Annotated[
        str | None, Header(alias="If-Range", description="The ETag or date for which the range counts.")
    ] = None,
) -> None:
    """The headers that `requested_span` reads, for the OpenAPI document."""


def requested_span(request: Request, info: FileInfo) -> Span | None:
    """The bytes a request asks for; None when the client has the current state already."""
    headers = request.headers
    if not _meets_preconditions(headers, info):
        raise Problem(412, "PreconditionFailed", f'It has changed: its ETag is "{info.etag}" now.')
    if _is_not_modified(headers, info):
        return None
    match = _RANGE.fullmatch(headers.get("range", "")) if request.method == "GET" else None
    if match is None or not any(match.groups()) or not _matches_if_range(headers.get("if-range"), info):
        return Span(0, info.size)
    return _span(*match.groups(), size=info.size)


def tags_of(header: str | None, *, is_weak_fine: bool = False) -> list[str] | None:
    """The entity tags of a condition; `*` stands for any. None when there is no condition."""
    if header is None:
        return None
    if header.strip() == "*":
        return ["*"]
    return [tag for weak, tag in _TAG.findall(header) if is_weak_fine or not weak]


def headers_only(info: FileInfo, status: int, headers: Mapping[str, str]) -> Response:
    """The response to HEAD (200), or for a client that has the current state (304)."""
    response = Response(status_code=status, headers=info.headers | dict(headers))
    response.headers["Content-Length"] = str(info.size)
    if status == 304:
        del response.headers["Content-Length"]
        del response.headers["Content-Type"]
    return response


class Download(Response):
    """Sends a span of bytes as fast as the client reads. `close` is always called at the end."""

    def __init__(
        self, info: FileInfo, span: Span, read_chunks: ReadChunks, close: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        is_part = span != (0, info.size)
        super().__init__(status_code=206 if is_part else 200, headers=info.headers | dict(headers))
        self.headers["Content-Length"] = str(span.stop - span.start)
        if is_part:
            self.headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{info.size}"
        self._span = span
        self._read_chunks = read_chunks
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        leave = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({pump, leave}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            leave.cancel()
            await asyncio.wait({pump, leave})
            self._close()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        """Ends the response early, which the client sees by the length, when the file was truncated meanwhile or the
        client reads nothing for a minute."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        left = self._span.stop - self._span.start
        with suppress(TimeoutError):
            async for chunk in self._read_chunks(*self._span):
                left -= len(chunk)
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if not left:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _meets_preconditions(headers: Mapping[str, str], info: FileInfo) -> bool:
    tags = tags_of(headers.get("if-match"))
    if tags is not None:
        return "*" in tags or info.etag in tags
    since = _date(headers.get("if-unmodified-since"))
    return since is None or info.modified is None or _second(info.modified) <= since


def _is_not_modified(headers: Mapping[str, str], info: FileInfo) -> bool:
    tags = tags_of(headers.get("if-none-match"), is_weak_fine=True)
    if tags is not None:
        return "*" in tags or info.etag in tags
    since = _date(headers.get("if-modified-since"))
    return since is not None and info.modified is not None and _second(info.modified) <= since


def _matches_if_range(condition: str | None, info: FileInfo) -> bool:
    """Whether the range belongs to the state the client has."""
    if condition is None:
        return True
    if '"' in condition:
        return info.etag in (tags_of(condition) or [])
    date = _date(condition)
    return date is not None and info.modified is not None and _second(info.modified) == date


def _span(first: str, last: str, *, size: int) -> Span:
    if first:
        start, stop = int(first), min(int(last) + 1 if last else size, size)
        is_backwards = bool(last) and int(last) < int(first)
    else:
        start, stop, is_backwards = max(size - int(last), 0), size, False
    if is_backwards:
        return Span(0, size)
    if start >= stop:
        message = f"There are no such bytes: it has {size}."
        raise Problem(416, "RangeNotSatisfiable", message, {"Content-Range": f"bytes */{size}"})
    return Span(start, stop)


def _date(header: str | None) -> datetime | None:
    """A date as in HTTP; what cannot be parsed is no condition."""
    try:
        date = parsedate_to_datetime(header or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def _disposition(mime: str, filename: str | None) -> str:
    """RFC 6266: an ASCII name, and the exact one in `filename*`."""
    kind = "inline" if mime.partition(";")[0].rstrip() in DISPLAYED else "attachment"
    name = (filename or "").rpartition("/")[2]
    if not name:
        return kind
    plain = _NOT_IN_QUOTES.sub("_", name)
    header = f'{kind}; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
