"""Responses about MCP servers, their resources and their prompts."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.views import AttachmentView


class InvalidToolView(BaseModel):
    """A tool of a server that cannot be used."""

    name: str = Field(description="The server's name for it.")
    reason: str = Field(description="Why not, in one sentence.")


class McpServerView(BaseModel):
    """An MCP server and its state."""

    name: str = Field(description="Its name, which is the prefix of its tools' names.", examples=["docs"])
    owner: str | None = Field(description="Its owner; null: global.")
    kind: Literal["stdio", "http", "sse"] = Field(description="Its transport.")
    state: Literal["starting", "connected", "failed", "needs_auth", "disabled", "stopped"] = Field(
        description="Its state. `needs_auth`: a person must sign in, see `POST /v1/mcp/servers/{name}/auth`."
    )
    error: str | None = Field(description="The last error, in one sentence.")
    next_retry_at: str | None = Field(description="When the next attempt to connect is, if there is one.")
    since: str | None = Field(description="Since when it is in this state.")
    protocol_version: str | None = Field(description="The MCP version used with it.")
    server_info: dict[str, Any] | None = Field(description="Its `serverInfo`: `name`, `version`.")
    instructions: str | None = Field(description="Its `instructions` for the model.")
    tools: int = Field(description="The number of its usable tools.")
    invalid_tools: list[InvalidToolView] = Field(description="Tools it lists that cannot be used.")
    per_session: bool = Field(description="Whether each session has a connection of its own.")
    source: Literal["config", "rest"] = Field(description="Whether it is configured or was added over HTTP.")
    enabled: bool = Field(description="Whether it is enabled.")
    definition: dict[str, Any] | None = Field(
        default=None, description="Its definition, for its owner and admins; secrets by name only."
    )


class SignInView(BaseModel):
    """Where a person signs in at a server."""

    url: str | None = Field(description="The URL to open in a browser; null when no person is needed and it is done.")
    expires_at: str | None = Field(description="When it expires.")


class ResourceView(BaseModel, extra="allow"):
    """A resource, as the server lists it."""

    server: str = Field(description="Its server.")
    uri: str = Field(description="Its URI.")
    name: str | None = Field(default=None, description="A short name.")


class TemplateView(BaseModel, extra="allow"):
    """A resource template, as the server lists it."""

    server: str = Field(description="Its server.")
    uriTemplate: str = Field(description="An RFC 6570 template; filled in it is the URI of a resource.")
    name: str | None = Field(default=None, description="A short name.")


class PromptView(BaseModel, extra="allow"):
    """A prompt, as the server lists it."""

    server: str = Field(description="Its server.")
    name: str = Field(description="Its name.")
    arguments: list[dict[str, Any]] | None = Field(default=None, description="Its arguments.")


class ContentsView(BaseModel):
    """The contents of a resource."""

    server: str = Field(description="The server it was read from.")
    uri: str = Field(description="The requested URI.")
    contents: list[dict[str, Any]] = Field(
        description="As the server sent them: each with `uri`, `mimeType` and `text`. A `blob` is replaced by a note, "
        "and its bytes are attached."
    )
    attachments: list[AttachmentView] = Field(description="The blobs, in the same order.")
    call: str = Field(description="The call that read it.")


class MessagesView(BaseModel, extra="allow"):
    """A prompt, filled in."""

    server: str = Field(description="The server it comes from.")
    name: str = Field(description="The prompt.")
    description: str | None = Field(default=None, description="What it is for.")
    messages: list[dict[str, Any]] = Field(description="The messages for the model, each with `role` and `content`.")
    call: str = Field(description="The call that filled it in.")
