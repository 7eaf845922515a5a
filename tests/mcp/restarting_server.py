"""`python restarting_server.py PORT 2025|2026`: an SDK server over HTTP with sessions, to be killed and started again.

As a server of the year 2025 it refuses the later protocol in the words of the SDK of that time.
"""

import asyncio
import json
import os
import sys
from typing import Any

sys.path.pop(0)  # this folder, whose names are nobody's packages

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)
REFUSED = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "Unsupported protocol version"}}

server = MCPServer("restarting", log_level="ERROR")


@server.tool(annotations=READS)
def pid() -> str:
    """Who it is."""
    return str(os.getpid())


@server.tool()
async def waits(context: Context) -> str:
    """Says who it is, and does not answer."""
    await context.report_progress(1, None, str(os.getpid()))
    await asyncio.sleep(3600)
    return "never"


class Year2025:
    """Does not know what came later."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        version = dict(scope.get("headers") or ()).get(b"mcp-protocol-version", b"")
        if version < b"2026":
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(REFUSED).encode()})


if __name__ == "__main__":
    app: Any = server.streamable_http_app()
    uvicorn.run(
        Year2025(app) if sys.argv[2] == "2025" else app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error"
    )
