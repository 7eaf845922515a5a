"""The client of the SDK's first generation at work. `sdk1.py URL KEY` prints what it saw, as JSON."""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client

forms: list[str] = []


async def answer(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    forms.append(params.message)
    return types.ElicitResult(action="accept", content={"decision": "allow_once"})


async def main(url: str, key: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        streamablehttp_client(url, headers=headers) as (read, write, _),
        ClientSession(read, write, elicitation_callback=answer) as session,
    ):
        hello = await session.initialize()
        return {"version": hello.protocolVersion, "server": hello.serverInfo.name} | await work(session)


async def work(session: ClientSession) -> dict[str, Any]:
    steps: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total))

    return {
        "tools": [tool.name for tool in (await session.list_tools()).tools],
        "read": told(await session.call_tool("read_file", {"file_path": "note.txt"})),
        "sum": told(await session.call_tool("mcp__fixture__test_structured_content", {"a": 2, "b": 3})),
        "picture": told(await session.call_tool("mcp__fixture__test_image_content", {})),
        "progress": [
            told(await session.call_tool("mcp__fixture__test_tool_with_progress", {}, progress_callback=progress)),
            steps,
        ],
        "error": told(await session.call_tool("mcp__fixture__test_error_handling", {})),
        "secret": [told(await session.call_tool("read_file", {"file_path": ".env"})), forms],
        "resources": sorted(str(resource.uri) for resource in (await session.list_resources()).resources),
        "prompts": sorted(prompt.name for prompt in (await session.list_prompts()).prompts),
        "gave_up": await give_up(session),
        "canceled": told(await session.call_tool("mcp__fixture__test_canceled", {})),
    }


async def give_up(session: ClientSession) -> str:
    """Start something that never ends, and take it back; how that is told."""
    started = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        started.set()

    call = asyncio.create_task(session.call_tool("mcp__fixture__test_wait", {}, progress_callback=progress))
    await started.wait()
    request = session._request_id - 1  # the client does not tell it
    taken = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=request))
    await session.send_notification(types.ClientNotification(taken))
    try:
        await call
    except McpError:
        return "canceled"
    return "answered"


def told(result: types.CallToolResult) -> dict[str, Any]:
    """A result without what is the same in all."""
    blocks = [block.text if block.type == "text" else block.type for block in result.content]
    return {"blocks": blocks, "structured": result.structuredContent, "is_error": result.isError}


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2]))))  # noqa: T201
