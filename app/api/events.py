"""Events over HTTP: a live stream, or pages of stored events."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from app.api.auth import Services, ServicesDep
from app.api.http.body import JSON
from app.api.http.problems import Problem, events_gone, forbidden
from app.api.http.responses import page_response
from app.api.http.sse import EventStream
from app.api.schemas.views import EventView, Page
from app.api.tickets import EventReader
from app.core.events import ASKS, EventType
from app.core.principals import Key, Scope
from app.store import events
from app.store.events import EventFilter

router = APIRouter(prefix="/v1/events", tags=["events"])

After = Annotated[int | None, Query(ge=0, le=2**62, description="Only events after this sequence number.")]
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
        410: {"description": "Events after `after` were removed; `oldest` is the first that is left."},
    },
)
async def list_events(
    request: Request,
    key: EventReader,
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
    """All events as they are committed. Without `after` or `Last-Event-ID` the stream starts now; with one of them it
    starts after that event, without gap or repeat, or the response is 410 with the `oldest` when events after it were
    removed; `after=0` is everything that is stored. With `Accept: application/json` the response is a page of stored
    events instead. A key that may only answer asks gets `ask.*` and nothing else."""
    event_types = _visible_types(key, _read_types(types))
    session_filter = await services.sessions.live_filter(key)
    filter = EventFilter(principal=key.sees, session=session, types=event_types, session_filter=session_filter)
    start = after if after is not None else last_event_id
    with_output = 0 if event_types is not None and EventType.CALL_OUTPUT in event_types else None
    return await event_response(request, services, key, filter, after=start, limit=limit, output_after=with_output)


async def event_response(
    request: Request,
    services: Services,
    key: Key,
    filter: EventFilter,
    *,
    after: int | None,
    limit: int,
    output_after: int | None,
) -> Response:
    """A JSON page for `Accept: application/json`, else a stream."""
    if filter.call is None and after is not None and services.hub.has_lost(after):
        raise events_gone(services.hub.floor + 1)
    if JSON in request.headers.get("accept", ""):
        page = await events.page(services.engine, filter, after or 0, None, limit + 1)
        return page_response(page, limit, cursor=lambda row: str(row[0].seq), view=lambda row: row[0].view(row[1]))
    frames = services.hub.follow(services.engine, filter, after, output_after=output_after)
    return EventStream(frames, lambda: services.keyring.has(key.id), slot=services.stream_slots.slot(key))


def _visible_types(key: Key, types: frozenset[EventType] | None) -> frozenset[EventType] | None:
    """The types this key may see of those requested; None is all."""
    if key.may(Scope.CALLS_READ):
        return types
    if types is not None and not types <= ASKS:
        raise forbidden()
    return ASKS if types is None else types


def _read_types(text: str | None) -> frozenset[EventType] | None:
    if text is None:
        return None
    try:
        return frozenset(EventType(name.strip(" ")) for name in text.split(","))
    except ValueError as error:
        raise Problem(422, "InvalidRequest", f"types: {error}; known are {', '.join(EventType)}.") from None
