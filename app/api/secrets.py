"""Secrets over HTTP. Values are written, never read."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field, SecretStr, model_validator

from app.api.auth import Reader, SecretWriter, ServicesDep
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.http.responses import json_response, list_response
from app.api.schemas.views import Page, SecretView
from app.core.principals import Key, Scope
from app.core.secrets import (
    DOMAIN,
    GLOBAL_PRINCIPAL,
    MAX_DOMAINS,
    MAX_VALUE,
    MIN_VALUE,
    NAME,
    InvalidSecret,
    SecretConfigured,
)
from app.core.util.urls import MAX_HOST

router = APIRouter(prefix="/v1/secrets", tags=["secrets"], route_class=JsonRoute)

Name = Annotated[str, Path(pattern=NAME, description="The secret's name.", examples=["MAIL_TOKEN"])]
IsGlobal = Annotated[
    bool,
    Query(alias="global", description="A global secret; changing one needs an admin key."),
]
CONFIGURED: dict[int | str, dict[str, Any]] = {409: {"description": "It is defined in the configuration."}}
CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "model": SecretView}}
VALUE_RULES: dict[str, Any] = {"minLength": MIN_VALUE, "maxLength": MAX_VALUE, "pattern": r"^[^\u0000]*\S[^\u0000]*$"}
Domain = Annotated[str, Field(json_schema_extra={"pattern": DOMAIN, "maxLength": MAX_HOST + len("*.")})]


class SecretRequest(BaseModel, extra="forbid"):
    """A secret to store."""

    value: SecretStr = Field(
        description="The value. It is encrypted, redacted wherever it appears, and never shown again.",
        json_schema_extra=VALUE_RULES,
    )
    domains: list[Domain] = Field(
        default=[],
        max_length=MAX_DOMAINS,
        description="Hosts it may be sent to, each alone or with its subdomains (`*.`); an empty list means no limit.",
        examples=[["api.example.com", "*.example.org"]],
    )

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, body: Any) -> Any:
        """Does not name unknown fields: in a malformed body, the value may be the name of a field."""
        if isinstance(body, dict) and not body.keys() <= cls.model_fields.keys():
            raise ValueError("only `value` and `domains` are allowed in the body")
        return body


@router.get("", response_model=Page[SecretView])
async def list_secrets(key: Reader, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """The principal's own secrets and the global ones, by name; never their values."""
    secrets = services.secrets.listed(None if is_global else key.principal)
    return list_response([secret.view() for secret in secrets])


@router.get("/{name}", response_model=SecretView)
async def get_secret(name: Name, key: Reader, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """One secret without its value: the principal's own, else the global one."""
    secret_and_value = services.secrets.find(GLOBAL_PRINCIPAL if is_global else key.principal, name)
    if secret_and_value is None:
        raise not_found(f"secret {name}")
    return json_response(secret_and_value[0].view())


@router.put("/{name}", response_model=SecretView, responses=CREATED | CONFIGURED)
async def put_secret(
    name: Name, body: SecretRequest, key: SecretWriter, services: ServicesDep, is_global: IsGlobal = False
) -> Response:
    """Store a secret, replacing the old value if there is one, from the next use on."""
    owner = _owner(key, is_global)
    try:
        secret, is_new = await services.secrets.put(owner, name, body.value.get_secret_value(), body.domains)
    except InvalidSecret as error:
        raise Problem(422, "InvalidRequest", str(error)) from None
    except SecretConfigured as error:
        raise _configured(error) from None
    return json_response(secret.view(), 201 if is_new else 200)


@router.delete("/{name}", status_code=204, responses=CONFIGURED)
async def delete_secret(name: Name, key: SecretWriter, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """Delete a secret: only the principal's own, unless `global` is set."""
    owner = _owner(key, is_global)
    try:
        is_deleted = await services.secrets.remove(owner, name)
    except SecretConfigured as error:
        raise _configured(error) from None
    if not is_deleted:
        raise not_found(f"secret {name}")
    return Response(status_code=204)


def _owner(key: Key, is_global: bool) -> str:
    """The principal whose secret is changed."""
    if is_global and not key.may(Scope.ADMIN):
        raise forbidden()
    return GLOBAL_PRINCIPAL if is_global else key.principal


def _configured(error: SecretConfigured) -> Problem:
    return Problem(409, "SecretConfigured", str(error))
