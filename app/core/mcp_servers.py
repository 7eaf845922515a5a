"""MCP servers: how each is reached, what it may do, and how it is at the moment."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, WithJsonSchema

from app.core.custom_tools import SecretHeader

SERVER_NAME = r"^(?:[A-Za-z0-9](?:_?[.-])*_?)*[A-Za-z0-9]$"
"""Two underscores in a row stand between the server and the tool in the name of a tool."""
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
    """A token that goes along with every request; better by the name of a secret than in clear."""

    type: Literal["bearer"] = Field(default="bearer", description="A token.")
    secret: str | None = Field(default=None, description="The name of the secret that holds the token.")
    token: str | None = Field(default=None, description="The token itself; it becomes a secret and is not shown again.")


class OAuth(BaseModel, extra="forbid"):
    """The server's own way to let people in, or programs with `grant` `client_credentials`."""

    type: Literal["oauth"] = Field(description="OAuth.")
    grant: Literal["authorization_code", "client_credentials"] = Field(
        default="authorization_code", description="Whether a person signs in, or we do for ourselves."
    )
    scope: str | None = Field(default=None, description="Scopes to ask for, separated by spaces.")
    client_id: str | None = Field(default=None, description="Who we are there; registered on the fly when not given.")
    client_secret: SecretValue | None = Field(default=None, description="What proves it.")
    issuer: str | None = Field(
        default=None, max_length=2048, description="Who signs people in there; no other is taken. Else the server says."
    )


Auth = Annotated[BearerAuth | OAuth, Field(discriminator="type")]


class ServerDefinition(BaseModel, extra="forbid"):
    """What servers of all kinds have."""

    name: ServerName = Field(description="What its tools are called after: `mcp__{name}__{tool}`.", examples=["time"])
    enabled: bool = Field(default=True, description="Whether it is connected to.")
    startup_timeout: float = Field(default=30, gt=0, le=600, description="Seconds to start and say hello.")
    call_timeout: float = Field(
        default=300, gt=0, le=86_400, description="Seconds for a call; each sign of progress starts them anew."
    )
    parallel: bool = Field(default=False, description="Its tools may run together, also those that change something.")
    concurrency: int = Field(default=32, ge=1, le=1024, description="Most calls it gets at once.")
    queue: int = Field(default=256, ge=0, le=65_536, description="Most calls that wait for it; more are `Overloaded`.")
    allowed_tools: list[str] | None = Field(default=None, description="Only these tools, by the server's own names.")
    denied_tools: list[str] = Field(default=[], description="Without these tools, by the server's own names.")
    per_session: bool = Field(
        default=False, description="One connection for each session, with its workspace, instead of one for all."
    )
    era: Literal["auto", "older", "newer"] = Field(
        default="auto",
        description=(
            "How to speak with it: `older` says hello once (up to 2025-11-25), which is less work for the server with "
            "every call; `newer` says all in each message (2026-07-28); `auto`: the newer one if it can."
        ),
    )
    roots: list[str] | Literal["caller"] = Field(
        default=[],
        description="Folders it is told to work in; `caller`: those of the MCP client that makes the call.",
    )


class StdioServer(ServerDefinition):
    """A program of this machine that is spoken to over its input and output."""

    kind: Literal["stdio"] = Field(description="A program that we start.")
    command: str = Field(min_length=1, max_length=4096, description="The program.", examples=["mcp-server-time"])
    args: list[str] = Field(default=[], max_length=256, description="Its arguments.")
    env: dict[str, str | SecretValue] = Field(default={}, description="Its environment, some of it by secret name.")
    cwd: str | None = Field(default=None, description="The folder it starts in.")
    walls: bool = Field(default=False, description="Put it behind the same walls as what a model starts.")


class HttpServer(ServerDefinition):
    """A server elsewhere."""

    kind: Literal["http", "sse"] = Field(description="Streamable HTTP, or the older way with two addresses.")
    url: str = Field(max_length=8192, description="Where it is.", examples=["https://mcp.example.com/mcp"])
    headers: dict[str, str | SecretHeader] = Field(default={}, description="Headers to send, some by secret name.")
    auth: Auth | None = Field(default=None, description="How to be let in.")


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
    """A server that cannot be had like this; the sentence says why."""
