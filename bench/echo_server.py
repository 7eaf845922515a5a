"""`python bench/echo_server.py stdio` or `… http PORT`: a minimal hand-written MCP server.

It costs next to nothing, so that what is measured is whoever speaks to it. It speaks both eras of the protocol: with
hello and without. Only the standard library is loaded for it. `python bench/echo_server.py sdk` is the same echo as
anybody would write it.
"""

import asyncio
import json
import sys
from typing import Any, cast

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
TOOL = {
    "name": "echo",
    "description": "Say it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}
INFO = {"name": "echo", "version": "1"}
CAN: dict[str, Any] = {"capabilities": {"tools": {}}}
FRESH = {"ttlMs": 0, "cacheScope": "private"}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a message; None where there is none."""
    if "id" not in message or "method" not in message:
        return None
    params = message.get("params") or {}
    result = result_of(message["method"], params)
    if result is None:
        error = {"code": -32601, "message": "no such method"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    if "_meta" in params:  # of the modern era, or it does no harm
        result = {"resultType": "complete"} | result
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    if method == "tools/list":
        return {"tools": [TOOL]} | FRESH
    if method == "server/discover":
        return {"supportedVersions": [MODERN], "serverInfo": INFO} | CAN | FRESH
    if method == "initialize":
        wanted = params.get("protocolVersion")
        return {"protocolVersion": min(str(wanted), LEGACY), "serverInfo": INFO} | CAN
    return {} if method == "ping" else None


def serve_stdio() -> None:
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        said = answer(json.loads(line))
        if said is not None:
            out.write(json.dumps(said).encode() + b"\n")
            out.flush()


class Connection(asyncio.Protocol):
    """HTTP with bodies of a known length, one after the other."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, _, rest = head.partition(b"content-length:")
            size = int(rest.split(b"\r\n", 1)[0] or 0)
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            self.take(head.split(b" ", 1)[0], body)

    def take(self, method: bytes, body: bytes) -> None:
        if method != b"post":
            self.transport.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        said = answer(json.loads(body))
        if said is None:
            self.transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        self.answer(json.dumps(said).encode())

    def answer(self, content: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % len(content) + content)


async def serve_http(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


def serve_sdk() -> None:
    from mcp.server import MCPServer
    from mcp_types import ToolAnnotations

    server = MCPServer("echo", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    def echo(text: str) -> str:
        """Say it again."""
        return text

    server.run("stdio")


if __name__ == "__main__":
    del sys.path[0]  # this folder, which has a module of the SDK's name
    if sys.argv[1] == "stdio":
        serve_stdio()
    elif sys.argv[1] == "sdk":
        serve_sdk()
    else:
        asyncio.run(serve_http(int(sys.argv[2])))
