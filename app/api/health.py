"""Alive and ready, for those who look after the service. No key needed, nothing told."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app import __version__
from app.api.shapes import HealthView
from app.core.jsons import dumps

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=HealthView)
async def get_health(request: Request) -> Response:
    """The process is alive."""
    return Response(dumps({"status": "ok", "version": __version__}), media_type="application/json")


@router.get("/readyz", response_model=HealthView, responses={503: {"model": HealthView}})
async def get_readiness(request: Request) -> Response:
    """The service can take calls."""
    use = request.app.state.use
    status = "starting" if use is None else "stopping" if use.dispatcher.running.is_draining else "ok"
    return Response(dumps({"status": status}), 200 if status == "ok" else 503, media_type="application/json")
