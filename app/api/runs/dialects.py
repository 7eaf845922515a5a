"""Dialects over HTTP: which there are, and what each can do."""

from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import Response

from app.api.auth import Reader
from app.api.http.json_body import JSON
from app.api.schemas.runs import DialectView
from app.api.schemas.views import Page
from app.core.util.json_codec import dumps
from app.providers import registry
from app.providers.provider_aliases import ALIASES

router = APIRouter(prefix="/v1/dialects", tags=["runs"])


@router.get("", response_model=Page[DialectView])
async def list_dialects(key: Reader) -> Response:
    """Every dialect, and every provider that speaks one of them in its own way."""
    views = []
    for name in registry.NAMES:
        dialect, alias = registry.find(name), ALIASES.get(name)
        assert dialect is not None, "what is listed is found"
        about = {"name": name, "title": dialect.title, "alias_of": alias and alias.dialect}
        views.append(about | asdict(dialect.supports))
    return Response(dumps({"data": views, "next_cursor": None}), media_type=JSON)
