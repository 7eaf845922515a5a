"""Terminals over HTTP: processes that outlive their call in a session. Their output is sent as events."""

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
    """The processes of a session that run between calls, oldest first. One that has exited is listed until a call of
    write_stdin has reported its exit."""
    session = await session_seen(services, key, id, principal)
    terminals = services.dispatcher.resources.terminals.list(session.principal, session.id)
    return list_response([terminal.view() for terminal in terminals])


@router.get("/{terminal}", response_model=TerminalView)
async def get_terminal(
    id: SessionId, terminal: TerminalId, key: Reader, services: ServicesDep, principal: Principal = None
) -> Response:
    """One terminal."""
    session = await session_seen(services, key, id, principal)
    process = services.dispatcher.resources.terminals.find(session.principal, session.id, terminal)
    if process is None:
        raise _missing(terminal)
    return json_response(process.view())


@router.delete("/{terminal}", status_code=204)
async def end_terminal(
    id: SessionId, terminal: TerminalId, key: Runner, services: ServicesDep, principal: Principal = None
) -> Response:
    """Kill its process tree. It is not listed any more; the next call of write_stdin reports its exit."""
    session = await session_seen(services, key, id, principal)
    if not await services.dispatcher.resources.terminals.kill(session.principal, session.id, terminal):
        raise _missing(terminal)
    return Response(status_code=204)


@router.post("/{terminal}/resize", status_code=204, responses=NO_TTY)
async def resize_terminal(
    id: SessionId,
    terminal: TerminalId,
    size: SizeRequest,
    key: Runner,
    services: ServicesDep,
    principal: Principal = None,
) -> Response:
    """Resize a terminal that has a tty. It starts with 24 rows of 80 columns."""
    session = await session_seen(services, key, id, principal)
    window = WindowSize(size.rows, size.columns)
    try:
        exists = services.dispatcher.resources.terminals.resize(session.principal, session.id, terminal, window)
    except InvalidArgs as error:
        raise Problem(409, "NoTty", error.message) from None
    if not exists:
        raise _missing(terminal)
    return Response(status_code=204)


def _missing(terminal: int) -> Problem:
    return not_found(f"terminal {terminal} in this session")
