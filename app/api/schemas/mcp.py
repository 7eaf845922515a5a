"""Responses about MCP servers, their resources and their prompts."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.views import AttachmentView


class InvalidToolView(BaseModel):
    """A tool of a server that cannot be used; the others can."""

    name: str = Field(description="What the server calls it.")
    reason: str = Field(description="Why not, in one sentence.")


class McpServerView(BaseModel):
    """An MCP server, and how it is."""

    name: str = Field(description="What its tools are called after.", examples=["docs"])
    owner: str | None = Field(description="Whose own it is; null is everybody's.")
    kind: Literal["stdio", "http", "sse"] = Field(description="How it is spoken to.")
    state: Literal["starting", "connected", "failed", "needs_auth", "disabled", "stopped"] = Field(
        description="How it is. `needs_auth`: somebody has to sign in, see `POST /v1/mcp/servers/{name}/auth`."
    )
    error: str | None = Field(description="What went wrong last, in one sentence.")
    next_retry_at: str | None = Field(description="When the next try to connect is, if there is one.")
    since: str | None = Field(description="Since when it is in this state.")
    protocol_version: str | None = Field(description="The version of MCP that is spoken with it.")
    server_info: dict[str, Any] | None = Field(description="What it says of itself: `name`, `version`.")
    instructions: str | None = Field(description="What it says about its use, written for a model.")
    tools: int = Field(description="How many tools it has that can be used.")
    invalid_tools: list[InvalidToolView] = Field(description="Tools it lists that cannot be used.")
    per_session: bool = Field(description="Whether each session has a connection of its own.")
    source: Literal["config", "rest"] = Field(description="Whether it is configured, or was added over HTTP.")
    enabled: bool = Field(description="Whether it is connected to.")
    definition: dict[str, Any] | None = Field(
        default=None, description="How it is reached; told to its owner and to admins, secrets by name only."
    )


class SignInView(BaseModel):
    """Where somebody signs in at a server."""

    url: str | None = Field(description="To be opened in a browser; null where it took no person, and is done.")
    expires_at: str | None = Field(description="Until when it can be finished.")


class ResourceView(BaseModel, extra="allow"):
    """Something a server lets be read, as the server says it."""

    server: str = Field(description="The server that has it.")
    uri: str = Field(description="What to read it by.")
    name: str | None = Field(default=None, description="A short name.")


class TemplateView(BaseModel, extra="allow"):
    """A pattern of resources, as the server says it."""

    server: str = Field(description="The server that has it.")
    uriTemplate: str = Field(description="An RFC 6570 template; filled in it is the URI of a resource.")
    name: str | None = Field(default=None, description="A short name.")


class PromptView(BaseModel, extra="allow"):
    """A prompt a server has ready, as the server says it."""

    server: str = Field(description="The server that has it.")
    name: str = Field(description="What to ask for it by.")
    arguments: list[dict[str, Any]] | None = Field(default=None, description="What can be filled in.")


class ContentsView(BaseModel):
    """What is in a resource."""

    server: str = Field(description="The server it was read from.")
    uri: str = Field(description="What was asked for.")
    contents: list[dict[str, Any]] = Field(
        description="As the server gave it: each with `uri`, `mimeType` and `text`. Of a `blob` there is a note, and "
        "its bytes are attached."
    )
    attachments: list[AttachmentView] = Field(description="What is no text, in the same order.")
    call: str = Field(description="The call that read it.")


class MessagesView(BaseModel, extra="allow"):
    """A prompt, filled in."""

    server: str = Field(description="The server it comes from.")
    name: str = Field(description="The prompt.")
    description: str | None = Field(default=None, description="What it is for.")
    messages: list[dict[str, Any]] = Field(description="What to put before a model, each with `role` and `content`.")
    call: str = Field(description="The call that filled it in.")
