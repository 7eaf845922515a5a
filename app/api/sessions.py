"""Sessions over HTTP."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from app.api.auth import Reader, Runner, Services, ServicesDep, session_seen
from app.api.http.body import JSON, JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.http.responses import json_response, list_response, page_response
from app.api.schemas.sessions import (
    BOUNDARIES,
    SessionChange,
    SessionRequest,
    apply_change,
    new_secrets,
    require_power,
    require_valid,
    store_secrets,
)
from app.api.schemas.views import Page, PlanView, SessionView
from app.core.principals import Key, Scope
from app.core.sessions import InvalidSession, Session
from app.core.util.json_codec import dumps
from app.store import sessions

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=JsonRoute)

SessionId = Annotated[str, Path(description="The session's id.", examples=["default"])]
Principal = Annotated[str | None, Query(description="For admins: the session's principal; by default the key's own.")]
NAME_WORKSPACE = "workspaces it is bound to; name a `workspace` in one of them"
NO_PLAN = dumps({"explanation": None, "plan": []}).decode()
TAKEN: dict[int | str, dict[str, Any]] = {409: {"description": "The id is in use."}}
ALWAYS: dict[int | str, dict[str, Any]] = {409: {"description": "The default session cannot be deleted."}}


@router.get("", response_model=Page[SessionView])
async def list_sessions(
    key: Reader,
    services: ServicesDep,
    principal: Annotated[str | None, Query(description="Only sessions of this principal.")] = None,
    cursor: Annotated[str | None, Query(max_length=256, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most sessions on a page.")] = 50,
) -> Response:
    """The sessions this key may see, by principal and id."""
    owner = key.sees or principal
    if principal not in (None, owner):
        return list_response([])
    after = None if cursor is None else (cursor.partition("/")[0], cursor.partition("/")[2])
    page = await sessions.page(services.engine, owner, after, limit + 1, services.sessions.session_filter(key))
    return page_response(page, limit, cursor=lambda last: f"{last.principal}/{last.id}", view=Session.view)


@router.post("", response_model=SessionView, status_code=201, responses=TAKEN)
async def create_session(request: Request, body: SessionRequest, key: Runner, services: ServicesDep) -> Response:
    """Create a session. Without a `workspace` it gets a new folder, which is not deleted with it."""
    id, at = services.ids.new("ses")
    is_trusted = key.may(Scope.RULES_WRITE)
    session = Session(key.principal, body.id or id, is_trusted=is_trusted, created_at=at, updated_at=at)
    if not key.bounds.allows_session(session.id):
        raise _out_of_bounds("sessions it is bound to; name an `id` that matches")
    session = apply_change(session, body, key)
    secrets = new_secrets(body, key)
    require_valid(session, secrets, services.secrets, services.network_policy, request.app.state.redactor)
    if await services.sessions.find(session.principal, session.id) is not None:
        raise _taken(session)
    session = await _place(services, key, session, body.workspace)
    await store_secrets(services.secrets, session.principal, secrets)
    if not await services.sessions.create(session):
        if body.workspace is None and session.workspace is not None:
            services.workspaces.discard(session.workspace)
        raise _taken(session)
    return json_response(session.view(), 201)


@router.get("/{id}", response_model=SessionView)
async def get_session(id: SessionId, key: Reader, services: ServicesDep, principal: Principal = None) -> Response:
    """One session."""
    return json_response((await session_seen(services, key, id, principal)).view())


@router.patch("/{id}", response_model=SessionView)
async def change_session(
    request: Request,
    id: SessionId,
    body: SessionChange,
    key: Runner,
    services: ServicesDep,
    principal: Principal = None,
) -> Response:
    """Change the fields in the body, from the next call on. The workspace cannot be changed."""
    session = await session_seen(services, key, id, principal)
    secrets = new_secrets(body, key)

    def edit(before: Session) -> Session:
        after = apply_change(before, body, key)
        require_valid(after, secrets, services.secrets, services.network_policy, request.app.state.redactor)
        return after

    edit(session)  # refuses an invalid change before a secret is stored
    await store_secrets(services.secrets, session.principal, secrets)
    changed = await services.sessions.change(session, edit)
    if changed is None:
        raise not_found(f"session {id}")
    return json_response(changed.view())


@router.delete("/{id}", status_code=204, responses=ALWAYS)
async def delete_session(id: SessionId, key: Runner, services: ServicesDep, principal: Principal = None) -> Response:
    """Delete a session. Its calls end `Canceled` and its rules are deleted; records and files stay; the id is free."""
    session = await session_seen(services, key, id, principal)
    require_power(session, set(BOUNDARIES), key)
    try:
        is_deleted = await services.sessions.delete(session)
    except InvalidSession as error:
        raise Problem(409, "SessionNeeded", str(error)) from None
    if not is_deleted:
        raise not_found(f"session {id}")
    return Response(status_code=204)


@router.get("/{id}/plan", response_model=PlanView)
async def get_session_plan(id: SessionId, key: Reader, services: ServicesDep, principal: Principal = None) -> Response:
    """The agent's plan, as `update_plan` left it; without steps when there is none."""
    session = await session_seen(services, key, id, principal)
    return Response(await sessions.plan_of(services.engine, session) or NO_PLAN, media_type=JSON)


async def _place(services: Services, key: Key, session: Session, workspace: str | None) -> Session:
    """The session with its workspace, which is created if none is named."""
    if workspace is None and key.bounds.workspaces:
        raise _out_of_bounds(NAME_WORKSPACE)
    root: str | None
    try:
        if workspace is None:
            root = await asyncio.to_thread(services.workspaces.make, session.principal, session.id)
        else:
            root = await asyncio.to_thread(services.workspaces.locate, session.principal, workspace)
        if not key.bounds.allows_workspace(root or services.workspaces.home):
            raise _out_of_bounds(NAME_WORKSPACE)
        if root is not None:
            services.workspaces.enter(root)
    except InvalidSession as error:
        raise Problem(422, "InvalidRequest", str(error)) from None
    return replace(session, workspace=root)


def _taken(session: Session) -> Problem:
    return Problem(409, "SessionTaken", f"There is a session {session.id} already; change it, or use another id.")


def _out_of_bounds(what: str) -> Problem:
    return Problem(403, "Forbidden", f"This key sees only the {what}.")
