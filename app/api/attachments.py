"""Attachments of results over HTTP, whether in the result as data URLs or stored beside it."""

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncEngine

from app.api.auth import Reader, Services, ServicesDep, call_seen
from app.api.calls import CallId
from app.api.http import ranges
from app.api.http.problems import Problem, not_found
from app.api.http.ranges import Download, FileInfo, ReadChunks
from app.core.principals import Key
from app.core.results import data_of
from app.store import outputs
from app.store.outputs import ATTACHMENT_ROW_BYTES as ROW

router = APIRouter(prefix="/v1/calls", tags=["calls"])

Number = Annotated[int, Path(ge=0, le=2**31, description="Its place in the list; the first is 0.", examples=[0])]
DOWNLOAD: dict[str, Any] = {
    "response_class": Response,
    "responses": ranges.RESPONSES,
    "dependencies": [Depends(ranges.conditions)],
}
OTHER_CALL = re.compile(r"(?:/[^?#]*)?/v1/calls/(call_[0-9a-f]+)/attachments/(\d{1,9})")
"""The URL of another call's attachment, which a tool has put into its own result."""


@router.get("/{id}/attachments/{n}", **DOWNLOAD)
async def get_call_attachment(request: Request, id: CallId, n: Number, key: Reader, services: ServicesDep) -> Response:
    """One attachment of a call's result as bytes, also one that the result has in a data URL. Ranges and conditions
    work; it never changes. Types that a browser would run are sent as attachments."""
    return await _respond(request, services, key, id, n)


@router.head("/{id}/attachments/{n}", **DOWNLOAD)
async def head_call_attachment(request: Request, id: CallId, n: Number, key: Reader, services: ServicesDep) -> Response:
    """The headers of an attachment, without its bytes."""
    return await _respond(request, services, key, id, n)


async def _respond(request: Request, services: Services, key: Key, id: str, n: int) -> Response:
    info, read_chunks = await _find(services, key, id, n)
    span = ranges.requested_span(request, info)
    if span is None or request.method == "HEAD":
        return ranges.headers_only(info, 304 if span is None else 200, {})
    return Download(info, span, read_chunks, lambda: None, {})


async def _find(
    services: Services, key: Key, id: str, n: int, *, is_origin: bool = False
) -> tuple[FileInfo, ReadChunks]:
    call = await call_seen(services, key, id)
    listed: list[dict[str, Any]] = json.loads(call.result)["attachments"] if call.result else []
    if n >= len(listed):
        raise not_found(f"attachment {n} of call {id}")
    mime, filename, url = (listed[n][name] for name in ("mime", "filename", "url"))
    sizes = await outputs.attachment_sizes(services.engine, id)
    if n in sizes:
        info = FileInfo(size=sizes[n], etag=f"{id}.{n}", mime=mime, filename=filename)
        return info, partial(_read_stored, services.engine, id, n)
    if not is_origin and (origin := OTHER_CALL.fullmatch(url)):
        return await _find(services, key, origin[1], int(origin[2]), is_origin=True)
    data = data_of(url)
    if data is None:
        raise Problem(404, "NotHere", f"Attachment {n} of call {id} is not stored here; its `url` says where it is.")
    return FileInfo(size=len(data), etag=f"{id}.{n}", mime=mime, filename=filename), partial(_slice, data)


async def _read_stored(engine: AsyncEngine, id: str, n: int, start: int, stop: int) -> AsyncIterator[bytes]:
    while start < stop:
        chunk = await outputs.read_attachment(engine, id, n, start, min(stop - start, ROW - start % ROW))
        if not chunk:
            return  # removed meanwhile, with its call
        yield chunk
        start += len(chunk)


async def _slice(data: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
    yield data[start:stop]
