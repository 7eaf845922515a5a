"""Examples of MCP servers for the OpenAPI document."""

from typing import Any

from app.api.examples import CALL_ID

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
