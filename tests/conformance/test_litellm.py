"""LiteLLM as the gateway of docker-compose.yml: with the settings of deploy/, it lists and calls our tools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import yaml  # type: ignore[import-untyped]
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from app.core.principals import Scope
from tests.conformance.mcp_servers import fixture, workspace_of
from tests.conformance.paths import PEERS, ROOT, conformance, listens, running
from tests.support.ask_calls import key_with
from tests.support.mcp_service import crib
from tests.support.services import RunningService

pytestmark = conformance

MASTER = "sk-the-master-key-of-these-tests"
HEADERS = {"Authorization": f"Bearer {MASTER}"}


@asynccontextmanager
async def litellm(folder: Path, service: RunningService, port: int) -> AsyncIterator[str]:
    """LiteLLM with the settings we ship; only where Toolcrib is differs from them. Its address."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "deploy/litellm.yaml").read_text())
    assert settings["mcp_servers"]["toolcrib"]["url"] == "http://toolcrib:8700/mcp"
    settings["mcp_servers"]["toolcrib"]["url"] = f"{service.url}/mcp"
    config, log = folder / "litellm.yaml", folder / "litellm.log"
    config.write_text(yaml.safe_dump(settings))
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": MASTER,
        "OPENAI_API_KEY": "nobody is asked",
        "TOOLCRIB_GATEWAY_KEY": await key_with(service, Scope.CALLS_RUN),
    }
    where = ("--config", config, "--host", "127.0.0.1", "--port", str(port))
    async with running(log, PEERS / "litellm/bin/litellm", *where, **environment) as process:
        await listens(port, process, log)
        yield f"http://127.0.0.1:{port}"


async def test_litellm_lists_and_calls_our_tools(data_dir: Path, tmp_path: Path, unused_tcp_port: int) -> None:
    async with (
        crib(data_dir, {"fixture": fixture()}) as service,
        litellm(tmp_path, service, unused_tcp_port) as url,
        httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=60, trust_env=False) as rest,
    ):
        (workspace_of(service) / "note.txt").write_text("read through a gateway\n")
        listed = (await rest.get("/mcp-rest/tools/list")).json()["tools"]
        [server] = {tool["mcp_info"]["server_id"] for tool in listed}

        async def call(tool: str, **arguments: object) -> dict[str, Any]:
            body = {"server_id": server, "name": tool, "arguments": arguments}
            answer = await rest.post("/mcp-rest/tools/call", json=body)
            assert answer.status_code == 200, answer.text
            result: dict[str, Any] = answer.json()
            return result

        read = await call("read_file", file_path="note.txt")
        summed = await call("mcp__fixture__test_structured_content", a=2, b=3)
        failed = await call("mcp__fixture__test_error_handling")
        over_mcp = await listed_and_read(f"{url}/mcp/")
        calls = (await service.client.get("/v1/calls")).json()["data"]

    names = {tool["name"] for tool in listed}
    assert {"read_file", "mcp__fixture__test_structured_content"} <= names
    assert (read["isError"], read["content"][0]["text"]) == (False, "L1: read through a gateway")
    assert summed["structuredContent"] == {"sum": 5}
    assert failed["isError"] is True
    assert "This tool intentionally returns an error for testing" in failed["content"][0]["text"]
    assert over_mcp == ({f"toolcrib-{name}" for name in names}, "L1: read through a gateway")
    assert [call["tool"] for call in calls].count("read_file") == 2


async def listed_and_read(url: str) -> tuple[set[str], str]:
    """What an MCP client sees of us through the gateway."""
    async with (
        httpx2.AsyncClient(headers=HEADERS) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        listed = await client.list_tools()
        read = await client.call_tool("toolcrib-read_file", {"file_path": "note.txt"})
    [block] = read.content
    assert block.type == "text"
    return {tool.name for tool in listed.tools}, block.text
