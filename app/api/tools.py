"""Tools over HTTP: listed, searched, registered, removed."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import Response
from pydantic import Field, TypeAdapter, model_validator

from app.api.auth import Admin, Reader, Services, ServicesDep, ToolWriter, session_named
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.http.responses import json_response, page_response
from app.api.schemas import EXAMPLES
from app.api.schemas.views import ImportView, Page, ReloadView, ToolLineView, ToolView
from app.api.tool_export import HEADERS, ExportDep
from app.core.custom_tools import NAME, AnyDefinition, ClientDefinition, HttpDefinition, OpenApiImport
from app.core.principals import Key, Scope
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Audience, Effect
from app.dispatch.tools.listing import ToolFilter
from app.dispatch.tools.registry import NameTaken
from app.dispatch.tools.runtime_tools import InvalidDefinition

router = APIRouter(prefix="/v1/tools", tags=["tools"], route_class=JsonRoute)

MAX_PAGE = 500
COMPACT = ("name", "description")
_definitions: TypeAdapter[AnyDefinition] = TypeAdapter(AnyDefinition)

Name = Annotated[str, Path(description="The tool's name.", examples=["read_file"])]
RegisteredName = Annotated[str, Path(pattern=NAME, description="The tool's name.", examples=["get_weather"])]
IsOwn = Annotated[bool, Query(description="For admins: the tool of the key's own principal instead of a global one.")]
SessionId = Annotated[str | None, Query(description="With the rules, model and agent of this session.")]
Probe = Annotated[bool, Query(description="Check again whether each tool can be used.")]
TAKEN: dict[int | str, dict[str, Any]] = {409: {"description": "Another tool has this name."}}
CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "model": ToolView}}


class HttpToolRequest(HttpDefinition):
    """A tool to register that is one HTTP request."""

    replace: bool = Field(default=False, strict=True, description="Replace the tool registered under this name.")


class ClientToolRequest(ClientDefinition):
    """A tool to register that the caller runs itself."""

    replace: bool = Field(default=False, strict=True, description="Replace the tool registered under this name.")


class ImportRequest(OpenApiImport):
    """An API whose operations become tools."""

    replace: bool = Field(default=False, strict=True, description="Replace tools registered under their names.")

    @model_validator(mode="after")
    def _has_one_source(self) -> "ImportRequest":
        if (self.url is None) == (self.document is None):
            raise ValueError("send either `url` or `document`")
        return self


ToolRequest = Annotated[
    HttpToolRequest | ClientToolRequest,
    Body(
        title="Asked",
        discriminator="kind",
        openapi_examples={
            "http": {"value": EXAMPLES["HttpToolRequest"]},
            "client": {"value": EXAMPLES["ClientToolRequest"]},
        },
    ),
]


@router.get(
    "",
    response_model=Page[ToolView | ToolLineView] | list[dict[str, Any]] | dict[str, Any],
    responses={200: {"headers": HEADERS}},
)
async def list_tools(
    key: Reader,
    services: ServicesDep,
    export: ExportDep,
    model: Annotated[str | None, Query(description="Only tools that suit this model.", examples=["gpt-5.1"])] = None,
    provider: Annotated[str | None, Query(description="Only tools that suit this provider.")] = None,
    agent: Annotated[str | None, Query(description="Only tools that suit this agent.")] = None,
    session: SessionId = None,
    source: Annotated[str | None, Query(description="Only tools from this source.", examples=["builtin"])] = None,
    server: Annotated[str | None, Query(description="Only tools of this MCP server.", examples=["docs"])] = None,
    effect: Annotated[Effect | None, Query(description="Only tools with this effect.")] = None,
    q: Annotated[
        str | None, Query(min_length=1, max_length=1024, description="Only tools that match these words, best first.")
    ] = None,
    fields: Annotated[
        Literal["all", "name,description"], Query(description="All fields, or only these two for a small context.")
    ] = "all",
    probe: Probe = False,
    cursor: Annotated[str | None, Query(max_length=64, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most tools on a page.")] = MAX_PAGE,
) -> Response:
    """The tools this key may use, by name. With `q` the best `limit` of them, in one page. With `format` those that can
    be used, all in one response, as a provider's request takes them."""
    shown_to = await session_named(services, key, session)
    audience = Audience(
        provider=provider or export.provider,
        model=model or shown_to.model,
        agent=agent or shown_to.agent,
        session=None if session is None else shown_to.id,
    )
    filter = ToolFilter(audience=audience, source=source, server=server, effect=effect, query=q)
    listed = await services.listing.tools(shown_to, key, filter, probe=probe)
    tools = [tool for tool in listed if export.includes(tool["name"])]
    if export.dialect is not None:
        return export.response(tools[:limit] if q is not None else tools, audience.model)
    page = tools[:limit] if q is not None else [tool for tool in tools if cursor is None or tool["name"] > cursor]
    return page_response(
        page,
        limit,
        cursor=lambda tool: str(tool["name"]),
        view=lambda tool: tool if fields == "all" else {name: tool[name] for name in COMPACT},
    )


