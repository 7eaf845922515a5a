"""Tickets: one-use passes to the event streams, for browsers, whose EventSource cannot send a key."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
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
SECONDS = 30
PER_KEY = 64
OVERALL = 1024


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket is good for; of its token only the digest is kept."""

    key: Key
    call: str | None
    until: float


class Tickets:
    """The tickets that were sold and not used yet, oldest first. They are in memory only: a restart voids them."""

    def __init__(self) -> None:
        self._sold: dict[str, Ticket] = {}

    def __len__(self) -> int:
        return len(self._sold)

    def sell(self, key: Key, call: str | None, now: float) -> str:
        """A new ticket; `now` is monotonic. When there are too many, the oldest goes."""
        self._make_room(key.id, now)
        token = new_token(PREFIX)
        self._sold[digest(token)] = Ticket(key, call, now + SECONDS)
        return token

    def take(self, token: str, call: str | None, now: float) -> Key | None:
        """The key a ticket was bought with, if it opens these events. Whatever the answer, the ticket is used up."""
        ticket = self._sold.pop(digest(token), None)
        if ticket is None or now >= ticket.until or ticket.call not in (None, call):
            return None
        return ticket.key

    def _make_room(self, key: str, now: float) -> None:
        self._sold = {sold: ticket for sold, ticket in self._sold.items() if now < ticket.until}
        own = [sold for sold, ticket in self._sold.items() if ticket.key.id == key]
        if len(own) >= PER_KEY:
            del self._sold[own[0]]
        if len(self._sold) >= OVERALL:
            del self._sold[next(iter(self._sold))]


class TicketRequest(BaseModel, extra="forbid"):
    """What the new ticket is for."""

    call: str | None = Field(
        default=None,
        max_length=64,
        description="The one call whose events it opens; all events when not given.",
        examples=[CALL_ID],
    )


@router.post("", response_model=TicketView, status_code=201)
async def create_ticket(
    request: Request, key: AskReader, services: ServicesDep, asked: TicketRequest | None = None
) -> Response:
    """Buy a ticket: `?ticket=` opens one event stream instead of the key, once, within 30 seconds.
    EventSource cannot send headers; a page that has to come back buys another one and says `after`."""
    call = asked.call if asked else None
    if call is not None and not key.may(Scope.CALLS_READ):
        raise forbidden()
    if call is not None:
        await call_seen(services, key, call)
    token = _tickets(request).sell(key, call, services.clock.monotonic())
    body = {"ticket": token, "expires_at": rfc3339(services.clock.now() + SECONDS * 1_000_000)}
    return json_response(body, 201, {"Cache-Control": "no-store"})


async def _may_watch(
    request: Request, services: ServicesDep, ticket: Annotated[str | None, Query(include_in_schema=False)] = None
) -> Key:
    """The key of a request for events: its ticket's, or the one it shows itself. Events of one call are for those who
    read calls; of the others, who answers asks hears what concerns asks."""
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


Watcher = Annotated[Key, Depends(_may_watch)]
