"""Files over HTTP: every request is a call, with the opener, rules, gate and record of a call.

The bytes do not pass through the call: an upload is spooled before it, a download is read from the file after it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote, unquote_to_bytes

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Receive

from app.api.auth import Runner, Services, ServicesDep, session_seen
from app.api.calls import Wait
from app.api.create_call import DEFAULT_WAIT, trace_context
from app.api.http import ranges
from app.api.http.problems import CALL_HEADER, Problem, of_call, problem_of_call, problem_of_code
from app.api.http.ranges import Download, FileInfo, tags_of
from app.api.http.responses import json_response, pending_response
from app.api.schemas.views import CallView, FileView, Page, WrittenFileView
from app.api.sessions import Principal, SessionId
from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import CallError, Refusal
from app.core.ports import Stamp, Upload, Workspace
from app.core.principals import Key
from app.core.sessions import Session
from app.dispatch import idempotency
from app.dispatch.live_calls import committed_call
from app.dispatch.uploads import discard_at_end

router = APIRouter(prefix="/v1/sessions", tags=["files"])

CHUNK_BYTES = 128 * 1024
MAX_TRIES = 2
"""How often a file that changes before it can be read is looked up."""

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
        max_length=idempotency.MAX_KEY_LENGTH,
        description="The same key and request give the same call, however often it is sent.",
    ),
]
_CALL_HEADER = {CALL_HEADER: {"description": "The call this request became.", "schema": {"type": "string"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": CallView, "description": "The call waits, mostly for a person.", "headers": _CALL_HEADER},
    409: {"description": "There is a folder, or a file where a folder is needed, or it changed meanwhile."},
    504: {"description": "The call took too long."},
}
CONDITIONAL: dict[int | str, dict[str, Any]] = {412: {"description": "The file is not in the expected state."}}
PUT: dict[int | str, dict[str, Any]] = {
    200: {"description": "An existing file was overwritten.", "headers": _CALL_HEADER},
    201: {"model": WrittenFileView, "description": "The file is new.", "headers": _CALL_HEADER},
    507: {"description": "There is no space left for it."},
}
BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}
DOWNLOAD: dict[str, Any] = {
    "response_class": Response,
    "responses": RESPONSES | ranges.RESPONSES,
    "dependencies": [Depends(ranges.conditions)],
}


class AnyPath(Convertor[str]):
    """A path that may contain line breaks, as file names may."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_path", AnyPath())


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A request about files of a session that its key may see."""

    request: Request
    services: Services
    key: Key
    session: Session
    wait: float

    async def run(
        self, tool: str, arguments: dict[str, Any], *, upload: str | None = None, idempotency_key: str | None = None
    ) -> Call:
        """Submit the call of this request and wait for its end, `wait` seconds at most.

        The content of an upload counts for an Idempotency-Key, the upload's id does not.
        """
        dispatcher, call = self.services.dispatcher, CallRequest(tool=tool, arguments=arguments)
        claim = None if idempotency_key is None else idempotency.claim_of(idempotency_key, call, self.session)
        if upload is not None:
            call = CallRequest(tool=tool, arguments=arguments | {"upload": upload})
        origin = trace_context(self.request.headers)
        try:
            live = dispatcher.submit(call, self.session, key=self.key, claim=claim, origin=origin)
        except Refusal:
            if upload is not None:
                dispatcher.resources.uploads.discard(upload)
            raise
        if upload is not None:
            discard_at_end(dispatcher.resources.uploads, live, upload)
        if claim is not None:
            live = await idempotency.holder_of(dispatcher.live_calls, self.services.engine, live, claim)
        note_calls(self.request.scope, live.call.id)
        await live.wait(self.wait)
        return await committed_call(self.services.engine, live)

    async def spool_body(self) -> Upload:
        """The body, spooled to disk. A body that ends early leaves nothing behind."""
        uploads = self.services.dispatcher.resources.uploads
        try:
            upload = await asyncio.to_thread(uploads.begin)
        except CallError as error:
            raise problem_of_code(error.code, error.message) from None
        try:
            async for chunk in _body_chunks(self.request.receive):
                await asyncio.to_thread(upload.write, chunk)
            await asyncio.to_thread(upload.finish)
        except CallError as error:
            uploads.discard(upload.id)
            raise problem_of_code(error.code, error.message) from None
        except BaseException:
            uploads.discard(upload.id)
            raise
        return upload

    async def open(self, path: str, etag: str) -> BinaryIO | None:
        """The file that a call was allowed to read, if it still has the ETag the call saw."""
        try:
            return await asyncio.to_thread(_open_unchanged, self.services.workspaces.of(self.session), path, etag)
        except CallError:
            return None

    def pending(self, call: Call) -> Response:
        return pending_response(call, self.request.scope.get("root_path", ""))


async def _file_request(
    request: Request,
    id: SessionId,
    key: Runner,
    services: ServicesDep,
    principal: Principal = None,
    wait: Wait = DEFAULT_WAIT,
) -> FileRequest:
    session = await session_seen(services, key, id, principal)
    services.dispatcher.live_calls.require_accepting()
    return FileRequest(request, services, key, session, wait)


async def _file_path(
    request: Request,
    path: Annotated[str, Path(description="The file, from the workspace's root.", examples=["hello.txt"])],
) -> str:
    """Refuses a path that is not UTF-8: Starlette has replaced bytes in it, so it would name another file."""
    try:
        unquote_to_bytes(request.scope["raw_path"]).decode()
    except UnicodeDecodeError:
        raise Problem(422, "InvalidRequest", "path: only names in UTF-8 can be used over HTTP.") from None
    return path


FileRequestDep = Annotated[FileRequest, Depends(_file_request)]
FilePath = Annotated[str, Depends(_file_path)]


@router.get("/{id}/files", response_model=Page[FileView], responses=RESPONSES)
async def list_files(
    files: FileRequestDep,
    path: Annotated[str, Query(min_length=1, description="The folder.", examples=["."])] = ".",
    depth: Annotated[int, Query(ge=1, le=64, description="How many levels of folders to go down.")] = 1,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most entries on a page.")] = 100,
) -> Response:
    """The entries of a folder of the session's workspace, each folder followed by its entries. A call of
    `list_files`."""
    call = await files.run("list_files", {"path": path, "depth": depth, "after": cursor, "limit": limit})
    if not call.is_final:
        return files.pending(call)
    listed = _result(call)["structured"]
    page = {"data": listed["entries"], "next_cursor": listed["next"]}
    return json_response(page, headers={CALL_HEADER: call.id})


@router.get("/{id}/files/{path:any_path}", **DOWNLOAD)
async def get_file(files: FileRequestDep, path: FilePath) -> Response:
    """A file, whole or a range of it. A call of `get_file`: where a rule asks, the response is 202 when the person has
    not answered within `wait` seconds; a later request is another call. Types that a browser would run are sent as
    plain text or as attachments."""
    return await _download(files, path)


@router.head("/{id}/files/{path:any_path}", **DOWNLOAD)
async def head_file(files: FileRequestDep, path: FilePath) -> Response:
    """The headers of a file, without its bytes. A call of `get_file`."""
    return await _download(files, path)


@router.put(
    "/{id}/files/{path:any_path}",
    response_model=WrittenFileView,
    responses=RESPONSES | CONDITIONAL | PUT,
    openapi_extra=BODY,
)
async def put_file(
    files: FileRequestDep,
    path: FilePath,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Write a file, all of it or nothing; missing folders are created. The body is the file, any bytes, `file_limit`
    at most. A call of `put_file`: where a rule asks, the upload is stored until the person has answered, and is
    written then, whether the client still waits or not."""
    upload = await files.spool_body()
    tags = {"if_match": tags_of(if_match), "if_none_match": tags_of(if_none_match, is_weak_fine=True)}
    conditions = {name: value for name, value in tags.items() if value is not None}
    arguments = {"path": path, "size": upload.size, "sha256": upload.sha256} | conditions
    call = await files.run("put_file", arguments, upload=upload.id, idempotency_key=idempotency_key)
    if not call.is_final:
        return files.pending(call)
    facts = _result(call, is_conditional=bool(conditions))["metadata"]
    view = {"type": "file", "call": call.id} | {name: facts[name] for name in ("path", "size", "modified", "etag")}
    headers = {CALL_HEADER: call.id, "ETag": f'"{facts["etag"]}"'}
    if not facts["created"]:
        return json_response(view, headers=headers)
    prefix = files.request.scope.get("root_path", "")
    headers["Location"] = f"{prefix}/v1/sessions/{files.session.id}/files/{quote(facts['path'])}"
    return json_response(view, 201, headers)


