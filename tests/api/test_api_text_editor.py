"""The text editor that some models know by themselves: called like any tool, named by no list."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.tools.files import str_replace_based_edit_tool
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

NAME = "str_replace_based_edit_tool"


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    toys.more.append(str_replace_based_edit_tool.tool)
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


async def edit(client: httpx.AsyncClient, **arguments: Any) -> dict[str, Any]:
    answer = await client.post("/v1/calls", json={"tool": NAME, "arguments": arguments})
    assert answer.status_code == 200, answer.text
    call: dict[str, Any] = answer.json()
    return call


async def test_it_is_called_though_no_list_names_it(service: RunningService, client: httpx.AsyncClient) -> None:
    made = await edit(client, command="create", path="a.txt", file_text="one\n")
    seen = await edit(client, command="view", path="a.txt")
    listed = (await client.get("/v1/tools")).json()["data"]

    assert [made["status"], seen["status"]] == ["completed", "completed"]
    assert seen["result"]["output"] == "L1: one"
    assert (service.data_dir / "workspace/a.txt").read_text() == "one\n"
    assert NAME not in [tool["name"] for tool in listed]


async def test_rules_for_reading_and_editing_count_for_what_it_does(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    (service.data_dir / "workspace/a.txt").write_text("one\n")
    await client.post("/v1/rules", json={"permission": "edit", "pattern": "*", "action": "deny", "scope": "global"})

    seen = await edit(client, command="view", path="a.txt")
    changed = await edit(client, command="insert", path="a.txt", insert_line=0, insert_text="zero")

    assert (seen["status"], changed["error"]["code"]) == ("completed", "PermissionDenied")
    assert (service.data_dir / "workspace/a.txt").read_text() == "one\n"
