"""The FastMCP client at work. `fastmcp4.py URL KEY` prints what it saw, as JSON."""

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport

forms: list[str] = []


async def answer(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult:
    forms.append(message)
    return ElicitResult(action="accept", content={"decision": "allow_once"})


async def main(url: str, key: str) -> dict[str, Any]:
    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {key}"})
    async with Client(transport, elicitation_handler=answer) as client:
        info = client.server_info
        return {"version": client.protocol_version, "server": info and info.name} | await work(client)


async def work(client: Client) -> dict[str, Any]:
    steps: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total))

    return {
        "tools": [tool.name for tool in await client.list_tools()],
        "read": await call(client, "read_file", {"file_path": "note.txt"}),
        "sum": await call(client, "mcp__fixture__test_structured_content", {"a": 2, "b": 3}),
        "picture": await call(client, "mcp__fixture__test_image_content"),
        "progress": [await call(client, "mcp__fixture__test_tool_with_progress", progress_handler=progress), steps],
        "error": await call(client, "mcp__fixture__test_error_handling"),
        "secret": [await call(client, "read_file", {"file_path": ".env"}), forms],
        "resources": sorted(str(resource.uri) for resource in await client.list_resources()),
        "prompts": sorted(prompt.name for prompt in await client.list_prompts()),
        "gave_up": await give_up(client),
        "canceled": await call(client, "mcp__fixture__test_canceled"),
    }


async def call(client: Client, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A result without what is the same in all."""
    result = await client.call_tool(name, arguments or {}, raise_on_error=False, **more)
    blocks = [block.text if block.type == "text" else block.type for block in result.content]
    return {"blocks": blocks, "structured": result.structured_content, "is_error": result.is_error}


async def give_up(client: Client) -> str:
    """Start something that never ends, and take it back; how that is told."""
    started = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        started.set()

    waiting = asyncio.create_task(client.call_tool("mcp__fixture__test_wait", {}, progress_handler=progress))
    await started.wait()
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        return "canceled"
    return "answered"


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2]))))  # noqa: T201
