"""MCP as it goes over the wire, without a library: a request of the era without sessions, a session of the other."""

import json
from typing import Any

import httpx

VERSION = "2026-07-28"
ABOUT = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def spoken(method: str, params: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """What `client.post("/mcp", …)` takes for this request."""
    given = params or {}
    meta = ABOUT | given.get("_meta", {})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given | {"_meta": meta}}
    return {"json": body, "headers": spoken_headers(method, given.get("name") or given.get("uri")) | headers}


def spoken_headers(method: str, name: str | None = None) -> dict[str, str]:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    return headers | {"Mcp-Name": name} if name else headers


def called(tool: str, arguments: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """The same for a call of a tool."""
    return spoken("tools/call", {"name": tool, "arguments": arguments or {}}, **headers)


class Session2025:
    """A session of the handshake era."""

    def __init__(self, client: httpx.AsyncClient, version: str = "2025-06-18") -> None:
        self.client = client
        self.version = version
        self.headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}

    async def begin(self, **capabilities: Any) -> dict[str, Any]:
        """Say hello; the answer is what the server says of itself."""
        who = {"name": "tests", "version": "1"}
        about = {"protocolVersion": self.version, "capabilities": capabilities, "clientInfo": who}
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
        self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: dict[str, Any] = messages(answer.text)[-1]["result"]
        return result

    async def post(self, message: dict[str, Any]) -> httpx.Response:
        return await self.client.post("/mcp", json=message, headers=self.headers)

    async def ask(self, id: int, method: str, **params: Any) -> dict[str, Any]:
        """A request, and the last message of its answer."""
        answer = await self.post({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        assert answer.status_code == 200, answer.text
        return messages(answer.text)[-1]


def messages(text: str) -> list[dict[str, Any]]:
    """What is said in a stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
