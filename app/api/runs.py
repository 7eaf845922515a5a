"""Runs over HTTP: a model's own message in, exactly what to append to the conversation out. Dialects."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.types import Receive
from starlette.types import Scope as ASGIScope

from app.api.auth import Reader, Services, ServicesDep, require_key, services_of, session_named
from app.api.calls import Wait
from app.api.create_call import DISCONNECTED, trace_context, wait_with_client
from app.api.http import body
from app.api.http.body import JSON, JsonRoute
from app.api.http.problems import invalid, not_found
from app.api.http.responses import json_response, list_response
from app.api.http.sse import EventStream
from app.api.schemas import EXAMPLES
from app.api.schemas.runs import MESSAGE, MESSAGE_BODY, PENDING, DialectView, ParsedView, RunOptions, RunView
from app.api.schemas.views import Page
from app.core.calls import note_calls
from app.core.errors import Canceled
from app.core.principals import Scope
from app.core.util.json_codec import dumps
from app.dispatch import idempotency
from app.dispatch.live_calls import committed_call
from app.providers import registry
from app.providers.registry import ALIASES
from app.runs import plan
from app.runs.plan import RunPlan
from app.runs.render import ResponseFormat, render_run
from app.runs.submit import StartedRun, wait_for_calls
from app.store.events import EventFilter

router = APIRouter(prefix="/v1", tags=["runs"], route_class=JsonRoute)

RunId = Annotated[str, Path(max_length=128, description="The run's id.", examples=[EXAMPLES["RunView"]["id"]])]
DialectName = Annotated[
    str,
    Path(
        max_length=128,
        description="A dialect, or `auto`.",
        json_schema_extra={"enum": [*registry.NAMES, registry.AUTO], "examples": ["openai-chat"]},
    ),
]
MessageBody = Annotated[Any, Body(description=MESSAGE_BODY, examples=[MESSAGE])]
DEFAULT_OPTIONS = RunOptions()


async def create_run(scope: ASGIScope, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Run all calls of a model's message. The fast path calls this without FastAPI's layers."""
    services = services_of(scope)
    key = require_key(headers, services, Scope.CALLS_RUN)
    options = _read_options(scope["query_string"])
    idempotency_key = headers.get("idempotency-key")
    if idempotency_key is not None:
        idempotency.check_key(idempotency_key)
    message = body.parse(await body.read(receive), headers.get("content-type", JSON))
    session = await session_named(services, key, headers.get("toolcrib-session"))
    dialect = plan.find_dialect(scope["path"].rpartition("/")[2], message)
    tools = plan.known_tools(services.dispatcher, services.listing, session, key, dialect)
    parsed = plan.read_message(dialect, message, tools)
    id, created_at = services.ids.new("run")
    message_id = plan.message_id(parsed, id, has_idempotency_key=idempotency_key is not None)
    calls = plan.plan_calls(dialect, parsed, tools, options.call_options() | {"message_id": message_id})
    run_plan = RunPlan(id=id, created_at=created_at, dialect=dialect, message=parsed, calls=calls)
    response_format = ResponseFormat(
        dialect, _base_url(scope, headers), parsed.items if options.replay == "full" else ()
    )
    is_stream = "text/event-stream" in headers.get("accept", "")
    slot = services.stream_slots.slot(key).take() if is_stream else None  # without a free slot no call is made
    try:
        started = await services.runs.submit_run(
            run_plan, session, key, idempotency_key=idempotency_key, origin=trace_context(headers)
        )
        if slot is not None:
            await _require_recorded(services, started)
    except BaseException:
        if slot is not None:
            slot.release()
        raise
    note_calls(scope, *(live.call.id for live in started.lives))
    cancel_on_disconnect = started.lives if options.cancel_on_disconnect else []
    if slot is None:
        await wait_with_client(receive, started.lives, options.wait, cancel_on_disconnect=cancel_on_disconnect)
        return await _run_response(scope, services, started, response_format)

    def cancel_calls() -> None:
        for live in cancel_on_disconnect:
            live.interrupt(Canceled(DISCONNECTED))

    frames = _run_events(services, started, response_format)
    return EventStream(frames, lambda: services.keyring.has(key.id), cancel_calls, None, slot)


