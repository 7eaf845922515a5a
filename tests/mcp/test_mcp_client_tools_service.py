"""Calls of a real MCP server through a running service: what its tools do meanwhile, give, and leave."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_service import ask_of, begun, call, crib, done, ended
from tests.support.services import RunningService

PROGRAM = str(Path(__file__).with_name("progress_server.py"))


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the server writes down what it must not do twice."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.fixture
async def talking(data_dir: Path, marks: Path) -> AsyncIterator[RunningService]:
    """A service with one server."""
    server = {"command": sys.executable, "args": ["-I", "-S", PROGRAM], "env": {"MARKS": str(marks)}, "parallel": True}
    async with crib(data_dir, {"talk": server}) as service:
        yield service


async def events(service: RunningService, id: str, type: str) -> list[dict[str, Any]]:
    answer = await service.client.get(f"/v1/calls/{id}/events", headers={"Accept": "application/json"})
    return [event["data"] for event in answer.json()["data"] if event["type"] == type]


async def test_progress_is_told_as_events_and_what_fails_says_so(talking: RunningService) -> None:
    walked = await call(talking, "mcp__talk__steps")
    failed = await call(talking, "mcp__talk__fail")

    assert walked["result"]["output"] == "walked"
    assert (await events(talking, walked["id"], "call.progress"))[-1] == {
        "title": "step 3",
        "metadata": {"progress": 3, "total": 3},
    }
    assert failed["error"] == {"code": "McpError", "message": "There is no bread left.", "retryable": False}
    assert failed["result"]["output"] == "There is no bread left."


async def test_a_canceled_call_is_given_up_by_the_server_too(talking: RunningService) -> None:
    id = await begun(talking, "mcp__talk__hang")
    async with asyncio.timeout(20):
        while not await events(talking, id, "call.progress"):
            pass

    canceled = (await talking.client.post(f"/v1/calls/{id}/cancel")).json()

    assert canceled["error"]["code"] == "Canceled"
    assert (await done(talking, "mcp__talk__given_up"))["output"] == "1"


async def test_files_come_along_small_and_large(talking: RunningService) -> None:
    small = await done(talking, "mcp__talk__files")
    large = await call(talking, "mcp__talk__files", {"size": 400_000})

    assert small["output"].startswith("note://1:\na note\n[Content of the unknown type hologram")
    assert small["metadata"]["unknown_content"] == [{"type": "hologram", "rays": 7}]
    assert small["attachments"][0]["url"].startswith("data:image/png;base64,iVBORw")
    [attached] = large["result"]["attachments"]
    got = await talking.client.get(attached["url"])
    assert (got.headers["content-type"], len(got.content)) == ("image/png", 400_004)


async def test_a_violated_output_schema_and_a_large_text_lose_nothing(talking: RunningService) -> None:
    counted = await done(talking, "mcp__talk__count")
    big = await call(talking, "mcp__talk__big", {"size": 5_000_000})

    assert counted["structured"] == {"n": "five"}
    assert "expected integer" in counted["metadata"]["output_schema_violation"]
    assert big["result"]["metadata"]["truncated"] is True
    whole = await talking.client.get(f"/v1/calls/{big['id']}/output", params={"limit": 10})
    assert whole.headers["Toolcrib-Output-Total"] == "5000000"


async def test_what_the_server_asks_is_answered_over_http(talking: RunningService) -> None:
    id = await begun(talking, "mcp__talk__ask")
    ask = await ask_of(talking, id)
    address = f"/v1/asks/{ask['id']}/answer"

    wrong = await talking.client.post(address, json={"content": {"age": 3}})
    right = await talking.client.post(address, json={"content": {"name": "Ada", "age": "36"}})
    view = await ended(talking, id)

    assert (ask["kind"], ask["metadata"]["message"], ask["tool"]) == ("elicitation", "Who?", "mcp__talk__ask")
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "Required: name.")
    assert right.status_code == 200
    assert json.loads(view["result"]["output"]) == {
        "action": "accept",
        "content": {"name": "Ada", "age": 36, "tags": ["c"]},
    }


async def test_a_tool_that_asks_as_in_the_older_era_is_helped_by_being_spoken_to_like_that(data_dir: Path) -> None:
    asking = {"command": sys.executable, "args": [str(Path(PROGRAM).with_name("elicitation_server.py"))]}
    async with crib(data_dir, {"new": asking, "old": asking | {"era": "older"}}) as service:
        at_a_loss = await call(service, "mcp__new__greet")
        id = await begun(service, "mcp__old__greet")
        ask = await ask_of(service, id)
        await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {"name": "Ada"}})
        view = await ended(service, id)

    assert at_a_loss["error"]["code"] == "McpError"
    assert at_a_loss["error"]["message"] == (
        "The MCP server new could not send a request to its client: it sends requests as in 2025-11-25; its "
        'operator has to set its `era` to "older".'
    )
    assert view["result"]["output"] == "Hello, Ada."


async def test_a_server_that_dies_is_told_at_once_is_back_and_got_the_call_once(
    talking: RunningService, marks: Path
) -> None:
    beside = await begun(talking, "mcp__talk__hang", {})
    died = await call(talking, "mcp__talk__die")
    hanging = await ended(talking, beside)

    assert died["error"]["code"] == hanging["error"]["code"] == "McpDisconnected"
    assert "not sent again" in died["error"]["message"]
    assert (marks / "died").read_text() == "x"
    read = await done(talking, "read_mcp_resource", {"server": "talk", "uri": "note://1"})
    assert json.loads(read["output"])["contents"] == [{"uri": "note://1", "text": "a note"}]
    assert (await done(talking, "mcp__talk__echo", {"text": "back"}))["output"] == "back"


async def test_what_only_reads_is_sent_once_more(talking: RunningService, marks: Path) -> None:
    assert (await done(talking, "mcp__talk__again"))["output"] == "this time"
    assert (marks / "again").read_text() == "xx"


async def test_a_call_of_a_server_that_has_not_listed_its_tools_yet_waits_for_it(data_dir: Path, marks: Path) -> None:
    slow = {"command": "/bin/sh", "args": ["-c", f"read line <{marks}/go; exec {sys.executable} -I -S {PROGRAM}"]}
    os.mkfifo(marks / "go")
    async with crib(data_dir, {"talk": slow | {"env": {"MARKS": str(marks)}}}, is_patient=False) as service:
        id = await begun(service, "mcp__talk__steps")
        at_first = (await service.client.get(f"/v1/calls/{id}")).json()
        await asyncio.to_thread((marks / "go").write_text, "now\n")

        assert at_first["status"] == "pending"
        assert (await ended(service, id))["result"]["output"] == "walked"
        unknown = await call(service, "mcp__talk__juggle")
        assert unknown["error"]["code"] == "UnknownTool"


async def test_a_call_of_a_server_that_never_was_there_says_why(data_dir: Path) -> None:
    async with crib(data_dir, {"talk": {"command": "no-such-program"}}, is_patient=False) as service:
        refused = await call(service, "talk__steps")

        assert refused["error"]["code"] == "ToolUnavailable"
        assert "There is no program no-such-program" in refused["error"]["message"]


async def test_a_server_of_everybodys_gets_the_secrets_that_the_admin_keeps(data_dir: Path, marks: Path) -> None:
    server = {"command": sys.executable, "args": ["-I", "-S", PROGRAM], "env": {"MARKS": {"secret": "WHERE"}}}
    async with crib(data_dir, {"talk": server}, is_patient=False) as service:
        refused = await call(service, "mcp__talk__steps")
        await service.client.put("/v1/secrets/WHERE", json={"value": str(marks)})
        await service.client.post("/v1/mcp/servers/talk/reconnect")

        assert "The secret WHERE is not set" in refused["error"]["message"]
        assert (await done(service, "mcp__talk__steps"))["output"] == "walked"
