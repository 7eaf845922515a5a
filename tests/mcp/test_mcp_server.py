"""Toolcrib as an MCP server, spoken to by the SDK's own client over real HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.services import KEY, Service


@asynccontextmanager
async def mcp_client(service: Service, mode: str, more: dict[str, str] | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {KEY}"} | (more or {})
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{service.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_registry_is_listed_and_a_call_goes_the_line(service: Service, mode: str) -> None:
    async with mcp_client(service, mode) as client:
        listed = await client.list_tools()
        answer = await client.call_tool("echo", {"text": "hello"})

    assert [tool.name for tool in listed.tools] == [tool["name"] for tool in await tools_over_rest(service.client)]
    assert [block.text for block in answer.content if block.type == "text"] == ["hello"]
    assert answer.is_error is False
    [call] = (await service.client.get("/v1/calls")).json()["data"]
    assert (call["tool"], call["status"], call["arguments"]) == ("echo", "completed", {"text": "hello"})


async def test_what_the_model_got_wrong_is_an_error_it_can_read(service: Service) -> None:
    async with mcp_client(service, "auto") as client:
        answer = await client.call_tool("echo", {"txt": "hello"})

    assert answer.is_error is True
    [block] = answer.content
    assert block.type == "text"
    assert block.text.startswith("InvalidArgs: echo cannot take these arguments")


async def test_nobody_gets_in_without_a_key(service: Service) -> None:
    async with httpx.AsyncClient() as stranger:
        answer = await stranger.post(f"{service.url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert answer.status_code == 401


async def tools_over_rest(client: httpx.AsyncClient) -> list[dict[str, str]]:
    tools: list[dict[str, str]] = (await client.get("/v1/tools")).json()["data"]
    return tools
