"""Calls over HTTP: batch, list, read, cancel, result, output, events. Creating one is in `create_call.py`."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from app.api.auth import Reader, Runner, Services, ServicesDep, call_seen, session_named
from app.api.create_call import DEFAULT_WAIT, MAX_WAIT, call_response, trace_context, wait_with_client
from app.api.events import After, LastEventId, event_response
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem
from app.api.http.responses import json_response, list_response, page_response
from app.api.schemas import CALL_ID
from app.api.schemas.views import CallView, EventView, Page
from app.api.tickets import EventReader
from app.core.calls import Call, CallRequest, Status, note_calls
from app.core.errors import CallError, ToolUnavailable
from app.core.principals import Key
from app.core.results import Attachment, Result
from app.core.sessions import Session
from app.core.util.clocks import microseconds
from app.core.util.ids import earliest
from app.dispatch.live_calls import LiveCall, Suspended, committed_call
from app.runs.submit import BatchItem
from app.store import calls, outputs
from app.store.calls import CallFilter
from app.store.events import EventFilter

CallId = Annotated[str, Path(description="The call's id.", examples=[CALL_ID])]

router = APIRouter(prefix="/v1/calls", tags=["calls"], route_class=JsonRoute)

Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for the end; 0 answers at once.", examples=[0])
]
OUTPUT_LIMIT = 1024 * 1024
MAX_BATCH = 128
MAX_TIME = 16**14 - 1


def _require_date(value: Any) -> Any:
    """Without this, pydantic takes a bare number for seconds since 1970."""
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("an RFC 3339 time is needed, like 2026-01-31T12:00:00Z")
    return value


Time = Annotated[datetime, BeforeValidator(_require_date)]


Code = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_:.-]{0,63}$")]
Url = Annotated[str, StringConstraints(pattern=r"^(data:|https?://)")]
ALREADY_POSTED = "The result of this call was posted already; the first one stands."
STOPPING = "The service is stopping; post the result again later."


class PostedAttachment(BaseModel, extra="forbid"):
    """A file that goes along with a result."""

    type: Literal["file"] = Field(default="file", description="Always `file`.")
    mime: str = Field(min_length=1, max_length=256, description="Its media type.", examples=["image/png"])
    filename: str | None = Field(default=None, max_length=1024, description="Its name, if it has one.")
    url: Url = Field(description="A data URL or an HTTP URL.")


class PostedError(BaseModel, extra="forbid"):
    """Why the client could not run it, in a sentence the model can act on."""

    code: Code | None = Field(
        default=None, description="A stable name; by default `ToolUnavailable`.", examples=["ENOENT"]
    )
    message: str = Field(min_length=1, max_length=16_384, description="One sentence for the model.")


class ResultRequest(BaseModel, extra="forbid", strict=True):
    """The result of a call that the client ran. With an `error` the call fails, and the rest is its partial result."""

    output: str | None = Field(default=None, description="What the model reads.", examples=["12 °C, rain"])
    title: str | None = Field(default=None, max_length=1024, description="A short line for people.")
    metadata: dict[str, Any] | None = Field(default=None, description="Facts for the frontend.")
    structured: Any = Field(default=None, description="The result as data.")
    attachments: list[PostedAttachment] | None = Field(default=None, max_length=64, description="Files that go along.")
    error: PostedError | None = Field(default=None, description="Why it failed, if it did.")

    def outcome(self) -> Result | CallError:
        """The result or error the call ends with."""
        has_result = bool(self.model_fields_set - {"error"})
        result = Result(
            output=self.output or "",
            title=self.title or "",
            metadata=self.metadata or {},
            attachments=tuple(Attachment(**file.model_dump()) for file in self.attachments or ()),
            structured=self.structured,
        )
        if self.error is None:
            return result
        failed = ToolUnavailable if self.error.code in (None, ToolUnavailable.code) else CallError
        error = failed(self.error.message, result=result if has_result else None)
        error.code = self.error.code or error.code
        return error


def take_result(services: Services, call: Call, result: ResultRequest) -> LiveCall:
    """End a call that its client runs with this result. `call` is its stored record."""
    live = services.dispatcher.live_calls.get(call.id)
    if call.status is Status.RUNNING and call.deadline is None:
        raise Problem(409, "NotClientRun", f"{call.tool} is run by the service; clients cannot post its result.")
    if call.status is Status.PENDING:
        raise Problem(409, "CallNotRunning", "This call does not run yet; post its result when it does.")
    if live is None or isinstance(live.stop, Suspended):
        if not call.is_final and services.dispatcher.live_calls.is_draining:  # it continues after the next start
            raise Problem(503, "Stopping", STOPPING, {"Retry-After": "5"})
        raise Problem(409, "CallEnded", "This call has ended; its result stays as it is.")
    if not live.answer(result.outcome()):
        raise Problem(
            409, "CallEnded", ALREADY_POSTED if live.stop is None else f"This call was stopped: {live.stop.message}"
        )
    return live


class BatchRequest(BaseModel, extra="forbid"):
    """Several calls of one message."""

    calls: list[CallRequest] = Field(min_length=1, max_length=MAX_BATCH, description="The calls, in order.")


@router.post(
    "/batch",
    response_model=Page[CallView],
    responses={409: {"description": "The Idempotency-Key was used with another body for one of the calls."}},
)
async def create_call_batch(
    request: Request,
    batch: BatchRequest,
    key: Runner,
    services: ServicesDep,
    wait: Wait = DEFAULT_WAIT,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=256,
            description="Call i has the key `{key}/{i}`: when the batch is sent again, each accepted call is "
            "found again, and the others are made.",
        ),
    ] = None,
) -> Response:
    """Run several calls. They run in parallel where the gate allows; a writer keeps its place in the order.
    The response has them in order, each as it is after `wait` seconds. When the body of a call differs from the one
    its Idempotency-Key was used with, the response is 409 and none is made; only a single call that is being made
    with the key `{key}/{i}` at the same moment may be noticed too late for that."""
    sessions = await _sessions_of(request.headers, services, key, batch.calls)
    items = [BatchItem(call, session) for call, session in zip(batch.calls, sessions, strict=True)]
    lives = await services.runs.submit_batch(
        items, key, idempotency_key=idempotency_key, origin=trace_context(request.headers)
    )
    note_calls(request.scope, *(live.call.id for live in lives))
    to_cancel = [live for live, call in zip(lives, batch.calls, strict=True) if call.cancel_on_disconnect]
    await wait_with_client(request.receive, lives, wait, cancel_on_disconnect=to_cancel)
    views = [(await committed_call(services.engine, live)).view() for live in lives]
    return list_response(views)


@router.get("", response_model=Page[CallView])
async def list_calls(
    key: Reader,
    services: ServicesDep,
    session: Annotated[str | None, Query(description="Only calls of this session.")] = None,
    status: Annotated[Status | None, Query(description="Only calls with this status.")] = None,
    tool: Annotated[str | None, Query(description="Only calls of this tool.")] = None,
    message: Annotated[str | None, Query(description="Only calls of this model message.")] = None,
    since: Annotated[Time | None, Query(description="Only calls accepted at or after this time.")] = None,
    until: Annotated[Time | None, Query(description="Only calls accepted before this time.")] = None,
    cursor: Annotated[str | None, Query(max_length=64, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most calls on a page.")] = 50,
) -> Response:
    """The calls this key may see, newest first."""
    filter = CallFilter(
        principal=key.sees,
        session=session,
        status=status,
        tool=tool,
        message_id=message,
        since=_id_at(since),
        until=_id_at(until),
        before=cursor,
        session_filter=services.sessions.session_filter(key),
    )
    page = await calls.page(services.engine, filter, limit + 1)
    return page_response(page, limit, cursor=lambda call: call.id, view=Call.view)


@router.get("/{id}", response_model=CallView)
async def get_call(
    id: CallId,
    key: Reader,
    services: ServicesDep,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for the end.")] = 0,
) -> Response:
    """One call as it is now, or after waiting for its end."""
    call = await call_seen(services, key, id)
    if wait and not call.is_final:
        if live := services.dispatcher.live_calls.get(id):
            await live.wait(wait)
        call = await call_seen(services, key, id)  # without a live one it has ended meanwhile
    return json_response(call.view())


@router.post("/{id}/cancel", response_model=CallView)
async def cancel_call(id: CallId, key: Runner, services: ServicesDep) -> Response:
    """Stop a call. Idempotent: a call that has ended stays as it is. Answers within about 5 seconds."""
    await call_seen(services, key, id)
    live = services.dispatcher.live_calls.get(id)
    if live is not None:
        await services.dispatcher.cancel(live)
    return json_response((await call_seen(services, key, id)).view())


@router.post(
    "/{id}/result",
    response_model=CallView,
    responses={
        202: {"model": CallView, "description": "The result is accepted and not yet recorded."},
        409: {"description": "The call is not run by a client, does not run yet, or has ended."},
    },
)
async def post_call_result(
    request: Request, id: CallId, result: ResultRequest, key: Runner, services: ServicesDep
) -> Response:
    """Post the result of a call that the client runs itself; its `call.running` event has `client: true` and the
    deadline. The first result wins: a second one, or one after the deadline or a cancel, is 409. The response is sent
    when the end is recorded."""
    live = take_result(services, await call_seen(services, key, id), result)
    await live.wait(DEFAULT_WAIT)
    return await call_response(services, live, request.scope.get("root_path", ""))


@router.get(
    "/{id}/output",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "The requested bytes.",
            "headers": {
                "Toolcrib-Output-Total": {"description": "Bytes stored so far.", "schema": {"type": "integer"}},
                "Toolcrib-Output-Dropped": {
                    "description": "Bytes beyond the limit, which were not stored.",
                    "schema": {"type": "integer"},
                },
            },
        }
    },
)
async def get_call_output(
    id: CallId,
    key: Reader,
    services: ServicesDep,
    offset: Annotated[int, Query(ge=0, le=2**62, description="First byte to read.")] = 0,
    limit: Annotated[int, Query(ge=1, le=16 * OUTPUT_LIMIT, description="Most bytes to read.")] = OUTPUT_LIMIT,
) -> Response:
    """The whole output, untruncated, also while the call runs. A range may cut a character in two."""
    call = await call_seen(services, key, id)
    total = await outputs.size(services.engine, id)
    if total:
        data = await outputs.read(services.engine, id, offset, limit)
    else:
        whole = _output_of(call)
        total, data = len(whole), whole[offset : offset + limit]
    live = services.dispatcher.live_calls.get(id)
    dropped = live.record.spool.dropped if live and live.record.spool else call.output_dropped
    headers = {"Toolcrib-Output-Total": str(total), "Toolcrib-Output-Dropped": str(dropped)}
    return Response(data, headers=headers, media_type="text/plain; charset=utf-8")


@router.get("/{id}/events", response_model=Page[EventView], responses={200: {"content": {"text/event-stream": {}}}})
async def list_call_events(
    request: Request,
    id: CallId,
    key: EventReader,
    services: ServicesDep,
    after: After = None,
    last_event_id: LastEventId = None,
    output_after: Annotated[
        int, Query(ge=0, le=2**62, description="Replay output of a running call from this byte on.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500, description="Most events on a JSON page.")] = 100,
) -> Response:
    """The call's events from the first (or after `after`) to its last, as a stream that ends with the call."""
    call = await call_seen(services, key, id)
    filter = EventFilter(principal=call.principal, call=id)
    start = (after if after is not None else last_event_id) or 0
    return await event_response(request, services, key, filter, after=start, limit=limit, output_after=output_after)


async def _sessions_of(
    headers: Mapping[str, str], services: Services, key: Key, batch: list[CallRequest]
) -> list[Session]:
    """The session of each call, all of which existed at one moment."""
    while True:
        departures = services.sessions.departures
        named = headers.get("toolcrib-session")
        sessions = [await session_named(services, key, call.session or named) for call in batch]
        if departures == services.sessions.departures:
            return sessions


def _id_at(time: datetime | None) -> str | None:
    """The smallest id of a call made at this time. Ids start in 1970 and have a largest time."""
    if time is None:
        return None
    return earliest("call", min(max(microseconds(time), 0), MAX_TIME))


def _output_of(call: Call) -> bytes:
    """The output of a call that is stored in its result only, because it is short. A call whose program wrote nothing
    has none, though its result says how it ended."""
    result = json.loads(call.result) if call.result is not None else None
    if result is None or result["metadata"].get("original_size") == 0:
        return b""
    return str(result["output"]).encode("utf-8", "replace")