@router.get("/run/{name}", response_model=RunView, responses={202: PENDING})
async def get_run(request: Request, name: RunId, key: Reader, services: ServicesDep, wait: Wait = 0) -> Response:
    """A run as it stands, or as it is after waiting for its calls: what to append to the conversation."""
    run = await services.runs.get(name, key.sees)
    if run is None or not await services.sessions.shows_records(key, run.principal, run.session):
        raise not_found(f"run {name}")
    lives = await services.runs.calls_of(run)
    await wait_for_calls(lives, wait)
    response_format = ResponseFormat(plan.find_dialect(run.dialect, None), _base_url(request.scope, request.headers))
    return await _run_response(request.scope, services, StartedRun(run, lives), response_format)


@router.post("/parse/{dialect}", response_model=ParsedView)
async def parse_message(
    request: Request, dialect: DialectName, message: MessageBody, key: Reader, services: ServicesDep
) -> Response:
    """Read the calls in a model's message, and run nothing."""
    session = await session_named(services, key, request.headers.get("toolcrib-session"))
    read_as = plan.find_dialect(dialect, message)
    tools = plan.known_tools(services.dispatcher, services.listing, session, key, read_as)
    parsed = plan.read_message(read_as, message, tools)
    view = {"dialect": read_as.name, "calls": [call.view() for call in parsed.calls], "remaining_text": parsed.text}
    return json_response(view)


@router.get("/dialects", response_model=Page[DialectView])
async def list_dialects(key: Reader) -> Response:
    """Every dialect, and every provider that speaks one of them in its own way."""
    views = []
    for name in registry.NAMES:
        dialect, alias = registry.find(name), ALIASES.get(name)
        assert dialect is not None, "every listed dialect exists"
        view = {"name": name, "title": dialect.title, "alias_of": alias and alias.dialect}
        views.append(view | asdict(dialect.supports))
    return list_response(views)


def _read_options(query: bytes) -> RunOptions:
    if not query:
        return DEFAULT_OPTIONS
    try:
        return RunOptions.model_validate(dict(QueryParams(query)))
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from None


def _base_url(scope: ASGIScope, headers: Mapping[str, str]) -> str:
    """The service's URL as the client sees it."""
    return f"{scope['scheme']}://{headers.get('host', 'localhost')}{scope.get('root_path', '')}"


async def _run_response(
    scope: ASGIScope, services: Services, started: StartedRun, response_format: ResponseFormat
) -> Response:
    view = await render_run(services.engine, started, response_format)
    if not view["pending"]:
        return json_response(view)
    headers = {"Location": f"{scope.get('root_path', '')}/v1/run/{started.run.id}"}
    return json_response(view, 202, headers)


async def _require_recorded(services: Services, started: StartedRun) -> None:
    for live in started.lives:
        await live.wait_open()
        if live.record.failure is not None and not live.is_open:
            await committed_call(services.engine, live)  # raises why it was not recorded


async def _run_events(
    services: Services, started: StartedRun, response_format: ResponseFormat
) -> AsyncGenerator[bytes, None]:
    """The events of all calls as one stream, then the run's response as `append`."""
    streams = []
    for live in started.lives:
        call_events = EventFilter(principal=live.call.principal, call=live.call.id)
        streams.append(services.hub.follow(services.engine, call_events, 0, output_after=0))
    async with aclosing(merge_streams(streams)) as frames:
        async for frame in frames:
            yield frame
    for live in started.lives:  # a client that was too slow for the events still gets the response
        await live.wait()
    yield b"event: append\ndata: %b\n\n" % dumps(await render_run(services.engine, started, response_format))


async def merge_streams(streams: Sequence[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """The items of all streams as they come, until the last stream has ended."""
    pending = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = pending.pop(task)
                with suppress(StopAsyncIteration):
                    item = task.result()
                    pending[asyncio.ensure_future(anext(stream))] = stream
                    yield item
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for stream in streams:
            await stream.aclose()
