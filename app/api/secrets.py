"""Secrets over HTTP: values go in, names come out."""

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
    bool, Query(alias="global", description="Everybody's instead of one's own; to change one takes an admin key.")
]
CONFIGURED: dict[int | str, dict[str, Any]] = {409: {"description": "It comes from the configuration."}}
CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "model": SecretView}}
VALUE_RULES: dict[str, Any] = {"minLength": MIN_VALUE, "maxLength": MAX_VALUE, "pattern": r"^[^\u0000]*\S[^\u0000]*$"}
Domain = Annotated[str, Field(json_schema_extra={"pattern": DOMAIN, "maxLength": MAX_HOST + len("*.")})]


class SecretRequest(BaseModel, extra="forbid"):
    """A secret to keep."""

    value: SecretStr = Field(
        description="The value. It is sealed, redacted wherever it turns up, and never shown again.",
        json_schema_extra=VALUE_RULES,
    )
    domains: list[Domain] = Field(
        default=[],
        max_length=MAX_DOMAINS,
        description="Hosts it may be sent to, each alone or with all below it (`*.`); none given means no limit.",
        examples=[["api.example.com", "*.example.org"]],
    )

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields_only(cls, body: Any) -> Any:
        """Said here without naming them: in a body of the wrong form, the value may be what names a field."""
        if isinstance(body, dict) and not body.keys() <= cls.model_fields.keys():
            raise ValueError("only `value` and `domains` belong into the body")
        return body


@router.get("", response_model=Page[SecretView])
async def list_secrets(key: Reader, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """One's own secrets and everybody's, by name; never their values."""
    known = services.secrets.listed(None if is_global else key.principal)
    return list_response([secret.view() for secret in known])


@router.get("/{name}", response_model=SecretView)
async def get_secret(name: Name, key: Reader, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """One secret without its value: one's own, or else everybody's."""
    found = services.secrets.find(GLOBAL_PRINCIPAL if is_global else key.principal, name)
    if found is None:
        raise not_found(f"secret {name}")
    return json_response(found[0].view())


@router.put("/{name}", response_model=SecretView, responses=CREATED | CONFIGURED)
async def put_secret(
    name: Name, asked: SecretRequest, key: SecretWriter, services: ServicesDep, is_global: IsGlobal = False
) -> Response:
    """Keep a secret, in place of the old one if there is one. It counts from the next use on."""
    owner = _owner(key, is_global)
    try:
        kept, is_new = await services.secrets.put(owner, name, asked.value.get_secret_value(), asked.domains)
    except InvalidSecret as error:
        raise Problem(422, "InvalidRequest", str(error)) from None
    except SecretConfigured as error:
        raise _configured(error) from None
    return json_response(kept.view(), 201 if is_new else 200)


@router.delete("/{name}", status_code=204, responses=CONFIGURED)
async def delete_secret(name: Name, key: SecretWriter, services: ServicesDep, is_global: IsGlobal = False) -> Response:
    """Forget a secret. Everybody's is never taken for one's own here."""
    owner = _owner(key, is_global)
    try:
        was_there = await services.secrets.remove(owner, name)
    except SecretConfigured as error:
        raise _configured(error) from None
    if not was_there:
        raise not_found(f"secret {name}")
    return Response(status_code=204)


def _owner(key: Key, is_global: bool) -> str:
    """Whose secret is to be changed."""
    if is_global and not key.may(Scope.ADMIN):
        raise forbidden()
    return GLOBAL_PRINCIPAL if is_global else key.principal


def _configured(error: SecretConfigured) -> Problem:
    return Problem(409, "SecretConfigured", str(error))
