"""Runs over HTTP: a model's own message in, exactly what to append to the conversation out."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Request
from fastapi.responses import Response

from app.api import batches, messages
from app.api.access import Reader, Runner, Used
from app.api.bodies import JSON, JsonRoute
from app.api.calls import Wait
from app.api.problems import not_found
from app.api.run_examples import MESSAGE
from app.api.run_answers import Letter, answer_of, lives_of
from app.api.run_shapes import ParsedView, RunView
from app.api.run_streams import stream
from app.api.run_submissions import Begun, Message, begin
from app.api.submissions import DEFAULT_WAIT, session_of
from app.core.calls import note_calls
from app.core.jsons import dumps

router = APIRouter(prefix="/v1", tags=["runs"], route_class=JsonRoute)

RunName = Annotated[
    str, Path(max_length=128, description="To run: a dialect, or `auto`. To read: the run's id.", examples=["auto"])
]
DialectName = Annotated[
    str, Path(max_length=128, description="A dialect, or `auto`.", examples=["openai-chat"])
]
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
    request: Request,
    name: RunName,
    message: MessageBody,
    key: Runner,
    use: Used,
    wait: Wait = DEFAULT_WAIT,
    replay: Annotated[
        Literal["outputs", "full"],
        Query(description="openai-responses: append only the outputs, or the whole output list before them."),
    ] = "outputs",
    timeout: Annotated[
        float | None, Query(gt=0, le=86_400, description="Seconds each tool may run, instead of its own limit.")
    ] = None,
    ask_timeout: Annotated[
        float | None, Query(gt=0, le=604_800, description="Seconds a person has to answer what a call asks.")
    ] = None,
    on_ask: Annotated[
        Literal["wait", "deny"] | None, Query(description="`deny`: nobody is asked, and what would be is denied.")
    ] = None,
    cancel_on_disconnect: Annotated[
        bool, Query(description="Cancel the calls when the connection that made them closes.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=256,
            description="Needed only where the provider gives its calls no ids of their own.",
        ),
    ] = None,
) -> Response:
    """Run all calls of a model's message. Every call gets exactly one answer, in the order of the message; they run in
    parallel where the gate allows. A message that comes again gets the answer it got, and nothing is run twice.
    With `Accept: text/event-stream` the calls' events are streamed, then `append` with the whole answer."""
    where = await session_of(request.headers, use, key, None)
    dialect = messages.dialect_of(name, message)
    known = messages.known_to(use, where, key, dialect)
    reading = messages.read(dialect, message, known)
    options = {
        "timeout": timeout,
        "ask_timeout": ask_timeout,
        "on_ask": on_ask,
        "cancel_on_disconnect": cancel_on_disconnect,
    }
    received = Message(dialect, reading, messages.plan(dialect, reading, known, options))
    headers = request.headers
    letter = Letter(dialect, str(request.base_url).rstrip("/"), reading.items if replay == "full" else ())
    is_streamed = "text/event-stream" in headers.get("accept", "")
    slot = use.streams.slot(key)
    try:
        if is_streamed:
            slot.take()  # without room for a stream there is no call
        begun = await begin(use, key, where, received, headers=headers, idempotency_key=idempotency_key)
        note_calls(request.scope, *(live.call.id for live in begun.lives))
        if is_streamed:
            return await stream(use, key, begun, letter, slot=slot, is_tied=cancel_on_disconnect)
    except BaseException:
        slot.give_back()
        raise
    await batches.attend(request.receive, begun.lives, begun.asked, wait)
    return await answer_of(request, use, begun, letter)


@router.get("/run/{name}", response_model=RunView, responses={202: PENDING[202]})
async def get_run(request: Request, name: RunName, key: Reader, use: Used, wait: Wait = 0) -> Response:
    """A run as it stands, or as it is after waiting for its calls: what to append to the conversation."""
    run = await use.runs.get(name, key.sees)
    if run is None or not await use.sessions.shows_records(key, run.principal, run.session):
        raise not_found(f"run {name}")
    lives = await lives_of(use, run)
    await batches.wait_for(lives, wait)
    letter = Letter(messages.dialect_of(run.dialect, None), str(request.base_url).rstrip("/"))
    return await answer_of(request, use, Begun(run, lives), letter)


@router.post("/parse/{dialect}", response_model=ParsedView)
async def parse_message(request: Request, dialect: DialectName, message: MessageBody, key: Reader, use: Used) -> Response:
    """Read the calls in a model's message, and run nothing."""
    where = await session_of(request.headers, use, key, None)
    spoken = messages.dialect_of(dialect, message)
    reading = messages.read(spoken, message, messages.known_to(use, where, key, spoken))
    found = {"dialect": spoken.name, "calls": [call.view() for call in reading.calls], "remaining_text": reading.text}
    return Response(dumps(found), media_type=JSON)
