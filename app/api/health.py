"""Health and readiness. They need no key; with one, readiness shows its checks."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app import __version__
from app.api.auth import Services, key_in_request
from app.api.http.body import JSON
from app.api.http.responses import json_response
from app.api.schemas.views import HealthView, ReadinessView
from app.core.principals import Scope
from app.core.util.json_codec import dumps

router = APIRouter(tags=["health"])

CHECK_SCOPES = (Scope.CALLS_READ, Scope.METRICS)


@router.get("/healthz", response_model=HealthView)
async def get_health(request: Request) -> Response:
    """The process is alive."""
    return json_response({"status": "ok", "version": __version__})


@router.get("/readyz", response_model=ReadinessView, responses={503: {"model": ReadinessView}})
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
