"""Runs over HTTP: a model's own message in, exactly what to append to the conversation out."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request
from fastapi.responses import Response

from app.api import batches, messages
from app.api.access import Reader, Runner, Use, Used
from app.api.bodies import JSON, JsonRoute
from app.api.calls import Wait
from app.api.problems import not_found
from app.api.run_answers import Letter, answer_of, lives_of
from app.api.run_examples import MESSAGE
from app.api.run_options import RunOptions, Wanted
from app.api.run_shapes import ParsedView, RunView
from app.api.run_streams import stream
from app.api.run_submissions import Begun, Message, begin
from app.api.submissions import session_of
from app.core.calls import note_calls
from app.core.jsons import dumps
from app.core.principals import Key
from app.core.sessions import Session

router = APIRouter(prefix="/v1", tags=["runs"], route_class=JsonRoute)

RunName = Annotated[
    str, Path(max_length=128, description="To run: a dialect, or `auto`. To read: the run's id.", examples=["auto"])
]
DialectName = Annotated[str, Path(max_length=128, description="A dialect, or `auto`.", examples=["openai-chat"])]
MessageBody = Annotated[
    Any,
    Body(
        description="The whole response of the provider, the assistant's message, the bare list of its calls, or the "
        "chunks of a finished stream; for the text dialects `{text}`.",
        examples=[MESSAGE],
    ),
]
PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": RunView, "description": "Some calls are not at their end: ask again."},
    200: {"content": {"text/event-stream": {}}},
    409: {"description": "The Idempotency-Key was used with another body."},
}


@router.post("/run/{name}", response_model=RunView, responses=PENDING)
async def create_run(
    request: Request, name: RunName, message: MessageBody, key: Runner, use: Used, wanted: Wanted
) -> Response:
    """Run all calls of a model's message. Every call gets exactly one answer, in the order of the message; they run in
    parallel where the gate allows. A message that comes again gets the answer it got, and nothing is run twice.
    With `Accept: text/event-stream` the calls' events are streamed, then `append` with the whole answer."""
    where = await session_of(request.headers, use, key, None)
    dialect = messages.dialect_of(name, message)
    known = messages.known_to(use, where, key, dialect)
    reading = messages.read(dialect, message, known)
    received = Message(dialect, reading, messages.plan(dialect, reading, known, wanted.each))
    letter = Letter(dialect, _base(request), reading.items if wanted.is_replayed else ())
    if "text/event-stream" in request.headers.get("accept", ""):
        return await _stream(request, use, key, (where, received, letter), wanted)
    begun = await _begin(request, use, key, (where, received), wanted)
    await batches.attend(request.receive, begun.lives, begun.asked, wanted.wait)
    return await answer_of(request, use, begun, letter)


@router.get("/run/{name}", response_model=RunView, responses={202: PENDING[202]})
async def get_run(request: Request, name: RunName, key: Reader, use: Used, wait: Wait = 0) -> Response:
    """A run as it stands, or as it is after waiting for its calls: what to append to the conversation."""
    run = await use.runs.get(name, key.sees)
    if run is None or not await use.sessions.shows_records(key, run.principal, run.session):
        raise not_found(f"run {name}")
    lives = await lives_of(use, run)
    await batches.wait_for(lives, wait)
    letter = Letter(messages.dialect_of(run.dialect, None), _base(request))
    return await answer_of(request, use, Begun(run, lives), letter)


@router.post("/parse/{dialect}", response_model=ParsedView)
async def parse_message(
    request: Request, dialect: DialectName, message: MessageBody, key: Reader, use: Used
) -> Response:
    """Read the calls in a model's message, and run nothing."""
    where = await session_of(request.headers, use, key, None)
    spoken = messages.dialect_of(dialect, message)
    reading = messages.read(spoken, message, messages.known_to(use, where, key, spoken))
    found = {"dialect": spoken.name, "calls": [call.view() for call in reading.calls], "remaining_text": reading.text}
    return Response(dumps(found), media_type=JSON)


async def _begin(request: Request, use: Use, key: Key, received: tuple[Session, Message], wanted: RunOptions) -> Begun:
    begun = await begin(use, key, *received, headers=request.headers, idempotency_key=wanted.idempotency_key)
    note_calls(request.scope, *(live.call.id for live in begun.lives))
    return begun


async def _stream(
    request: Request, use: Use, key: Key, received: tuple[Session, Message, Letter], wanted: RunOptions
) -> Response:
    """The calls' own events as the answer. Without room for a stream there are no calls."""
    slot = use.streams.slot(key).take()
    try:
        begun = await _begin(request, use, key, received[:2], wanted)
        return await stream(use, key, begun, received[2], slot=slot, is_tied=wanted.is_tied)
    except BaseException:
        slot.give_back()
        raise


def _base(request: Request) -> str:
    """Where the service is found by who asks."""
    return str(request.base_url).rstrip("/")
