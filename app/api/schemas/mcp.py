"""Shapes of MCP servers and what they have, for the OpenAPI document and for typed clients.

Examples of MCP servers for the OpenAPI document.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.examples import CALL_ID
from app.api.schemas.views import AttachmentView

AUTH: dict[str, Any] = {"type": "bearer", "secret": "DOCS_TOKEN"}
HTTP_SERVER: dict[str, Any] = {"name": "docs", "url": "https://mcp.example.com/mcp", "auth": AUTH}
STDIO_SERVER: dict[str, Any] = {
    "name": "time",
    "command": "uvx",
    "args": ["mcp-server-time", "--local-timezone", "Europe/Vienna"],
    "env": {"TZ_TOKEN": {"secret": "TZ_TOKEN"}},
}
TOKEN: dict[str, Any] = {"type": "bearer", "token": "becomes-a-secret-and-is-not-shown-again"}
TOOL_NAMES: dict[str, Any] = {"tool_names": ["search"]}
APPROVAL: dict[str, Any] = {"always": TOOL_NAMES}
MODEL_SERVER: dict[str, Any] = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://mcp.example.com/mcp",
    "authorization": TOKEN,
    "allowed_tools": ["search", "fetch"],
    "require_approval": "never",
}
INVALID_TOOL: dict[str, Any] = {"name": "broken", "reason": "Its inputSchema is no object."}
DEFINITION: dict[str, Any] = {
    "name": "docs",
    "enabled": True,
    "startup_timeout": 30.0,
    "call_timeout": 300.0,
    "parallel": False,
    "concurrency": 32,
    "queue": 256,
    "allowed_tools": None,
    "denied_tools": [],
    "per_session": False,
    "era": "auto",
    "roots": [],
    "kind": "http",
    "url": "https://mcp.example.com/mcp",
    "headers": {},
    "auth": {"type": "bearer", "secret": "mcp_docs_token"},
}
SERVER: dict[str, Any] = {
    "name": "docs",
    "owner": None,
    "kind": "http",
    "state": "connected",
    "error": None,
    "next_retry_at": None,
    "since": "2026-11-16T01:52:03.118000Z",
    "protocol_version": "2025-11-25",
    "server_info": {"name": "docs", "version": "1.4.0"},
    "instructions": "Search first, then fetch.",
    "tools": 2,
    "invalid_tools": [INVALID_TOOL],
    "per_session": False,
    "source": "rest",
    "enabled": True,
    "definition": DEFINITION,
}
RESOURCE: dict[str, Any] = {"server": "docs", "uri": "docs://guide", "name": "guide", "mimeType": "text/markdown"}
TEMPLATE: dict[str, Any] = {"server": "docs", "uriTemplate": "docs://{page}", "name": "page"}
PROMPT: dict[str, Any] = {
    "server": "docs",
    "name": "summarise",
    "arguments": [{"name": "page", "description": "Which one.", "required": True}],
}
CONTENTS: dict[str, Any] = {
    "server": "docs",
    "uri": "docs://guide",
    "contents": [{"uri": "docs://guide", "mimeType": "text/markdown", "text": "# Guide"}],
    "attachments": [],
    "call": CALL_ID,
}
PROMPT_REQUEST: dict[str, Any] = {"server": "docs", "name": "summarise", "arguments": {"page": "guide"}}
MESSAGES: dict[str, Any] = {
    "server": "docs",
    "name": "summarise",
    "description": "Sum a page up.",
    "messages": [{"role": "user", "content": {"type": "text", "text": "Sum up: # Guide"}}],
    "call": CALL_ID,
}
SIGN_IN: dict[str, Any] = {
    "url": "https://login.example.com/authorize?response_type=code&client_id=toolcrib&state=made-up-for-this-once",
    "expires_at": "2026-11-16T02:01:11.000000Z",
}


class InvalidToolView(BaseModel, json_schema_extra={"examples": [INVALID_TOOL]}):
    """A tool of a server that cannot be used; the others can."""

    name: str = Field(description="What the server calls it.")
    reason: str = Field(description="Why not, in one sentence.")


class McpServerView(BaseModel, json_schema_extra={"examples": [SERVER]}):
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


class SignInView(BaseModel, json_schema_extra={"examples": [SIGN_IN]}):
    """Where somebody signs in at a server."""

    url: str | None = Field(description="To be opened in a browser; null where it took no person, and is done.")
    expires_at: str | None = Field(description="Until when it can be finished.")


class ResourceView(BaseModel, extra="allow", json_schema_extra={"examples": [RESOURCE]}):
    """Something a server lets be read, as the server says it."""

    server: str = Field(description="The server that has it.")
    uri: str = Field(description="What to read it by.")
    name: str | None = Field(default=None, description="A short name.")


class TemplateView(BaseModel, extra="allow", json_schema_extra={"examples": [TEMPLATE]}):
    """A pattern of resources, as the server says it."""

    server: str = Field(description="The server that has it.")
    uriTemplate: str = Field(description="An RFC 6570 template; filled in it is the URI of a resource.")
    name: str | None = Field(default=None, description="A short name.")


class PromptView(BaseModel, extra="allow", json_schema_extra={"examples": [PROMPT]}):
    """A prompt a server has ready, as the server says it."""

    server: str = Field(description="The server that has it.")
    name: str = Field(description="What to ask for it by.")
    arguments: list[dict[str, Any]] | None = Field(default=None, description="What can be filled in.")


class ContentsView(BaseModel, json_schema_extra={"examples": [CONTENTS]}):
    """What is in a resource."""

    server: str = Field(description="The server it was read from.")
    uri: str = Field(description="What was asked for.")
    contents: list[dict[str, Any]] = Field(
        description="As the server gave it: each with `uri`, `mimeType` and `text`. Of a `blob` there is a note, and "
        "its bytes are attached."
    )
    attachments: list[AttachmentView] = Field(description="What is no text, in the same order.")
    call: str = Field(description="The call that read it.")


class MessagesView(BaseModel, extra="allow", json_schema_extra={"examples": [MESSAGES]}):
    """A prompt, filled in."""

    server: str = Field(description="The server it comes from.")
    name: str = Field(description="The prompt.")
    description: str | None = Field(default=None, description="What it is for.")
    messages: list[dict[str, Any]] = Field(description="What to put before a model, each with `role` and `content`.")
    call: str = Field(description="The call that filled it in.")
