"""What is sent to add an MCP server: in our words, or as it stands among the tools of a request to a model."""

from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Body
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from app.api.schemas import EXAMPLES
from app.core.mcp_servers import BearerAuth, HttpServer, InvalidServer, StdioServer
from app.core.util.urls import InvalidUrl, read_url
from app.mcp.client.config_entries import check, define, legal_name

Replace = Annotated[
    bool, Field(strict=True, description="Put it in place of the one added by this name.", examples=[False])
]


class HttpServerRequest(HttpServer):
    """A server elsewhere to connect to."""

    kind: Literal["http", "sse"] = Field(
        default="http", description="Streamable HTTP, or the older way with two addresses."
    )
    replace: Replace = False


class StdioServerRequest(StdioServer):
    """A program of this machine to start. It takes an admin key, and `mcp.stdio_over_rest` in the settings."""

    kind: Literal["stdio"] = Field(default="stdio", description="A program that we start.")
    replace: Replace = False


class TokenRequest(BaseModel, extra="forbid"):
    """A token in clear."""

    type: Literal["bearer"] = Field(default="bearer", description="How it is sent.")
    token: str = Field(min_length=1, description="The token; it becomes a secret and is not shown again.")


class ToolNames(BaseModel, extra="forbid"):
    """Some tools of a server, by its own names."""

    tool_names: list[str] = Field(description="The tools.")


class ApprovalRequest(BaseModel, extra="forbid"):
    """Which tools a person is asked for."""

    always: ToolNames = Field(description="Calls of these ask.")


class ModelServerRequest(BaseModel, extra="forbid"):
    """A server as it is written among the tools of a request to a model."""

    type: Literal["mcp"] = Field(description="An MCP server.")
    server_url: str = Field(max_length=8192, description="Where it is; the older way if its path ends in `/sse`.")
    server_label: str | None = Field(
        default=None, min_length=1, max_length=256, description="Its name; made from the host when not given."
    )
    server_description: str | None = Field(default=None, description="Not used; the server says itself what it is.")
    authorization: str | TokenRequest | None = Field(
        default=None, description="A token in clear; it becomes the secret `mcp_{name}_token`, for this host alone."
    )
    headers: dict[str, str] | None = Field(
        default=None, description="Headers to send; those with keys in them become secrets too."
    )
    allowed_tools: list[str] | ToolNames | None = Field(default=None, description="Only these tools.")
    require_approval: Literal["always", "never"] | ApprovalRequest | None = Field(
        default=None,
        description="`always`, or for some tools: a rule is kept by which their calls ask. `never` and nothing: "
        "what the rules say.",
    )
    defer_loading: bool | None = Field(default=None, description="Not used; see `tool_search`.")
    replace: Replace = False

    @model_validator(mode="before")
    @classmethod
    def _can_be_had_here(cls, body: Any) -> Any:
        given = body if isinstance(body, dict) else {}
        if given.get("connector_id") is not None:
            raise ValueError("a connector is known to the model's provider alone; send its `server_url` instead")
        approval = given.get("require_approval")
        if isinstance(approval, dict) and "never" in approval:
            raise ValueError("in `require_approval`, name the tools to `always` ask for; for the others rules decide")
        return {name: value for name, value in given.items() if name != "connector_id"} or body


def _form(body: Any) -> str:
    """Which of the three a body is meant to be."""
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
        openapi_examples={
            "http": {"value": EXAMPLES["HttpServerRequest"]},
            "stdio": {"value": EXAMPLES["StdioServerRequest"]},
            "as sent to a model": {"value": EXAMPLES["ModelServerRequest"]},
        }
    ),
]


class Wanted(NamedTuple):
    """A server to add, and the patterns of those of its calls that shall ask."""

    server: StdioServer | HttpServer
    asking: list[str]
    replace: bool


def wanted(asked: HttpServerRequest | StdioServerRequest | ModelServerRequest) -> Wanted:
    """What a body asks for. Raises `InvalidServer`."""
    if isinstance(asked, ModelServerRequest):
        server = _as_ours(asked)
        return Wanted(server, [f"{server.name}/{tool}" for tool in _asking(asked)], asked.replace)
    fields = asked.model_dump(exclude={"replace", "name"})
    return Wanted(define(asked.name, fields), [], asked.replace)


def _as_ours(asked: ModelServerRequest) -> HttpServer:
    is_old = asked.server_url.partition("?")[0].rstrip("/").endswith("/sse")
    given = asked.authorization
    tools = asked.allowed_tools
    server = HttpServer(
        name=legal_name(asked.server_label or _host(asked.server_url)),
        kind="sse" if is_old else "http",
        url=asked.server_url,
        headers=dict(asked.headers or {}),
        auth=None if given is None else BearerAuth(token=given if isinstance(given, str) else given.token),
        allowed_tools=tools.tool_names if isinstance(tools, ToolNames) else tools,
    )
    check(server)
    return server


def _host(url: str) -> str:
    try:
        return read_url(url).host
    except InvalidUrl as error:
        raise InvalidServer(str(error)) from None


def _asking(asked: ModelServerRequest) -> list[str]:
    match asked.require_approval:
        case "always":
            return ["*"]
        case ApprovalRequest(always=some):
            return some.tool_names
        case _:
            return []
