"""Tools over HTTP: listed, searched, registered, removed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response
from pydantic import Field, TypeAdapter, model_validator

from app.api.auth import Admin, Reader, ServicesDep, ToolWriter, session_named
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.http.responses import json_response, page_response
from app.api.schemas import EXAMPLES
from app.api.schemas.views import ImportView, Page, ReloadView, ToolLineView, ToolView
from app.core.custom_tools import NAME, AnyDefinition, ClientDefinition, HttpDefinition, OpenApiImport
from app.core.principals import Key, Scope
from app.core.rules import matches
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Audience, Effect
from app.dispatch.tools.listing import ToolFilter
from app.dispatch.tools.registry import NameTaken
from app.dispatch.tools.runtime_tools import InvalidDefinition
from app.providers import registry
from app.providers.dialects import Choice, Dialect, ExportOptions, Mode, Strictness
from app.providers.reply_content import offer_of

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


WARNINGS = "Toolcrib-Warnings"
MAX_WARNINGS_LENGTH = 4096
"""Characters of the warnings header."""
MODES: tuple[Mode, ...] = ("auto", "none", "required")
HEADERS = {WARNINGS: {"description": "What could not be exported, a JSON list.", "schema": {"type": "string"}}}

Format = Annotated[
    str | None,
    Query(
        max_length=128,
        description="A dialect: the response is then the value of `tools` in a request to the provider.",
        json_schema_extra={"enum": list(registry.NAMES), "examples": ["openai-chat"]},
    ),
]
Names = Annotated[
    str | None, Query(max_length=1024, description="Only tools of these names or patterns, comma-separated.")
]
Strict = Annotated[
    Strictness, Query(description="With `format`: whether schemas are rewritten so that they can be enforced.")
]
Builtins = Annotated[
    Literal["functions", "native"],
    Query(description="With `format`: `native` offers the provider's own tools where Toolcrib runs them."),
]
Cache = Annotated[
    Literal["ephemeral", "1h"] | None, Query(description="With `format`: mark the last tool for the prompt cache.")
]
Defer = Annotated[
    str | None,
    Query(
        max_length=512,
        description="With `format`: names or patterns of tools that are found by tool search only; `*` is all.",
    ),
]
Namespace = Annotated[
    str | None,
    Query(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$", description="openai-responses: put the tools into a namespace."),
]
Shape = Annotated[
    Literal["tools", "request"],
    Query(description="With `format`: only the tools, or all fields of a request that are about tools."),
]
ToolChoice = Annotated[
    str | None,
    Query(
        max_length=64,
        description="With `shape=request`: `auto`, `none`, `required`, or the name of the tool that must be used.",
    ),
]
Parallel = Annotated[
    bool | None, Query(description="With `shape=request`: whether one message may have several calls.")
]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which tools, in which dialect; without one they are listed in Toolcrib's own format."""

    patterns: Sequence[str] = ()
    dialect: Dialect | None = None
    options: ExportOptions = field(default_factory=ExportOptions)
    choice: Choice | None = None

    @property
    def provider(self) -> str | None:
        return None if self.dialect is None else self.dialect.name

    def includes(self, name: str) -> bool:
        return not self.patterns or _matches_any(name, self.patterns)

    def response(self, tools: Sequence[dict[str, Any]], model: str | None) -> Response:
        """The tools that can be used, in the dialect."""
        assert self.dialect is not None, "only called with a dialect"
        offers = [offer_of(tool) for tool in tools if tool["available"]]
        exported = self.dialect.export_tools(offers, replace(self.options, model=model))
        body: Any = exported.tools
        if self.choice is not None:
            body = self.dialect.fill_request(exported.tools, self.choice, self.dialect.quirks, exported.warnings)
        headers = {WARNINGS: _header(exported.warnings)} if exported.warnings else None
        return json_response(body, headers=headers)


async def _export_request(
    format: Format = None,
    names: Names = None,
    strict: Strict = "auto",
    builtins: Builtins = "functions",
    cache: Cache = None,
    defer: Defer = None,
    namespace: Namespace = None,
    shape: Shape = "tools",
    tool_choice: ToolChoice = None,
    parallel: Parallel = None,
) -> ExportRequest:
    if format is None:
        return ExportRequest(_split(names))
    dialect = registry.find(format)
    if dialect is None:
        raise not_found(f"dialect {format}; GET /v1/dialects lists them")
    deferred = _split(defer)
    options = ExportOptions(
        strict=strict,
        is_native=builtins == "native",
        cache=cache,
        defers=(lambda name: _matches_any(name, deferred)) if deferred else None,
        namespace=(namespace, f"Tools of {namespace}.") if namespace else None,
        quirks=dialect.quirks,
    )
    return ExportRequest(
        _split(names), dialect, options, _choice(tool_choice, parallel) if shape == "request" else None
    )


ExportDep = Annotated[ExportRequest, Depends(_export_request)]


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


def _split(text: str | None) -> list[str]:
    return [part for part in (text or "").replace(" ", "").split(",") if part]


def _choice(choice: str | None, parallel: bool | None) -> Choice:
    if choice is None:
        return Choice(parallel=parallel)
    mode = next((mode for mode in MODES if mode == choice), None)
    return Choice(mode=mode, parallel=parallel) if mode else Choice(mode="tool", name=choice, parallel=parallel)


def _header(warnings: Sequence[str]) -> str:
    """A JSON list in ASCII, shortened when there are too many."""
    shown = list(warnings)
    while len(shown) > 1 and len(json.dumps(shown)) > MAX_WARNINGS_LENGTH:
        shown = [*shown[: len(shown) // 2], f"and {len(warnings) - len(shown) // 2} more"]
    return json.dumps(shown)


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
        if owner is not None or services.listing.get(name, Session(key.principal, DEFAULT_SESSION), key) is None:
            raise not_found(f"tool {name} of yours")
        raise Problem(409, "NotRegistered", f"{name} was not registered over HTTP, so it cannot be removed here.")
    return Response(status_code=204)


def _compact(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in COMPACT}


def _owner(key: Key, own: bool) -> str | None:
    """The principal whose tool is changed; None: a global tool."""
    return None if key.may(Scope.ADMIN) and not own else key.principal
