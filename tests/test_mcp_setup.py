"""MCP servers in a running service: real programs, put together as the settings say."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import environment, key_of, start, stop, url_of
from tests.support.services import Crib, RunningService, until
from tests.support.toy_tools import Toys

HANG = 30.0
SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    match asked["method"]:
        case "initialize":
            hello = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "here"}, "capabilities": {"tools": {}}}
            answer["result"] = hello
        case "tools/list":
            answer["result"] = {"tools": [{"name": "where", "inputSchema": {}}]}
        case "tools/call":
            text = json.dumps({"pid": os.getpid(), "cwd": os.getcwd()})
            answer["result"] = {"content": [{"type": "text", "text": text}]}
        case method:
            answer["error"] = {"code": -32601, "message": method}
    print(json.dumps(answer), flush=True)
"""
RULES = [{"permission": "mcp", "action": "allow"}]


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Any]:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return {"command": sys.executable, "args": ["-I", "-S", str(script)]}


@pytest.fixture
async def service(data_dir: Path, toys: Toys, program: dict[str, Any], tmp_path: Path) -> AsyncIterator[RunningService]:
    servers = {"my-srv": program, "my_srv": program, "own": program | {"per_session": True}}
    service = RunningService(data_dir, toys, rules=RULES, workspace_roots=[tmp_path], mcp={"servers": servers})
    await service.open()
    yield service
    await service.close()


async def tools_of(service: RunningService) -> list[str]:
    listed = (await service.client.get("/v1/tools", params={"source": "mcp"})).json()["data"]
    return [tool["name"] for tool in listed]


async def connected(service: RunningService, name: str) -> dict[str, Any]:
    async with asyncio.timeout(HANG):
        while (view := (await service.client.get(f"/v1/mcp/servers/{name}")).json())["state"] != "connected":
            pass
    return dict(view)


async def where(service: RunningService, tool: str, **more: Any) -> dict[str, Any]:
    call = (await service.client.post("/v1/calls", json={"tool": tool, "arguments": {}} | more)).json()
    assert call["status"] == "completed", call
    return dict(json.loads(call["result"]["output"]))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def gone(pid: int) -> None:
    async with asyncio.timeout(HANG):
        while is_alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_servers_whose_names_look_alike_are_all_there_killed_and_back(service: RunningService) -> None:
    for name in ("my-srv", "my_srv", "own"):
        await connected(service, name)
    names = await tools_of(service)
    alike = [name for name in names if name.startswith("mcp__my_srv__where_")]
    before = [await where(service, name) for name in alike]

    os.kill(before[0]["pid"], signal.SIGKILL)
    after = [await where(service, name) for name in alike]

    assert names == [*alike, "mcp__own__where"]
    assert len(alike) == 2
    assert after[0]["pid"] != before[0]["pid"]
    assert after[1] == before[1]
    await service.close()
    assert not any(is_alive(one["pid"]) for one in (*before, *after))


async def test_a_session_has_a_server_of_its_own_in_its_workspace(service: RunningService, tmp_path: Path) -> None:
    await connected(service, "own")
    (tmp_path / "blue").mkdir()
    made = await service.client.post("/v1/sessions", json={"id": "blue", "workspace": str(tmp_path / "blue")})
    assert made.status_code == 201, made.text

    plain, blue = await where(service, "own__where"), await where(service, "own__where", session="blue")
    again = await where(service, "own__where", session="blue")

    assert blue == again
    assert (blue["cwd"], blue["pid"] != plain["pid"]) == (str(tmp_path / "blue"), True)
    assert (await service.client.delete("/v1/sessions/blue")).status_code == 204
    await gone(blue["pid"])
    assert is_alive(plain["pid"])


async def test_how_servers_are_is_counted(service: RunningService) -> None:
    for name in ("my-srv", "my_srv", "own"):
        await connected(service, name)

    text = (await service.client.get("/metrics")).text

    assert 'toolcrib_mcp_servers{state="connected"} 3.0' in text
    assert 'toolcrib_mcp_servers{state="failed"} 0.0' in text


def test_a_hangup_signal_reads_the_configured_servers_anew(tmp_path: Path, program: dict[str, Any]) -> None:
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"first": program}}))
    process, announced = start(tmp_path, "--mcp-config", str(config))
    try:
        headers = {"Authorization": f"Bearer {key_of(tmp_path)}"}
        with httpx.Client(base_url=url_of(announced), headers=headers, timeout=HANG, trust_env=False) as client:
            with client.stream("GET", "/v1/events", params={"types": "mcp.status"}) as events:
                frames = (json.loads(line[6:])["data"] for line in events.iter_lines() if line.startswith("data: "))
                config.write_text(json.dumps({"mcpServers": {"second": program}}))
                process.send_signal(signal.SIGHUP)
                assert any((frame["server"], frame["state"]) == ("second", "connected") for frame in frames)
            names = [view["name"] for view in client.get("/v1/mcp/servers").json()["data"]]
            tools = [tool["name"] for tool in client.get("/v1/tools", params={"source": "mcp"}).json()["data"]]
    finally:
        code = stop(process)

    assert (names, tools, code) == (["second"], ["mcp__second__where"], 0)


async def test_a_configuration_that_cannot_be_read_any_more_changes_nothing(
    crib: Crib, program: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"first": program}}))
    crib.settings["mcp_config"] = config
    await crib.open()

    config.write_text("{")
    crib.house.schedule_reload()
    await until(lambda: "are not reloaded" in caplog.text)

    assert [view["name"] for view in crib.services.servers.views("admin", is_admin=True)] == ["first"]


def test_a_service_without_servers_loads_nothing_that_speaks_to_them(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from app.config import Settings
from app.service import Service
from app.tools import BUILTINS

async def main():
    house = Service(Settings(data_dir=Path(sys.argv[1])), BUILTINS)
    await house.open()
    heavy = {"mcp", "mcp_types", "aiohttp", "httpx2", "jsonschema", "app.mcp.client.connection"}
    print(*sorted(heavy & set(sys.modules)))
    await house.close()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )

    assert done.stdout == "\n"
