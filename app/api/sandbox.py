"""The sandbox over HTTP: the backend in use and its self-test."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from app.api.auth import Reader, ServicesDep
from app.api.http.problems import forbidden
from app.api.http.responses import json_response
from app.api.schemas.views import SandboxView
from app.core.principals import Scope

router = APIRouter(prefix="/v1/sandbox", tags=["sandbox"])

Fresh = Annotated[bool, Query(description="Run the self-test again now; for admins.")]


@router.get("", response_model=SandboxView, response_model_exclude_unset=True)
async def get_sandbox(key: Reader, services: ServicesDep, fresh: Fresh = False) -> Response:
    """The backend in use and why, and what it does not protect against. Admins also see every probe of the self-test,
    what the machine has, the user processes run as, and their limits."""
    is_admin = key.may(Scope.ADMIN)
    if fresh and not is_admin:
        raise forbidden()
    report = await (services.sandbox.renew() if fresh else services.sandbox.known())
    return json_response(report.view() if is_admin else report.summary())
