"""Keys over HTTP, for admins."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints

from app.api.auth import Admin, ServicesDep
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.http.responses import json_response, list_response
from app.api.key_bounds import BoundsRequest
from app.api.schemas.views import KeyView, NewKeyView, Page
from app.core.principals import DEFAULT_SCOPES, PRINCIPAL_NAME, Scope, make_key
from app.core.sessions import InvalidSession
from app.store import principals

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute)

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=PRINCIPAL_NAME)]


class KeyRequest(BaseModel, extra="forbid"):
    """A key to create."""

    principal: Name = Field(description="The key's principal; created when it is new.", examples=["ci"])
    name: str = Field(default="", max_length=128, description="What it is for.", examples=["nightly build"])
    scopes: set[Scope] = Field(
        default=set(DEFAULT_SCOPES), min_length=1, description="What the key may do.", examples=[["calls:run"]]
    )
    bounds: BoundsRequest = Field(default=BoundsRequest(), description="Its bounds, besides its scopes.")


@router.get("", response_model=Page[KeyView])
async def list_keys(key: Admin, services: ServicesDep) -> Response:
    """All keys, also revoked ones; never their tokens."""
    keys = await principals.all_keys(services.engine)
    return list_response([key.view() for key in keys])


@router.post("", response_model=NewKeyView, status_code=201)
async def create_key(body: KeyRequest, key: Admin, services: ServicesDep) -> Response:
    """Create a key. The token is in this response only."""
    try:
        bounds = body.bounds.bounds(services.workspaces.real, body.scopes)
    except InvalidSession as error:
        raise Problem(422, "InvalidRequest", str(error)) from None
    new_key, token = make_key(services.ids, body.principal, body.name, body.scopes, bounds)
    await services.writer.submit(lambda batch: principals.add_key(batch, new_key))
    services.keyring.put(new_key)
    return json_response(new_key.view() | {"token": token}, 201)


@router.delete("/{id}", status_code=204, responses={409: {"description": "A key cannot revoke itself."}})
async def revoke_key(
    id: Annotated[str, Path(description="The key's id.")], key: Admin, services: ServicesDep
) -> Response:
    """Revoke a key. It stops working at once."""
    if id == key.id:
        raise Problem(409, "KeyInUse", "A key cannot revoke itself; use another admin key.")
    at = services.clock.now()
    if not await services.writer.submit(lambda batch: principals.revoke(batch, id, at)):
        raise not_found(f"valid key {id}")
    services.keyring.remove(id)
    return Response(status_code=204)
