"""Definitions of MCP servers: how each is reached and what it may do; and their states."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, WithJsonSchema

from app.core.custom_tools import SecretHeader

SERVER_NAME = r"^(?:[A-Za-z0-9](?:_?[.-])*_?)*[A-Za-z0-9]$"
"""Without two underscores in a row, which separate server and tool in the name of a tool."""
MAX_NAME = 64


def check_name(name: str) -> str:
    if len(name) > MAX_NAME or not re.fullmatch(SERVER_NAME, name):
        raise ValueError(
            f"a server's name has at most {MAX_NAME} letters and digits, with dots, dashes and single underscores "
            "between them"
        )
    return name


ServerName = Annotated[
    str,
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "pattern": SERVER_NAME, "maxLength": MAX_NAME}),
]


class SecretValue(BaseModel, extra="forbid"):
    """A value that is a secret, by name."""

    secret: str = Field(description="The secret's name, as in `PUT /v1/secrets/{name}`.", examples=["MAIL_TOKEN"])


class BearerAuth(BaseModel, extra="forbid"):
    """A bearer token for every request; better by the name of a secret than in clear."""

    type: Literal["bearer"] = Field(default="bearer", description="A bearer token.")
    secret: str | None = Field(default=None, description="The name of the secret that holds the token.")
    token: str | None = Field(default=None, description="The token itself; it becomes a secret and is not shown again.")


class OAuth(BaseModel, extra="forbid"):
    """OAuth authorization by a person, or of the service itself with `grant` `client_credentials`."""

    type: Literal["oauth"] = Field(description="OAuth.")
    grant: Literal["authorization_code", "client_credentials"] = Field(
        default="authorization_code", description="Grant type: a person authorizes, or the service itself does."
    )
    scope: str | None = Field(default=None, description="Scopes to request, separated by spaces.")
    client_id: str | None = Field(default=None, description="Client id; registered dynamically when not given.")
    client_secret: SecretValue | None = Field(default=None, description="Client secret, by the name of a secret.")
    issuer: str | None = Field(
        default=None,
        max_length=2048,
        description="The only accepted authorization server; default: the one that the server names.",
    )


Auth = Annotated[BearerAuth | OAuth, Field(discriminator="type")]


class ServerDefinition(BaseModel, extra="forbid"):
    """The fields of all kinds of servers."""

    name: ServerName = Field(description="Name of the server; its tools are `mcp__{name}__{tool}`.", examples=["time"])
    enabled: bool = Field(default=True, description="Whether the service connects to it.")
    startup_timeout: float = Field(default=30, gt=0, le=600, description="Seconds to start and to initialize.")
    call_timeout: float = Field(
        default=300, gt=0, le=86_400, description="Seconds for a call; each progress notification restarts them."
    )
    parallel: bool = Field(default=False, description="Run its tools in parallel, also those that write.")
    concurrency: int = Field(default=32, ge=1, le=1024, description="Maximum number of calls sent to it at once.")
    queue: int = Field(
        default=256, ge=0, le=65_536, description="Maximum number of calls that wait for it; more end `Overloaded`."
    )
    allowed_tools: list[str] | None = Field(default=None, description="Only these tools, by the server's own names.")
    denied_tools: list[str] = Field(default=[], description="All but these tools, by the server's own names.")
    per_session: bool = Field(
        default=False, description="One connection per session, in its workspace, instead of one for all."
    )
    era: Literal["auto", "older", "newer"] = Field(
        default="auto",
        description=(
            "Protocol version: `older` is 2024-11-05 to 2025-11-25 (initialized once, less work per call), "
            "`newer` is 2026-07-28 (stateless), `auto` takes the newer one if the server supports it."
        ),
    )
    roots: list[str] | Literal["caller"] = Field(
        default=[],
        description="Roots sent to the server; `caller`: those of the MCP client that makes the call.",
    )


class StdioServer(ServerDefinition):
    """An MCP server over stdio: a program on this machine."""

    kind: Literal["stdio"] = Field(description="A program that the service starts.")
    command: str = Field(min_length=1, max_length=4096, description="The program.", examples=["mcp-server-time"])
    args: list[str] = Field(default=[], max_length=256, description="Its arguments.")
    env: dict[str, str | SecretValue] = Field(
        default={}, description="Its environment variables; values may be secrets by name."
    )
    cwd: str | None = Field(default=None, description="Working directory of the program.")
    walls: bool = Field(default=False, description="Run it in the same sandbox as the commands of models.")

    @property
    def is_sandboxed(self) -> bool:
        return self.walls


class HttpServer(ServerDefinition):
    """An MCP server over HTTP."""

    kind: Literal["http", "sse"] = Field(description="Streamable HTTP, or the older SSE transport with two endpoints.")
    url: str = Field(max_length=8192, description="URL of the MCP endpoint.", examples=["https://mcp.example.com/mcp"])
    headers: dict[str, str | SecretHeader] = Field(
        default={}, description="Headers to send; values may be secrets by name."
    )
    auth: Auth | None = Field(default=None, description="Credentials: a bearer token or OAuth.")


AnyServer = Annotated[StdioServer | HttpServer, Field(discriminator="kind")]
servers: TypeAdapter[StdioServer | HttpServer] = TypeAdapter(AnyServer)


class ServerState(StrEnum):
    STARTING = "starting"
    CONNECTED = "connected"
    FAILED = "failed"
    NEEDS_AUTH = "needs_auth"
    DISABLED = "disabled"
    STOPPED = "stopped"


class InvalidServer(ValueError):
    """An invalid server definition; the message says why."""