@router.delete("/{id}/files/{path:any_path}", status_code=204, responses=RESPONSES | CONDITIONAL)
async def delete_file(
    files: FileRequestDep, path: FilePath, if_match: IfMatch = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Delete a file; a folder is 409. A call of `delete_file`."""
    tags = tags_of(if_match)
    arguments = {"path": path} if tags is None else {"path": path, "if_match": tags}
    call = await files.run("delete_file", arguments, idempotency_key=idempotency_key)
    if not call.is_final:
        return files.pending(call)
    _result(call, is_conditional=tags is not None)
    return Response(status_code=204, headers={CALL_HEADER: call.id})


async def _download(files: FileRequest, path: str) -> Response:
    for _ in range(MAX_TRIES):
        call = await files.run("get_file", {"path": path})
        if not call.is_final:
            return files.pending(call)
        info, headers = _file_info(call, path), {CALL_HEADER: call.id}
        try:
            span = ranges.requested_span(files.request, info)
        except Problem as problem:
            raise of_call(call, problem) from None
        if span is None or files.request.method == "HEAD":
            return ranges.headers_only(info, 304 if span is None else 200, headers)
        file = await files.open(path, info.etag)
        if file is not None:
            return Download(info, span, partial(_read_chunks, file), file.close, headers)
    raise of_call(call, Problem(409, "ESTALE", "The file changes faster than it can be read; try again."))


def _file_info(call: Call, path: str) -> FileInfo:
    facts = _result(call)["metadata"]
    try:
        modified = datetime.fromisoformat(facts["modified"])
    except ValueError:  # a year that Python's datetime does not have
        modified = None
    return FileInfo(size=facts["size"], etag=facts["etag"], mime=facts["mime"], filename=path, modified=modified)


def _result(call: Call, *, is_conditional: bool = False) -> dict[str, Any]:
    """The result of a call; raises its error as a problem."""
    if call.error is not None or call.result is None:
        raise problem_of_call(call, is_conditional=is_conditional)
    result: dict[str, Any] = json.loads(call.result)
    return result


async def _read_chunks(file: BinaryIO, start: int, stop: int) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, start)
    while start < stop:
        chunk = await asyncio.to_thread(file.read, min(CHUNK_BYTES, stop - start))
        if not chunk:
            return  # the file was truncated meanwhile
        yield chunk
        start += len(chunk)


async def _body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "BodyEndedEarly", "The upload ended early; nothing was written.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _open_unchanged(workspace: Workspace, path: str, etag: str) -> BinaryIO | None:
    file = workspace.open(path)
    if Stamp.of(os.fstat(file.fileno())).etag == etag:
        return file
    file.close()
    return None
