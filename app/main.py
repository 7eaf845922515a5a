"""The ASGI application: its routes and its lifespan."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from app import __version__
from app.api import asks as ask_routes
from app.api import attachments as attachment_routes
from app.api import calls, events, health, keys, metrics, openapi, runs, tickets
from app.api import files as file_routes
from app.api import rules as rule_routes
from app.api import secrets as secret_routes
from app.api import sessions as session_routes
from app.api import terminals as terminal_routes
from app.api import tools as tool_routes
from app.api.auth import HostGuard
from app.api.create_call import create_call
from app.api.http import problems
from app.api.http.body import BodyLimit
from app.api.http.fast_path import FastPathApp
from app.api.mcp import oauth as oauth_routes
from app.api.mcp import resources as mcp_resource_routes
from app.api.mcp import servers as mcp_server_routes
from app.api.mcp.endpoint import McpEndpoint
from app.api.tickets import Tickets
from app.config import Settings
from app.core.hooks import Hook
from app.core.redaction import Redactor
from app.core.tools import Tool
from app.core.util.urls import read_url
from app.service import Service
from app.tools import BUILTINS

ABOUT = "Lists tools, runs them for any LLM agent, and keeps a durable, watchable record of every call."


def create_app(
    settings: Settings,
    tools: Iterable[Tool] = BUILTINS,
    hooks: Iterable[Hook] = (),
    redactor: Redactor | None = None,
) -> FastPathApp:
    """The service as an ASGI application; `app.state.service` is the service."""
    service = Service(settings, tools, hooks, redactor)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.services = await service.open()
        yield
        await service.close()

    app = FastPathApp(
        create_call,
        runs.create_run,
        HostGuard([*settings.allowed_hosts, settings.host, *_public(settings)], settings.allowed_origins),
        BodyLimit(settings.body_limit, settings.file_limit),
        origins=settings.allowed_origins,
        has_access_log=settings.access_log,
        prefix=settings.root_path,
        title="Toolcrib",
        version=__version__,
        summary="Tools for LLM agents: listed, run, recorded.",
        description=ABOUT,
        lifespan=lifespan,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.redactor = service.redactor
    app.state.services = None
    app.state.tickets = Tickets()
    _add_routes(app)
    problems.install(app)
    openapi.install(app)
    return app


def _add_routes(app: FastAPI) -> None:
    app.router.routes.append(Route("/mcp", McpEndpoint(), include_in_schema=False))
    of_calls = (calls, attachment_routes, events, tool_routes, runs, ask_routes, rule_routes)
    of_sessions = (session_routes, file_routes, terminal_routes)
    of_servers = (mcp_server_routes, oauth_routes, mcp_resource_routes)
    for module in (*of_calls, *of_sessions, *of_servers, keys, secret_routes, tickets, health, metrics):
        app.include_router(module.router)
    app.include_router(oauth_routes.pages)


def _public(settings: Settings) -> list[str]:
    """The host name of the public URL."""
    if settings.public_url is None:
        return []
    host = read_url(settings.public_url).host
    return [f"[{host}]" if ":" in host else host]


def _operation_id(route: APIRoute) -> str:
    return route.name
