"""Requests to add an MCP server: in Toolcrib's form, or as in the `tools` of a request to a model."""

from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Body
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from app.api.schemas import EXAMPLES
from app.core.mcp_servers import BearerAuth, HttpServer, InvalidServer, StdioServer
from app.core.util.urls import InvalidUrl, read_url
from app.mcp.client.config_entries import check, define, legal_name

Replace = Annotated[bool, Field(strict=True, description="Replace the server added under this name.", examples=[False])]


class HttpServerRequest(HttpServer):
    """A remote server."""

    kind: Literal["http", "sse"] = Field(default="http", description="Streamable HTTP, or HTTP with SSE (2024-11-05).")
    replace: Replace = False


class StdioServerRequest(StdioServer):
    """A program to start on this machine. Needs an admin key and the setting `mcp.stdio_over_rest`."""

    kind: Literal["stdio"] = Field(default="stdio", description="A program that Toolcrib starts.")
    replace: Replace = False


class TokenRequest(BaseModel, extra="forbid"):
    """A token in clear text."""

    type: Literal["bearer"] = Field(default="bearer", description="How it is sent.")
    token: str = Field(min_length=1, description="The token; it is stored as a secret and not shown again.")


class ToolNames(BaseModel, extra="forbid"):
    """Some tools of a server, by the server's names."""

    tool_names: list[str] = Field(description="The tools.")


class ApprovalRequest(BaseModel, extra="forbid"):
    """Tools whose calls need approval."""

    always: ToolNames = Field(description="Calls of these tools ask.")


class ModelServerRequest(BaseModel, extra="forbid"):
    """A server as in the `tools` of a request to a model."""

    type: Literal["mcp"] = Field(description="An MCP server.")
    server_url: str = Field(max_length=8192, description="Its URL; HTTP with SSE if the path ends in `/sse`.")
    server_label: str | None = Field(
        default=None, min_length=1, max_length=256, description="Its name; by default made from the host."
    )
    server_description: str | None = Field(default=None, description="Not used; the server describes itself.")
    authorization: str | TokenRequest | None = Field(
        default=None,
        description="A token in clear text; it becomes the secret `mcp_{name}_token`, for this host only.",
    )
    headers: dict[str, str] | None = Field(
        default=None, description="Headers to send; those with credentials are stored as secrets too."
    )
    allowed_tools: list[str] | ToolNames | None = Field(default=None, description="Only these tools.")
    require_approval: Literal["always", "never"] | ApprovalRequest | None = Field(
        default=None,
        description="`always`, or for some tools: a rule is stored that their calls ask. `never` or null: "
        "the existing rules decide.",
    )
    defer_loading: bool | None = Field(default=None, description="Not used; see `tool_search`.")
    replace: Replace = False

    @model_validator(mode="before")
    @classmethod
    def _check_supported(cls, body: Any) -> Any:
        fields = body if isinstance(body, dict) else {}
        if fields.get("connector_id") is not None:
            raise ValueError("connectors are known to the model's provider only; send its `server_url` instead")
        approval = fields.get("require_approval")
        if isinstance(approval, dict) and "never" in approval:
            raise ValueError("in `require_approval`, name the tools that `always` ask; rules decide for the others")
        return {name: value for name, value in fields.items() if name != "connector_id"} or body


def _form(body: Any) -> str:
    if isinstance(body, BaseModel):
        return str(getattr(body, "type", None) or getattr(body, "kind", "http")).replace("sse", "http")
    if not isinstance(body, dict):
        return "http"
    if "type" in body or "server_url" in body:
        return "mcp"
    return "stdio" if body.get("kind") == "stdio" or "command" in body else "http"


ServerRequest = Annotated[
    Annotated[HttpServerRequest, Tag("http")]
    | Annotated[StdioServerRequest, Tag("stdio")]
    | Annotated[ModelServerRequest, Tag("mcp")],
    Discriminator(_form),
    Body(
        title="Asked",
        openapi_examples={
            "http": {"value": EXAMPLES["HttpServerRequest"]},
            "stdio": {"value": EXAMPLES["StdioServerRequest"]},
            "as sent to a model": {"value": EXAMPLES["ModelServerRequest"]},
        },
    ),
]


class ServerPlan(NamedTuple):
    """A server to add, and patterns of those of its calls that must ask."""

    server: StdioServer | HttpServer
    ask_patterns: list[str]
    replace: bool


def plan_server(body: HttpServerRequest | StdioServerRequest | ModelServerRequest) -> ServerPlan:
    """The server that a body describes. Raises `InvalidServer`."""
    if isinstance(body, ModelServerRequest):
        server = _http_server(body)
        return ServerPlan(server, [f"{server.name}/{tool}" for tool in _approval_tools(body)], body.replace)
    fields = body.model_dump(exclude={"replace", "name"})
    return ServerPlan(define(body.name, fields), [], body.replace)


def _http_server(body: ModelServerRequest) -> HttpServer:
    is_sse = body.server_url.partition("?")[0].rstrip("/").endswith("/sse")
    token = body.authorization
    tools = body.allowed_tools
    server = HttpServer(
        name=legal_name(body.server_label or _host(body.server_url)),
        kind="sse" if is_sse else "http",
        url=body.server_url,
        headers=dict(body.headers or {}),
        auth=None if token is None else BearerAuth(token=token if isinstance(token, str) else token.token),
        allowed_tools=tools.tool_names if isinstance(tools, ToolNames) else tools,
    )
    check(server)
    return server


def _host(url: str) -> str:
    try:
        return read_url(url).host
    except InvalidUrl as error:
        raise InvalidServer(str(error)) from None


def _approval_tools(body: ModelServerRequest) -> list[str]:
    match body.require_approval:
        case "always":
            return ["*"]
        case ApprovalRequest(always=tools):
            return tools.tool_names
        case _:
            return []