@router.post("", response_model=ToolView, responses=CREATED | TAKEN)
async def create_tool(body: ToolRequest, key: ToolWriter, services: ServicesDep, own: IsOwn = False) -> Response:
    """Register a tool for the key's principal, or a global one with an admin key."""
    if not key.bounds.allows_tool(body.name):  # a key bound to some tools must not change others
        raise forbidden()
    definition = _definitions.validate_python(body.model_dump(exclude={"replace"}))
    try:
        tool, is_new = await services.runtime_tools.register(definition, _owner(key, own), replace=body.replace)
    except InvalidDefinition as error:
        raise Problem(422, "InvalidTool", str(error)) from None
    except NameTaken as error:
        raise Problem(409, "NameTaken", str(error)) from None
    return json_response(await services.listing.show(tool), 201 if is_new else 200)


@router.post("/openapi", response_model=ImportView)
async def import_tools(body: ImportRequest, key: ToolWriter, services: ServicesDep, own: IsOwn = False) -> Response:
    """Register the operations of an OpenAPI document as tools. Skipped operations are listed with the reason."""
    source = OpenApiImport(**body.model_dump(exclude={"replace"}))
    try:
        tools, skipped = await services.runtime_tools.import_api(
            source, key.principal, _owner(key, own), replace=body.replace
        )
    except InvalidDefinition as error:
        raise Problem(422, "InvalidDocument", str(error)) from None
    views = [await services.listing.show(tool) for tool in tools]
    return json_response({"data": views, "skipped": [one._asdict() for one in skipped]})


@router.post("/reload", response_model=ReloadView)
async def reload_tools(key: Admin, services: ServicesDep) -> Response:
    """Load the tool files again, which executes them, and check again whether each tool can be used."""
    names, failed = await services.file_tools.reload()
    return json_response({"loaded": names, "failed": [one._asdict() for one in failed]})


@router.get("/{name}", response_model=ToolView)
async def get_tool(
    name: Name, key: Reader, services: ServicesDep, session: SessionId = None, probe: Probe = False
) -> Response:
    """One tool with its schema, by any of its names."""
    tool = services.listing.get(name, await session_named(services, key, session), key)
    if tool is None:
        raise not_found(f"tool {name}")
    return json_response(await services.listing.show(tool, probe=probe))


@router.delete("/{name}", status_code=204, responses={409: {"description": "It was not registered over HTTP."}})
async def delete_tool(name: RegisteredName, key: ToolWriter, services: ServicesDep, own: IsOwn = False) -> Response:
    """Remove a registered tool of the key's principal, or a global one with an admin key. Running calls continue."""
    owner = _owner(key, own)
    if not key.bounds.allows_tool(name) or not await services.runtime_tools.remove(name, owner):
        raise _no_such(services, key, name, owner)
    return Response(status_code=204)


def _compact(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in COMPACT}


def _owner(key: Key, own: bool) -> str | None:
    """The principal whose tool is changed; None: a global tool."""
    return None if key.may(Scope.ADMIN) and not own else key.principal


def _no_such(services: Services, key: Key, name: str, owner: str | None) -> Problem:
    if services.listing.get(name, Session(key.principal, DEFAULT_SESSION), key) is None or owner is not None:
        return not_found(f"tool {name} of yours")
    return Problem(409, "NotRegistered", f"{name} was not registered over HTTP, so it cannot be removed here.")
