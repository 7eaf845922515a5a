"""Tools over HTTP: registered, replaced, removed, imported, and never seen by others."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.service import MAKERS
from tests.dispatch.test_runtime_tools import imported, toy_maker
from tests.support.mcp_wire import spoken
from tests.support.services import RunningService, listening
from tests.support.toy_tools import Toys

WEATHER: dict[str, Any] = {
    "kind": "http",
    "name": "get_weather",
    "description": "Tell the weather.",
    "url": "https://api.example.com/weather",
}
WRITER = ["calls:run", "calls:read", "tools:write"]


def assert_problem(answer: httpx.Response, status: int, code: str, detail: str = "") -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert detail in answer.json()["detail"]


@pytest.fixture
async def service(data_dir: Path, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningService]:
    monkeypatch.setitem(MAKERS, "http", toy_maker)
    service = RunningService(data_dir, toys)
    await service.open()
    service.services.runtime_tools._importer = imported
    yield service
    await service.close()


async def client_for(service: RunningService, principal: str, scopes: list[str]) -> httpx.AsyncClient:
    answer = await service.client.post("/v1/keys", json={"principal": principal, "scopes": scopes})
    return service.client_of(answer.json()["token"])


@pytest.fixture
async def ann(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "ann", WRITER) as client:
        yield client


@pytest.fixture
async def bob(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "bob", WRITER) as client:
        yield client


async def test_a_tool_is_registered_listed_called_and_removed(ann: httpx.AsyncClient) -> None:
    made = await ann.post("/v1/tools", json=WEATHER)
    one = await ann.get("/v1/tools/get_weather")
    listed = (await ann.get("/v1/tools", params={"source": "http"})).json()["data"]
    call = await ann.post("/v1/calls", json={"tool": "get_weather"})
    removed = await ann.delete("/v1/tools/get_weather")

    view = made.json()
    assert made.status_code == 201
    assert (view["name"], view["owner"], view["source"], view["available"]) == ("get_weather", "ann", "http", True)
    assert one.json() == view
    assert listed == [view]
    assert call.json()["result"]["output"] == "GET https://api.example.com/weather"
    assert (removed.status_code, removed.content) == (204, b"")
    assert_problem(await ann.get("/v1/tools/get_weather"), 404, "NotFound")
    assert_problem(await ann.delete("/v1/tools/get_weather"), 404, "NotFound")


async def test_a_tool_of_ones_own_is_nobody_elses(
    ann: httpx.AsyncClient, bob: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await ann.post("/v1/tools", json=WEATHER)

    for other in (bob, client):
        assert_problem(await other.get("/v1/tools/get_weather"), 404, "NotFound")
        assert_problem(await other.delete("/v1/tools/get_weather"), 404, "NotFound")
        assert "get_weather" not in (await other.get("/v1/tools")).text
        assert "get_weather" not in (await other.get("/v1/tools", params={"q": "weather"})).text
        error = (await other.post("/v1/calls", json={"tool": "get_weathr"})).json()["error"]
        assert error["code"] == "UnknownTool"
        assert "get_weather" not in error["message"]
    theirs = await bob.post("/v1/tools", json=WEATHER | {"url": "https://bob.example/"})
    called = await ann.post("/v1/calls", json={"tool": "get_weather"})

    assert theirs.status_code == 201
    assert called.json()["result"]["output"] == "GET https://api.example.com/weather"


async def test_an_admin_registers_for_everybody_unless_told_otherwise(
    client: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    everybodys = await client.post("/v1/tools", json=WEATHER)
    own = await client.post("/v1/tools", params={"own": True}, json=WEATHER | {"name": "my_weather"})

    assert (everybodys.json()["owner"], own.json()["owner"]) == (None, "admin")
    assert (await ann.get("/v1/tools/get_weather")).status_code == 200
    assert (await ann.get("/v1/tools/my_weather")).status_code == 404
    assert_problem(await ann.post("/v1/tools", json=WEATHER | {"replace": True}), 409, "NameTaken")
    assert_problem(await ann.delete("/v1/tools/get_weather"), 404, "NotFound")
    assert_problem(await client.delete("/v1/tools/my_weather"), 409, "NotRegistered")
    assert (await client.delete("/v1/tools/my_weather", params={"own": True})).status_code == 204
    assert (await client.delete("/v1/tools/get_weather")).status_code == 204


async def test_a_taken_name_is_a_conflict_unless_it_shall_be_replaced(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await ann.post("/v1/tools", json=WEATHER)

    again = await ann.post("/v1/tools", json=WEATHER)
    replaced = await ann.post("/v1/tools", json=WEATHER | {"description": "Better.", "replace": True})

    assert_problem(again, 409, "NameTaken", "get_weather is the name of a tool already.")
    assert (replaced.status_code, replaced.json()["description"]) == (200, "Better.")
    for writer in (ann, client):
        built_in = WEATHER | {"name": "echo", "replace": True}
        assert_problem(await writer.post("/v1/tools", json=built_in), 409, "NameTaken")
    assert_problem(await client.delete("/v1/tools/echo"), 409, "NotRegistered", "echo was not registered over HTTP")


async def test_what_does_not_fit_is_refused(ann: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"url": "https://refused.example"}, "InvalidTool"),
        ({"kind": "soap"}, "InvalidRequest"),
        ({"kind": None}, "InvalidRequest"),
        ({"name": "ab"}, "InvalidRequest"),
        ({"name": "with space"}, "InvalidRequest"),
        ({"timeout": 0}, "InvalidRequest"),
        ({"unknown": 1}, "InvalidRequest"),
        ({"headers": {"X-Key": "Bearer ghp_" + "b" * 36}}, "InvalidTool"),
    ]
    for change, code in cases:
        with subtests.test(change=change, code=code):
            answer = await ann.post("/v1/tools", json=WEATHER | change)

            assert_problem(answer, 422, code)
            assert "ghp_" not in answer.text


async def test_only_keys_that_may_write_tools_do(service: RunningService) -> None:
    async with await client_for(service, "eve", ["calls:run", "calls:read"]) as eve:
        for answer in (
            await eve.post("/v1/tools", json=WEATHER),
            await eve.delete("/v1/tools/get_weather"),
            await eve.post("/v1/tools/openapi", json={"document": {}}),
            await eve.post("/v1/tools/reload"),
        ):
            assert_problem(answer, 403, "Forbidden")


async def test_an_api_is_imported_and_what_was_skipped_is_said(ann: httpx.AsyncClient) -> None:
    asked = {"document": {"names": ["one", "echo", "two"]}, "prefix": ""}

    answer = await ann.post("/v1/tools/openapi", json=asked)

    assert answer.status_code == 200
    assert [tool["name"] for tool in answer.json()["data"]] == ["one", "two"]
    assert answer.json()["skipped"] == [
        {"operation": "upload", "reason": "No JSON."},
        {"operation": "echo", "reason": "echo is the name of a tool already."},
    ]
    assert (await ann.get("/v1/tools/one")).json() == answer.json()["data"][0]
    bad = await ann.post("/v1/tools/openapi", json={"url": "https://nowhere.example"})
    assert_problem(bad, 422, "InvalidDocument", "There is nothing at https://nowhere.example.")
    for body in ({}, {"url": "https://a.example", "document": {}}):
        assert_problem(await ann.post("/v1/tools/openapi", json=body), 422, "InvalidRequest", "either `url` or")


async def test_those_who_listen_hear_of_their_tools_only(ann: httpx.AsyncClient, bob: httpx.AsyncClient) -> None:
    async with (
        listening(ann, "/v1/events", headers={"Accept": "text/event-stream"}) as to_ann,
        listening(bob, "/v1/events", headers={"Accept": "text/event-stream"}) as to_bob,
    ):
        await ann.post("/v1/tools", json=WEATHER)
        await bob.post("/v1/tools", json=WEATHER | {"name": "bobs_tool"})

        heard = [(await stream.must()).data["data"] for stream in (to_ann, to_bob)]

    assert heard == [
        {"added": ["get_weather"], "removed": [], "changed": []},
        {"added": ["bobs_tool"], "removed": [], "changed": []},
    ]


async def test_registered_tools_are_listed_over_mcp_to_their_owner_only(
    ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    await ann.post("/v1/tools", json=WEATHER)

    to_ann, to_bob = [await who.post("/mcp", **spoken("tools/list")) for who in (ann, bob)]

    assert "get_weather" in {tool["name"] for tool in to_ann.json()["result"]["tools"]}
    assert "get_weather" not in to_bob.text
    assert "echo" in to_bob.text
