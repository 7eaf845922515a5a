"""Attachments over HTTP: the files that go along with a result, whether they are in it or kept beside it."""

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
from app.api.http.ranges import About, Download, Pieces
from app.core.calls import Call
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
PASSED_ON = re.compile(r"(?:/[^?#]*)?/v1/calls/(call_[0-9a-f]+)/attachments/(\d{1,9})")
"""An attachment of another call, which a tool has passed on."""


@router.get("/{id}/attachments/{n}", **DOWNLOAD)
async def get_call_attachment(request: Request, id: CallId, n: Number, key: Reader, services: ServicesDep) -> Response:
    """One attachment of a call's result as bytes, also one that the result has in a data URL. Ranges and conditions
    work; it never changes. Types that a browser would run come as files to be saved."""
    return await _answer(request, services, key, id, n)


@router.head("/{id}/attachments/{n}", **DOWNLOAD)
async def head_call_attachment(request: Request, id: CallId, n: Number, key: Reader, services: ServicesDep) -> Response:
    """What there is to know of an attachment, without its bytes."""
    return await _answer(request, services, key, id, n)


async def _answer(request: Request, services: Services, key: Key, id: str, n: int) -> Response:
    about, pieces = await _find(services, key, id, n)
    span = ranges.wanted(request, about)
    if span is None or request.method == "HEAD":
        return ranges.bare(about, 304 if span is None else 200, {})
    return Download(about, span, pieces, lambda: None, {})


async def _find(services: Services, key: Key, id: str, n: int, *, is_origin: bool = False) -> tuple[About, Pieces]:
    call = await call_seen(services, key, id)
    listed = _listed(call)
    if n >= len(listed):
        raise not_found(f"attachment {n} of call {id}")
    mime, filename, url = (listed[n][name] for name in ("mime", "filename", "url"))
    sizes = await outputs.attachment_sizes(services.engine, id)
    if n in sizes:
        about = About(size=sizes[n], etag=f"{id}.{n}", mime=mime, filename=filename)
        return about, partial(_stored, services.engine, id, n)
    if not is_origin and (origin := PASSED_ON.fullmatch(url)):
        return await _find(services, key, origin[1], int(origin[2]), is_origin=True)
    data = data_of(url)
    if data is None:
        raise Problem(404, "NotHere", f"Attachment {n} of call {id} is not kept here; its `url` says where it is.")
    return About(size=len(data), etag=f"{id}.{n}", mime=mime, filename=filename), partial(_held, data)


def _listed(call: Call) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(call.result)["attachments"] if call.result else []
    return listed


async def _stored(engine: AsyncEngine, id: str, n: int, start: int, stop: int) -> AsyncIterator[bytes]:
    while start < stop:
        piece = await outputs.read_attachment(engine, id, n, start, min(stop - start, ROW - start % ROW))
        if not piece:
            return  # removed meanwhile, with its call
        yield piece
        start += len(piece)


async def _held(data: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
    yield data[start:stop]
