"""Files over HTTP: every request is a call, with the opener, the rules, the gate and the record that calls have."""

import json
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response

from app.api.file_calls import FilePath, Transfer, Transferred, pieces
from app.api.http import ranges
from app.api.http.problems import CALL, Problem, of_call, problem_of_call
from app.api.http.ranges import About, Download, Span, tags_of
from app.api.http.responses import json_response
from app.api.schemas.views import CallView, FileView, Page, WrittenFileView
from app.core.calls import Call

router = APIRouter(prefix="/v1/sessions", tags=["files"])

TRIES = 2
"""How often a file is looked at that changes before it can be read."""

IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="Only if the file has one of these ETags; `*` is any.")
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="Only if it has none of these ETags; `*`: only a new file.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="The same key and request give the same call, however often it is sent.",
    ),
]
_NAMED = {CALL: {"description": "The call this request became.", "schema": {"type": "string"}}}
LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": CallView, "description": "The call waits, mostly for a person.", "headers": _NAMED},
    409: {"description": "There is a folder, or a file where a folder is needed, or it changed meanwhile."},
    504: {"description": "The call took too long."},
}
CONDITIONAL: dict[int | str, dict[str, Any]] = {412: {"description": "The file is not in the state that was expected."}}
PUT: dict[int | str, dict[str, Any]] = {
    200: {"description": "It was written over.", "headers": _NAMED},
    201: {"model": WrittenFileView, "description": "It is new.", "headers": _NAMED},
    507: {"description": "There is no room for it."},
}
BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}
DOWNLOAD: dict[str, Any] = {
    "response_class": Response,
    "responses": LATER | ranges.RESPONSES,
    "dependencies": [Depends(ranges.conditions)],
}


@router.get("/{id}/files", response_model=Page[FileView], responses=LATER)
async def list_files(
    transfer: Transferred,
    path: Annotated[str, Query(min_length=1, description="The folder.", examples=["."])] = ".",
    depth: Annotated[int, Query(ge=1, le=64, description="How many levels of folders to go down.")] = 1,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most entries on a page.")] = 100,
) -> Response:
    """What is in a folder of the session's workspace, each folder followed by what is in it. A call of `list_files`."""
    call = await transfer.call("list_files", {"path": path, "depth": depth, "after": cursor, "limit": limit})
    if not call.is_final:
        return transfer.later(call)
    found = _result(call)["structured"]
    page = {"data": found["entries"], "next_cursor": found["next"]}
    return json_response(page, headers={CALL: call.id})


@router.get("/{id}/files/{path:any_path}", **DOWNLOAD)
async def get_file(transfer: Transferred, path: FilePath) -> Response:
    """A file, whole or a range of it. A call of `get_file`: where a rule asks, the answer is 202 when nobody said
    yes within `wait` seconds; asked for again later, it is another call. Types that a browser would run come as plain
    text or as files to be saved."""
    return await _download(transfer, path)


@router.head("/{id}/files/{path:any_path}", **DOWNLOAD)
async def head_file(transfer: Transferred, path: FilePath) -> Response:
    """What there is to know of a file, without its bytes. A call of `get_file`."""
    return await _download(transfer, path)


@router.put(
    "/{id}/files/{path:any_path}",
    response_model=WrittenFileView,
    responses=LATER | CONDITIONAL | PUT,
    openapi_extra=BODY,
)
async def put_file(
    transfer: Transferred,
    path: FilePath,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Write a file, all of it or nothing; folders are made where they are missing. The body is the file, any bytes,
    `file_limit` at most. A call of `put_file`: where a rule asks, the upload is kept until somebody has answered, and
    is written then, whether anybody waits for it or not."""
    upload = await transfer.receive()
    states = {
        "if_match": tags_of(if_match),
        "if_none_match": tags_of(if_none_match, is_weak_fine=True),
    }
    about = {"path": path, "size": upload.size, "sha256": upload.sha256} | _given(states)
    call = await transfer.call("put_file", about, upload=upload.id, idempotency_key=idempotency_key)
    if not call.is_final:
        return transfer.later(call)
    facts = _result(call, is_conditional=bool(_given(states)))["metadata"]
    view = {"type": "file", "call": call.id} | {name: facts[name] for name in ("path", "size", "modified", "etag")}
    headers = {CALL: call.id, "ETag": f'"{facts["etag"]}"'}
    if not facts["created"]:
        return json_response(view, headers=headers)
    prefix = transfer.request.scope.get("root_path", "")
    headers["Location"] = f"{prefix}/v1/sessions/{transfer.session.id}/files/{quote(facts['path'])}"
    return json_response(view, 201, headers)


@router.delete("/{id}/files/{path:any_path}", status_code=204, responses=LATER | CONDITIONAL)
async def delete_file(
    transfer: Transferred, path: FilePath, if_match: IfMatch = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Delete a file; a folder is 409. A call of `delete_file`."""
    states = _given({"if_match": tags_of(if_match)})
    call = await transfer.call("delete_file", {"path": path} | states, idempotency_key=idempotency_key)
    if not call.is_final:
        return transfer.later(call)
    _result(call, is_conditional=bool(states))
    return Response(status_code=204, headers={CALL: call.id})


async def _download(transfer: Transfer, path: str) -> Response:
    for _ in range(TRIES):
        call = await transfer.call("get_file", {"path": path})
        if not call.is_final:
            return transfer.later(call)
        about, named = _about(call, path), {CALL: call.id}
        span = _wanted(transfer, call, about)
        if span is None or transfer.request.method == "HEAD":
            return ranges.bare(about, 304 if span is None else 200, named)
        file = await transfer.open(path, about.etag)
        if file is not None:
            return Download(about, span, partial(pieces, file), file.close, named)
    raise of_call(call, Problem(409, "ESTALE", "The file changes faster than it can be read; try again."))


def _wanted(transfer: Transfer, call: Call, about: About) -> Span | None:
    try:
        return ranges.wanted(transfer.request, about)
    except Problem as problem:
        raise of_call(call, problem) from None


def _about(call: Call, path: str) -> About:
    facts = _result(call)["metadata"]
    try:
        modified = datetime.fromisoformat(facts["modified"])
    except ValueError:  # in a year that Python does not know
        modified = None
    return About(size=facts["size"], etag=facts["etag"], mime=facts["mime"], filename=path, modified=modified)


def _result(call: Call, *, is_conditional: bool = False) -> dict[str, Any]:
    """What came of a call; its failure is the answer to the request."""
    if call.error is not None or call.result is None:
        raise problem_of_call(call, is_conditional=is_conditional)
    result: dict[str, Any] = json.loads(call.result)
    return result


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
