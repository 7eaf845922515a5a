"""Events over HTTP: a stream to follow, or a stored page to read."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from app.api.auth import Services, ServicesDep
from app.api.http.body import JSON
from app.api.http.problems import Problem, events_gone, forbidden
from app.api.http.responses import page_response
from app.api.http.sse import EventStream
from app.api.schemas.views import EventView, Page
from app.api.tickets import Watcher
from app.core.events import ASKS, EventType
from app.core.principals import Key, Scope
from app.store import events
from app.store.events import EventFilter

router = APIRouter(prefix="/v1/events", tags=["events"])

After = Annotated[int | None, Query(ge=0, le=2**62, description="Only events behind this sequence number.")]
_TYPE = f"({'|'.join(EventType)})".replace(".", r"\.")
TYPES = f"^ *{_TYPE} *(, *{_TYPE} *)*$"
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=2**62, description="What EventSource sends when it reconnects.")
]


@router.get(
    "",
    response_model=Page[EventView],
    responses={
        200: {"content": {"text/event-stream": {}}},
        410: {"description": "Events behind `after` were removed; `oldest` is the first that is left."},
    },
)
async def list_events(
    request: Request,
    key: Watcher,
    services: ServicesDep,
    session: Annotated[str | None, Query(description="Only events of this session.")] = None,
    types: Annotated[
        str | None,
        Query(
            description="Only these types, comma-separated; `*.output` comes only when named here.",
            json_schema_extra={"pattern": TYPES, "examples": ["call.completed,call.error"]},
        ),
    ] = None,
    after: After = None,
    last_event_id: LastEventId = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most events on a JSON page.")] = 100,
) -> Response:
    """Everything that happens, as it is committed. Without `after` or `Last-Event-ID` the stream starts now;
    with one of them it starts behind that event, without gap or repeat, or answers 410 with the `oldest` when
    events behind it were removed; `after=0` is everything that is stored. `Accept: application/json` answers
    with a stored page instead. A key that may only answer asks hears `ask.*` and nothing else."""
    named = _heard(key, _types(types))
    session_filter = await services.sessions.outlook(key)
    wanted = EventFilter(principal=key.sees, session=session, types=named, session_filter=session_filter)
    start = after if after is not None else last_event_id
    with_output = None if named is None or EventType.CALL_OUTPUT not in named else 0
    return await event_answer(request, services, key, wanted, after=start, limit=limit, output_after=with_output)


async def event_answer(
    request: Request,
    services: Services,
    key: Key,
    wanted: EventFilter,
    *,
    after: int | None,
    limit: int,
    output_after: int | None,
) -> Response:
    """A page of JSON for those who ask for it, a stream for everybody else."""
    if wanted.call is None and after is not None and services.hub.has_lost(after):
        raise events_gone(services.hub.floor + 1)
    if JSON in request.headers.get("accept", ""):
        page = await events.page(services.engine, wanted, after or 0, None, limit + 1)
        return page_response(page, limit, cursor=lambda row: str(row[0].seq), view=lambda row: row[0].view(row[1]))
    frames = services.hub.follow(services.engine, wanted, after, output_after=output_after)
    return EventStream(frames, lambda: services.keyring.has(key.id), slot=services.stream_slots.slot(key))


def _heard(key: Key, named: frozenset[EventType] | None) -> frozenset[EventType] | None:
    """The types that a key may hear of those that are named; None is all of them."""
    if key.may(Scope.CALLS_READ):
        return named
    if named is not None and not named <= ASKS:
        raise forbidden()
    return ASKS if named is None else named


def _types(given: str | None) -> frozenset[EventType] | None:
    if given is None:
        return None
    try:
        return frozenset(EventType(name.strip(" ")) for name in given.split(","))
    except ValueError as error:
        raise Problem(422, "InvalidRequest", f"types: {error}; known are {', '.join(EventType)}.") from None
