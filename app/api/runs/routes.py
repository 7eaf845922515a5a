"""Runs over HTTP: a model's own message in, exactly what to append to the conversation out.

Creating one is a plain Starlette route like that of a call, for the same reason; its OpenAPI entry is kept by hand in
`run_documents.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request
from fastapi.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app.api import batches
from app.api.auth import Reader, Services, ServicesDep, require_key, services_of
from app.api.calls import Wait
from app.api.create_call import session_of
from app.api.http import json_body
from app.api.http.json_body import JSON, JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.runs import messages
from app.api.runs.options import RunOptions, read_options
from app.api.runs.response import ResponseFormat, answer_of, lives_of
from app.api.runs.streams import stream
from app.api.runs.submit import ParsedRequest, StartedRun, begin
from app.api.schemas.runs import MESSAGE, MESSAGE_BODY, PENDING, RUN, ParsedView, RunView
from app.core.calls import note_calls
from app.core.principals import Key, Scope
from app.core.runs import ParsedMessage
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.idempotency import MOST
from app.providers import registry

router = APIRouter(prefix="/v1", tags=["runs"], route_class=JsonRoute)

RunId = Annotated[str, Path(max_length=128, description="The run's id.", examples=[RUN["id"]])]
DialectName = Annotated[
    str,
    Path(
        max_length=128,
        description="A dialect, or `auto`.",
        json_schema_extra={"enum": [*registry.NAMES, registry.AUTO], "examples": ["openai-chat"]},
    ),
]
MessageBody = Annotated[Any, Body(description=MESSAGE_BODY, examples=[MESSAGE])]


class CreateRun:
    """`POST /v1/run/{name}` as an ASGI endpoint, where the name is that of a dialect."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        # The first of a repeated header wins, as it does on every other route.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        response = await create_run(scope, receive, headers)
        await response(scope, receive, send)


async def create_run(scope: ASGIScope, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Run all calls of a model's message."""
    services = services_of(scope)
    key = require_key(headers, services, Scope.CALLS_RUN)
    wanted = read_options(scope["query_string"])
    _check_key(headers)
    message = json_body.parse(await json_body.read(receive), headers.get("content-type", JSON))
    where = await session_of(headers, services, key, None)
    dialect = messages.dialect_of(scope["path"].rpartition("/")[2], message)
    known = messages.known_to(services, where, key, dialect)
    reading = messages.read(dialect, message, known)
    id, at = services.ids.new("run")
    each = wanted.each() | {"message_id": _message_id(reading, headers, id)}
    received = ParsedRequest(id, at, dialect, reading, messages.plan(dialect, reading, known, each))
    letter = ResponseFormat(dialect, _base(scope, headers), reading.items if wanted.replay == "full" else ())
    if "text/event-stream" in headers.get("accept", ""):
        return await _stream((services, key), headers, (where, received, letter), wanted)
    begun = await begin(services, key, where, received, headers=headers)
    note_calls(scope, *(live.call.id for live in begun.lives))
    await batches.attend(receive, begun.lives, begun.asked, wanted.wait)
    return await answer_of(scope, services, begun, letter)


@router.get("/run/{name}", response_model=RunView, responses={202: PENDING})
async def get_run(request: Request, name: RunId, key: Reader, services: ServicesDep, wait: Wait = 0) -> Response:
    """A run as it stands, or as it is after waiting for its calls: what to append to the conversation."""
    run = await services.runs.get(name, key.sees)
    if run is None or not await services.sessions.shows_records(key, run.principal, run.session):
        raise not_found(f"run {name}")
    lives = await lives_of(services, run)
    await batches.wait_for(lives, wait)
    letter = ResponseFormat(messages.dialect_of(run.dialect, None), _base(request.scope, request.headers))
    return await answer_of(request.scope, services, StartedRun(run, lives), letter)


@router.post("/parse/{dialect}", response_model=ParsedView)
async def parse_message(
    request: Request, dialect: DialectName, message: MessageBody, key: Reader, services: ServicesDep
) -> Response:
    """Read the calls in a model's message, and run nothing."""
    where = await session_of(request.headers, services, key, None)
    spoken = messages.dialect_of(dialect, message)
    reading = messages.read(spoken, message, messages.known_to(services, where, key, spoken))
    found = {"dialect": spoken.name, "calls": [call.view() for call in reading.calls], "remaining_text": reading.text}
    return Response(dumps(found), media_type=JSON)


async def _stream(
    who: tuple[Services, Key],
    headers: Mapping[str, str],
    received: tuple[Session, ParsedRequest, ResponseFormat],
    wanted: RunOptions,
) -> Response:
    """The calls' own events as the answer. Without room for a stream there are no calls."""
    services, key = who
    where, message, letter = received
    slot = services.stream_slots.slot(key).take()
    try:
        begun = await begin(services, key, where, message, headers=headers)
        return await stream(services, key, begun, letter, slot=slot, is_tied=wanted.cancel_on_disconnect)
    except BaseException:
        slot.give_back()
        raise


def _check_key(headers: Mapping[str, str]) -> None:
    key = headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MOST:
        raise Problem(422, "InvalidRequest", f"Idempotency-Key: 1 to {MOST} characters are needed.")


def _message_id(reading: ParsedMessage, headers: Mapping[str, str], run: str) -> str | None:
    """The provider's, or the run's; not where the same calls may come again in what would be another run."""
    if reading.message_id:
        return reading.message_id[: messages.LONGEST]
    return None if "idempotency-key" in headers else run


def _base(scope: ASGIScope, headers: Mapping[str, str]) -> str:
    """Where the service is found by who asks."""
    return f"{scope['scheme']}://{headers.get('host', 'localhost')}{scope.get('root_path', '')}"
