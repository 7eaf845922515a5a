"""Wherever a tool comes from, its calls go the same line and leave the same events."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.tools import BUILTINS
from tests.support.http_servers import reply, serving
from tests.support.services import RunningService, until
from tests.support.toy_tools import Toys

STORY = ["call.pending", "call.running", "call.completed"]
FAILED = ["call.pending", "call.error"]
FILE = """
from pydantic import BaseModel
from app.sdk import define_tool

class Args(BaseModel):
    city: str

@define_tool(tool_id="from_file", description="From a file.", parameters=Args)
async def from_file(args, ctx):
    return f"file {args.city}"
"""
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Builtins(Toys):
    """No toys: the tools a service really has."""

    @property
    def tools(self) -> Any:
        return BUILTINS


@pytest.fixture
async def service(data_dir: Path, tmp_path: Path) -> AsyncIterator[RunningService]:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "one.py").write_text(FILE)
    service = RunningService(data_dir, Builtins(), tools_dir=folder, private_networks=["127.0.0.0/8"])
    await service.open()
    yield service
    await service.close()


async def test_builtin_file_http_and_client_tools_leave_the_same_events(service: RunningService) -> None:
    async with serving() as peer:
        peer.pages["/weather"] = reply(b"http Oslo")
        http = {"kind": "http", "name": "from_http", "url": peer.url("/weather"), "places": {"city": "header"}}
        client = {"kind": "client", "name": "from_client"}
        for definition in (http, client):
            body = {"description": "From outside.", "parameters": CITY} | definition
            assert (await service.client.post("/v1/tools", json=body)).status_code == 201

        ids = [await completed(service, name) for name in ("from_file", "from_http", "from_client")]
        ids.append(await completed(service, "list_dir", {"dir_path": "."}))

    assert [service.story(id) for id in ids] == [STORY] * 4


@pytest.mark.parametrize("tool", ["from_file", "update_plan"])
async def test_a_mistake_leaves_the_same_events_too(service: RunningService, tool: str) -> None:
    call = (await service.client.post("/v1/calls", json={"tool": tool, "arguments": {"wrong": 1}})).json()

    assert (call["error"]["code"], service.story(call["id"])) == ("InvalidArgs", FAILED)


async def completed(service: RunningService, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """A call to its end; what the client has to run, this one runs."""
    body = {"tool": tool, "arguments": arguments or {"city": "Oslo"}}
    answer = await service.client.post("/v1/calls", params={"wait": 0}, json=body)
    id = str(answer.json()["id"])
    if tool == "from_client":
        await until(lambda: service.row(id)["status"] == "running")
        assert (await service.client.post(f"/v1/calls/{id}/result", json={"output": "client Oslo"})).status_code == 200
    ended = (await service.client.get(f"/v1/calls/{id}", params={"wait": 5})).json()
    assert ended["status"] == "completed", ended
    return id
