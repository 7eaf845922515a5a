"""Health, readiness and the sandbox's state. The first two need no key; with one, readiness shows its checks."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app import __version__
from app.api.auth import Reader, Services, ServicesDep, key_in_request
from app.api.http.body import JSON
from app.api.http.problems import forbidden
from app.api.http.responses import json_response
from app.api.schemas.views import HealthView, ReadinessView, SandboxView
from app.core.principals import Scope
from app.core.util.json_codec import dumps

router = APIRouter()

CHECK_SCOPES = (Scope.CALLS_READ, Scope.METRICS)

Fresh = Annotated[bool, Query(description="Run the self-test again now; for admins.")]


@router.get("/v1/sandbox", tags=["sandbox"], response_model=SandboxView, response_model_exclude_unset=True)
async def get_sandbox(key: Reader, services: ServicesDep, fresh: Fresh = False) -> Response:
    """The backend in use and why, and what it does not protect against. Admins also see every probe of the self-test,
    what the machine has, the user processes run as, and their limits."""
    is_admin = key.may(Scope.ADMIN)
    if fresh and not is_admin:
        raise forbidden()
    report = await (services.sandbox.renew() if fresh else services.sandbox.known())
    return json_response(report.view() if is_admin else report.summary())


@router.get("/healthz", tags=["health"], response_model=HealthView)
async def get_health(request: Request) -> Response:
    """The process is alive."""
    return json_response({"status": "ok", "version": __version__})


@router.get("/readyz", tags=["health"], response_model=ReadinessView, responses={503: {"model": ReadinessView}})
async def get_readiness(request: Request) -> Response:
    """Whether the service accepts calls. With a key that may read calls or metrics, also the checks."""
    services: Services | None = request.app.state.services
    if services is None:
        return _answer({"status": "starting"})
    status, checks = await services.readiness.check()
    key = key_in_request(request.headers, services)
    if key is None or not any(key.may(scope) for scope in CHECK_SCOPES):
        return _answer({"status": status})
    return _answer({"status": status, "checks": [check.view() for check in checks]})


def _answer(body: dict[str, object]) -> Response:
    return Response(dumps(body), 200 if body["status"] == "ok" else 503, media_type=JSON)
