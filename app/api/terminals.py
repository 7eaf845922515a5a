"""Terminals over HTTP: the processes that go on in a session, to be seen, sized and ended. What they write comes as
events."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.api.auth import Reader, Runner, ServicesDep, session_seen
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.http.responses import json_response, list_response
from app.api.schemas.views import Page, TerminalView
from app.api.sessions import Principal, SessionId
from app.core.errors import InvalidArgs
from app.core.sandbox import WindowSize

router = APIRouter(prefix="/v1/sessions/{id}/terminals", tags=["sessions"], route_class=JsonRoute)

TerminalId = Annotated[int, Path(description="The terminal's number, which tools call session ID.", examples=[38214])]
NO_TTY: dict[int | str, dict[str, Any]] = {409: {"description": "It was started without a tty, so it has no size."}}


class SizeRequest(BaseModel, extra="forbid"):
    """The size of a terminal, in characters."""

    rows: int = Field(ge=1, le=1000, description="Lines.")
    columns: int = Field(ge=1, le=1000, description="Characters of a line.")


@router.get("", response_model=Page[TerminalView])
async def list_terminals(id: SessionId, key: Reader, services: ServicesDep, principal: Principal = None) -> Response:
    """What runs in a session between calls, in the order it was started. One that has ended stays until a call of
    write_stdin was told so."""
    session = await session_seen(services, key, id, principal)
    found = services.dispatcher.terminals.list(session.principal, session.id)
    return list_response([one.view() for one in found])


@router.get("/{terminal}", response_model=TerminalView)
async def get_terminal(
    id: SessionId, terminal: TerminalId, key: Reader, services: ServicesDep, principal: Principal = None
) -> Response:
    """One of them."""
    session = await session_seen(services, key, id, principal)
    found = services.dispatcher.terminals.find(session.principal, session.id, terminal)
    if found is None:
        raise _missing(terminal)
    return json_response(found.view())


@router.delete("/{terminal}", status_code=204)
async def end_terminal(
    id: SessionId, terminal: TerminalId, key: Runner, services: ServicesDep, principal: Principal = None
) -> Response:
    """End it, and all it started. It is listed no more; the model is told how it ended when it asks again."""
    session = await session_seen(services, key, id, principal)
    if not await services.dispatcher.terminals.kill(session.principal, session.id, terminal):
        raise _missing(terminal)
    return Response(status_code=204)


@router.post("/{terminal}/resize", status_code=204, responses=NO_TTY)
async def resize_terminal(
    id: SessionId,
    terminal: TerminalId,
    asked: SizeRequest,
    key: Runner,
    services: ServicesDep,
    principal: Principal = None,
) -> Response:
    """Give one that has a tty another size; it begins with 24 rows of 80 columns."""
    session = await session_seen(services, key, id, principal)
    window = WindowSize(asked.rows, asked.columns)
    try:
        was_there = services.dispatcher.terminals.resize(session.principal, session.id, terminal, window)
    except InvalidArgs as error:
        raise Problem(409, "NoTty", error.message) from None
    if not was_there:
        raise _missing(terminal)
    return Response(status_code=204)


def _missing(terminal: int) -> Problem:
    return not_found(f"terminal {terminal} in this session")
