"""Clients we did not write at `/mcp`: each lists, calls, hears of progress, is asked, and takes a call back."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.mcp_servers import fixture, workspace_of
from tests.conformance.paths import conformance, python_of, run
from tests.support.mcp_service import crib
from tests.support.services import KEY

pytestmark = conformance

HERE = Path(__file__).parent / "clients"
CLIENTS = [
    pytest.param(python_of("sdk1"), "sdk1.py", (), "2025-11-25", id="sdk-1"),
    pytest.param(Path(sys.executable), "sdk2.py", ("legacy",), "2025-11-25", id="sdk-2-legacy"),
    pytest.param(Path(sys.executable), "sdk2.py", ("auto",), "2026-07-28", id="sdk-2-auto"),
    pytest.param(python_of("fastmcp"), "fastmcp4.py", (), "2026-07-28", id="fastmcp"),
]


@pytest.mark.parametrize(("python", "script", "options", "version"), CLIENTS)
async def test_a_client_by_others_does_all_its_work(
    data_dir: Path, python: Path, script: str, options: tuple[str, ...], version: str
) -> None:
    async with crib(data_dir, {"fixture": fixture()}) as service:
        (workspace_of(service) / "note.txt").write_text("to be read\n")
        (workspace_of(service) / ".env").write_text("WORD=seen\n")
        code, written = await run(python, HERE / script, f"{service.url}/mcp", KEY, *options)
        calls = (await service.client.get("/v1/calls")).json()["data"]
        listed = (await service.client.get("/v1/tools")).json()["data"]
        asks = (await service.client.get("/v1/asks", params={"status": "answered"})).json()["data"]

    assert code == 0, written
    saw: dict[str, Any] = json.loads(written.splitlines()[-1])
    assert (saw["version"], saw["server"]) == (version, "toolcrib")
    assert saw["tools"] == [tool["name"] for tool in listed if tool["available"]]
    assert saw["read"] == told("L1: to be read")
    assert saw["sum"] == told('{"sum": 5}', structured={"sum": 5})
    assert saw["picture"]["blocks"][-1] == "image"
    assert saw["progress"] == [told("Done."), [[0, 100], [50, 100], [100, 100]]]
    assert saw["error"]["is_error"] is True
    assert "This tool intentionally returns an error for testing" in saw["error"]["blocks"][0]
    assert "WORD=seen" in saw["secret"][0]["blocks"][0]
    assert len(saw["secret"][1]) == 1
    assert "read: .env" in saw["secret"][1][0]
    assert saw["resources"] == ["test://static-binary", "test://static-text", "test://watched-resource"]
    assert "mcp__fixture__test_simple_prompt" in saw["prompts"]
    assert saw["gave_up"] == "canceled"
    assert saw["canceled"]["structured"] == {"canceled": 1}
    [waited] = [call for call in calls if call["tool"] == "mcp__fixture__test_wait"]
    assert (waited["status"], waited["error"]["code"]) == ("error", "Canceled")
    assert [ask["answer"]["decision"] for ask in asks] == ["allow_once"]


def told(*blocks: str, structured: Any = None) -> dict[str, Any]:
    return {"blocks": list(blocks), "structured": structured, "is_error": False}
