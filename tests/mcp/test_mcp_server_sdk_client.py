"""Toolcrib as an MCP server, spoken to by the SDK's own client over real HTTP."""

import base64

import httpx
import pytest
from mcp import types
from PIL import Image

from app.tools.files import apply_patch, read_file, view_image
from tests.mcp.server_clients import mcp_client
from tests.support.services import RunningService


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_registry_is_listed_and_a_call_goes_the_line(service: RunningService, mode: str) -> None:
    async with mcp_client(service, mode) as client:
        listed = await client.list_tools()
        answer = await client.call_tool("echo", {"text": "hello"})

    assert [tool.name for tool in listed.tools] == [tool["name"] for tool in await tools_over_rest(service.client)]
    assert [block.text for block in answer.content if block.type == "text"] == ["hello"]
    assert answer.is_error is False
    [call] = (await service.client.get("/v1/calls")).json()["data"]
    assert (call["tool"], call["status"], call["arguments"]) == ("echo", "completed", {"text": "hello"})


async def test_what_the_model_got_wrong_is_an_error_it_can_read(service: RunningService) -> None:
    async with mcp_client(service, "auto") as client:
        answer = await client.call_tool("echo", {"txt": "hello"})

    assert answer.is_error is True
    [block] = answer.content
    assert block.type == "text"
    assert block.text.startswith("InvalidArgs: echo cannot take these arguments")


async def test_a_tool_of_free_text_says_what_its_one_argument_is(service: RunningService) -> None:
    service.services.dispatcher.registry.add(apply_patch.tool)
    patch = "*** Begin Patch\n*** Add File: made.txt\n+made\n*** End Patch"

    async with mcp_client(service, "auto") as client:
        [listed] = [tool for tool in (await client.list_tools()).tools if tool.name == "apply_patch"]
        answer = await client.call_tool("apply_patch", {"input": patch})

    assert listed.input_schema == apply_patch.tool.schema
    assert answer.is_error is False
    assert (service.data_dir / "workspace/made.txt").read_text() == "made\n"


@pytest.mark.parametrize("size", [8, 400])
async def test_attachments_come_along_wherever_they_are_kept(service: RunningService, size: int) -> None:
    """One is small enough to be in the result, the other one is kept beside it."""
    folder = service.data_dir / "workspace"
    Image.effect_noise((size, size * 3), 90).convert("RGB").save(folder / "noise.png")
    (folder / "paper.pdf").write_bytes(b"%PDF-1.7" + bytes(size * 1000))
    for tool in (view_image.tool, read_file.tool):
        service.services.dispatcher.registry.add(tool)

    async with mcp_client(service, "auto") as client:
        seen = await client.call_tool("view_image", {"path": "noise.png"})
        read = await client.call_tool("read_file", {"file_path": "paper.pdf"})

    assert [block.type for block in seen.content] == ["text", "image"]
    picture, paper = seen.content[1], read.content[1]
    assert isinstance(picture, types.ImageContent)
    assert picture.mime_type == "image/png"
    assert base64.b64decode(picture.data) == (folder / "noise.png").read_bytes()
    assert isinstance(paper, types.EmbeddedResource)
    assert isinstance(paper.resource, types.BlobResourceContents)
    assert paper.resource.mime_type == "application/pdf"
    assert base64.b64decode(paper.resource.blob) == (folder / "paper.pdf").read_bytes()


async def test_nobody_gets_in_without_a_key(service: RunningService) -> None:
    async with httpx.AsyncClient() as stranger:
        answer = await stranger.post(f"{service.url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert answer.status_code == 401


async def tools_over_rest(client: httpx.AsyncClient) -> list[dict[str, str]]:
    tools: list[dict[str, str]] = (await client.get("/v1/tools")).json()["data"]
    return tools
