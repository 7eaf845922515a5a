"""Tickets: one-time tokens for event streams, for browsers, whose EventSource cannot send a key."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.api.auth import AskReader, ServicesDep, call_seen, require_key, unauthorized
from app.api.http.body import JsonRoute
from app.api.http.problems import forbidden
from app.api.http.responses import json_response
from app.api.schemas import CALL_ID
from app.api.schemas.views import TicketView
from app.core.principals import Key, Scope, digest, new_token
from app.core.util.clocks import rfc3339

router = APIRouter(prefix="/v1/tickets", tags=["tickets"], route_class=JsonRoute)

PREFIX = "tt_"
TICKET_SECONDS = 30
MAX_PER_KEY = 64
MAX_TICKETS = 1024


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket is valid for; of its token only the digest is stored."""

    key: Key
    call: str | None
    expires: float


class Tickets:
    """The tickets that were issued and not used yet, oldest first. In memory only: a restart voids them."""

    def __init__(self) -> None:
        self._issued: dict[str, Ticket] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, key: Key, call: str | None, now: float) -> str:
        """A new ticket; `now` is monotonic. When there are too many, the oldest is dropped."""
        self._issued = {digest: ticket for digest, ticket in self._issued.items() if now < ticket.expires}
        own = [digest for digest, ticket in self._issued.items() if ticket.key.id == key.id]
        if len(own) >= MAX_PER_KEY:
            del self._issued[own[0]]
        if len(self._issued) >= MAX_TICKETS:
            del self._issued[next(iter(self._issued))]
        token = new_token(PREFIX)
        self._issued[digest(token)] = Ticket(key, call, now + TICKET_SECONDS)
        return token

    def take(self, token: str, call: str | None, now: float) -> Key | None:
        """The key a ticket was issued to, if it is valid for these events. The ticket is used up in any case."""
        ticket = self._issued.pop(digest(token), None)
        if ticket is None or now >= ticket.expires or ticket.call not in (None, call):
            return None
        return ticket.key


class TicketRequest(BaseModel, extra="forbid"):
    """A ticket to create."""

    call: str | None = Field(
        default=None,
        max_length=64,
        description="The one call whose events it opens; all events when not given.",
        examples=[CALL_ID],
    )


@router.post("", response_model=TicketView, status_code=201)
async def create_ticket(
    request: Request,
    key: AskReader,
    services: ServicesDep,
    body: Annotated[TicketRequest | None, Body(title="Asked")] = None,
) -> Response:
    """Create a ticket: `?ticket=` opens one event stream instead of the key, once, within 30 seconds.
    EventSource cannot send headers; to reconnect, a page gets another ticket and sends `after`."""
    call = body.call if body else None
    if call is not None and not key.may(Scope.CALLS_READ):
        raise forbidden()
    if call is not None:
        await call_seen(services, key, call)
    token = _tickets(request).issue(key, call, services.clock.monotonic())
    expires_at = rfc3339(services.clock.now() + TICKET_SECONDS * 1_000_000)
    return json_response({"ticket": token, "expires_at": expires_at}, 201, {"Cache-Control": "no-store"})


async def _events_key(
    request: Request, services: ServicesDep, ticket: Annotated[str | None, Query(include_in_schema=False)] = None
) -> Key:
    """The key of a request for events: its ticket's, or its own. Events of one call need `calls:read`; for the other
    events `asks:answer` is enough, and shows those of asks."""
    call = request.path_params.get("id")
    if ticket is None:
        return require_key(request.headers, services, Scope.CALLS_READ, *([Scope.ASKS_ANSWER] if call is None else []))
    key = _tickets(request).take(ticket, call, services.clock.monotonic())
    if key is None or not services.keyring.has(key.id):
        raise unauthorized()
    if call is not None and not key.may(Scope.CALLS_READ):
        raise forbidden()
    return key


def _tickets(request: Request) -> Tickets:
    tickets: Tickets = request.app.state.tickets
    return tickets


EventReader = Annotated[Key, Depends(_events_key)]
