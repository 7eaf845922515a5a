"""Transfers: a request for a file as a call. The bytes pass beside it: into a spool before, out of the file after."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Request
from fastapi.responses import Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Receive

from app.api.auth import Runner, Services, ServicesDep, session_seen
from app.api.calls import Wait
from app.api.create_call import DEFAULT_WAIT, trace_context
from app.api.http.problems import CALL, Problem, problem_of_code
from app.api.http.responses import json_response
from app.api.sessions import Principal, SessionId
from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import CallError, Refusal
from app.core.ports import Stamp, Upload, Workspace
from app.core.principals import Key
from app.core.sessions import Session
from app.dispatch import idempotency
from app.dispatch.live_calls import LiveCall, committed_call
from app.dispatch.uploads import keep_until_end
from app.store.calls import Claim

PIECE = 128 * 1024


class AnyPath(Convertor[str]):
    """A path that may have line breaks in it, as names of files may."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_path", AnyPath())


@dataclass(frozen=True, slots=True)
class Transfer:
    """A request for files of a session that its key sees."""

    request: Request
    services: Services
    key: Key
    session: Session
    wait: float

    async def call(
        self, tool: str, arguments: dict[str, Any], *, upload: str | None = None, idempotency_key: str | None = None
    ) -> Call:
        """The call of this request, as it is when it has ended or was waited for long enough.

        Which upload holds the content makes no difference to an Idempotency-Key, what it holds does.
        """
        request = CallRequest(tool=tool, arguments=arguments)
        claim = None if idempotency_key is None else idempotency.claim_of(idempotency_key, request, self.session)
        if upload is not None:
            request = CallRequest(tool=tool, arguments=arguments | {"upload": upload})
        live = self._submit(request, claim, upload)
        if claim is not None:
            running = self.services.dispatcher.running
            live = await idempotency.holder_of(running, self.services.engine, live, claim)
        note_calls(self.request.scope, live.call.id)
        await live.wait(self.wait)
        return await committed_call(self.services.engine, live)

    def _submit(self, asked: CallRequest, claim: Claim | None, upload: str | None) -> LiveCall:
        dispatcher, origin = self.services.dispatcher, trace_context(self.request.headers)
        if upload is None:
            return dispatcher.submit(asked, self.session, key=self.key, claim=claim, origin=origin)
        try:
            live = dispatcher.submit(asked, self.session, key=self.key, claim=claim, origin=origin)
        except Refusal:
            dispatcher.uploads.discard(upload)
            raise
        keep_until_end(dispatcher.uploads, live, upload)
        return live

    async def receive(self) -> Upload:
        """The body, spooled. What ends early leaves nothing behind."""
        uploads = self.services.dispatcher.uploads
        try:
            upload = await asyncio.to_thread(uploads.begin)
        except CallError as error:
            raise problem_of_code(error.code, error.message) from None
        try:
            async for piece in _body(self.request.receive):
                await asyncio.to_thread(upload.write, piece)
            await asyncio.to_thread(upload.finish)
        except CallError as error:
            uploads.discard(upload.id)
            raise problem_of_code(error.code, error.message) from None
        except BaseException:
            uploads.discard(upload.id)
            raise
        return upload

    async def open(self, path: str, etag: str) -> BinaryIO | None:
        """The file that a call has looked at, if it still is that one: then it is also the one that was allowed."""
        try:
            return await asyncio.to_thread(_opened, self.services.workspaces.of(self.session), path, etag)
        except CallError:
            return None

    def later(self, call: Call) -> Response:
        """The answer while the call waits, for a person or its turn."""
        prefix = self.request.scope.get("root_path", "")
        headers = {"Location": f"{prefix}/v1/calls/{call.id}", CALL: call.id}
        return json_response(call.view(), 202, headers)


async def _transfer(
    request: Request,
    id: SessionId,
    key: Runner,
    services: ServicesDep,
    principal: Principal = None,
    wait: Wait = DEFAULT_WAIT,
) -> Transfer:
    session = await session_seen(services, key, id, principal)
    services.dispatcher.running.require_accepting()
    return Transfer(request, services, key, session, wait)


async def _file_path(
    request: Request,
    path: Annotated[str, Path(description="The file, from the workspace's root.", examples=["hello.txt"])],
) -> str:
    """What is not UTF-8 was mended on the way here, and would name another file."""
    try:
        unquote_to_bytes(request.scope["raw_path"]).decode()
    except UnicodeDecodeError:
        raise Problem(422, "InvalidRequest", "path: only names in UTF-8 can be used over HTTP.") from None
    return path


Transferred = Annotated[Transfer, Depends(_transfer)]
FilePath = Annotated[str, Depends(_file_path)]


async def pieces(file: BinaryIO, start: int, stop: int) -> AsyncIterator[bytes]:
    """What is in an open file, read beside the loop."""
    await asyncio.to_thread(file.seek, start)
    while start < stop:
        piece = await asyncio.to_thread(file.read, min(PIECE, stop - start))
        if not piece:
            return  # somebody cut it meanwhile
        yield piece
        start += len(piece)


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "BodyEndedEarly", "The file did not come whole; nothing was written.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _opened(workspace: Workspace, path: str, etag: str) -> BinaryIO | None:
    file = workspace.open(path)
    if Stamp.of(os.fstat(file.fileno())).etag == etag:
        return file
    file.close()
    return None
