"""The client of the SDK's second generation at work. `sdk2.py URL KEY MODE` prints what it saw, as JSON."""

import asyncio
import json
import sys
from typing import Any

import httpx2
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

forms: list[str] = []


async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    forms.append(params.message)
    return types.ElicitResult(action="accept", content={"decision": "allow_once"})


async def main(url: str, key: str, mode: str) -> dict[str, Any]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, elicitation_callback=answer) as client,
    ):
        info = client.server_info
        return {"version": client.protocol_version, "server": info and info.name} | await work(client)


async def work(client: Client) -> dict[str, Any]:
    steps: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total))

    return {
        "tools": [tool.name for tool in (await client.list_tools()).tools],
        "read": told(await client.call_tool("read_file", {"file_path": "note.txt"})),
        "sum": told(await client.call_tool("mcp__fixture__test_structured_content", {"a": 2, "b": 3})),
        "picture": told(await client.call_tool("mcp__fixture__test_image_content", {})),
        "progress": [
            told(await client.call_tool("mcp__fixture__test_tool_with_progress", {}, progress_callback=progress)),
            steps,
        ],
        "error": told(await client.call_tool("mcp__fixture__test_error_handling", {})),
        "secret": [told(await client.call_tool("read_file", {"file_path": ".env"})), forms],
        "resources": sorted(resource.uri for resource in (await client.list_resources()).resources),
        "prompts": sorted(prompt.name for prompt in (await client.list_prompts()).prompts),
        "gave_up": await give_up(client),
        "canceled": told(await client.call_tool("mcp__fixture__test_canceled", {})),
    }


async def give_up(client: Client) -> str:
    """Start something that never ends, and take it back; how that is told."""
    started = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        started.set()

    waiting = asyncio.create_task(client.call_tool("mcp__fixture__test_wait", {}, progress_callback=progress))
    await started.wait()
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        return "canceled"
    return "answered"


def told(result: types.CallToolResult) -> dict[str, Any]:
    """A result without what is the same in all."""
    blocks = [block.text if block.type == "text" else block.type for block in result.content]
    return {"blocks": blocks, "structured": result.structured_content, "is_error": result.is_error}


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))  # noqa: T201
