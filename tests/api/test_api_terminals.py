"""Terminals over HTTP: listed, watched, sized and ended."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.exec_sessions import AT_SIGN, TOOLS, let_go, make_impatient
from tests.support.services import HANG, RunningService, listening
from tests.support.toy_tools import Toys

PLACE = "/v1/sessions/default/terminals"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = list(TOOLS)
    return toys


async def call(client: httpx.AsyncClient, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.post("/v1/calls", json={"tool": tool, "arguments": arguments})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def begun(client: httpx.AsyncClient, cmd: str, **more: Any) -> dict[str, Any]:
    return await call(client, "exec_command", **({"cmd": cmd, "login": False, "yield_time_ms": 1} | more))


async def shown(client: httpx.AsyncClient, number: int, sign: str) -> str:
    seen = ""
    async with asyncio.timeout(HANG):
        while sign not in seen:
            answer = await call(client, "write_stdin", session_id=number, yield_time_ms=50)
            seen += answer["result"]["structured"]["output"]
    return seen


async def test_what_goes_on_in_a_session_is_listed(client: httpx.AsyncClient) -> None:
    opening = await begun(client, "sleep 100", tty=True)
    number = opening["result"]["structured"]["session_id"]

    page = (await client.get(PLACE)).json()
    one = await client.get(f"{PLACE}/{number}")

    [listed] = page.pop("data")
    assert page == {"next_cursor": None}
    assert listed == one.json()
    assert listed.pop("opened_at") <= listed.pop("used_at")
    assert listed == {
        "id": number,
        "call": opening["id"],
        "command": "sleep 100",
        "tty": True,
        "sandbox": opening["sandbox"],
        "exit_code": None,
    }


async def test_one_can_be_ended_and_is_gone(client: httpx.AsyncClient) -> None:
    number = (await begun(client, "sleep 100"))["result"]["structured"]["session_id"]

    ended = await client.delete(f"{PLACE}/{number}")

    assert (ended.status_code, ended.content) == (204, b"")
    assert (await client.get(f"{PLACE}/{number}")).status_code == 404
    assert (await client.delete(f"{PLACE}/{number}")).status_code == 404
    assert (await client.get(PLACE)).json()["data"] == []


async def test_a_terminal_can_be_given_another_size(client: httpx.AsyncClient) -> None:
    script = f"trap 'stty size' WINCH; stty size; {AT_SIGN}"
    number = (await begun(client, script, tty=True))["result"]["structured"]["session_id"]
    assert await shown(client, number, "\n") == "24 80\r\n"

    sized = await client.post(f"{PLACE}/{number}/resize", json={"rows": 50, "columns": 132})

    assert sized.status_code == 204
    assert await shown(client, number, "\n") == "50 132\r\n"


async def test_what_has_no_terminal_has_no_size(client: httpx.AsyncClient) -> None:
    number = (await begun(client, "sleep 100"))["result"]["structured"]["session_id"]

    sized = await client.post(f"{PLACE}/{number}/resize", json={"rows": 50, "columns": 132})
    odd = await client.post(f"{PLACE}/{number}/resize", json={"rows": 0, "columns": 132})
    missing = await client.post(f"{PLACE}/1/resize", json={"rows": 50, "columns": 132})

    assert (sized.status_code, sized.json()["code"]) == (409, "NoTty")
    assert odd.status_code == 422
    assert missing.status_code == 404


async def test_what_is_written_can_be_watched_from_beginning_to_end(service: RunningService) -> None:
    types = "terminal.opened,terminal.output,terminal.closed"
    async with listening(service.client, f"/v1/events?types={types}") as stream:
        opening = await begun(service.client, f"echo one; {AT_SIGN}; echo two; exit 5")
        number = opening["result"]["structured"]["session_id"]
        opened = await stream.must()
        first = await stream.must()
        let_go(service)
        rest = await stream.until("terminal.closed")

    text = "".join(frame.data["data"]["text"] for frame in [first, *rest[:-1]])
    assert (opened.event, opened.data["call"], opened.data["data"]["terminal"]) == (
        "terminal.opened",
        opening["id"],
        number,
    )
    assert first.id is None
    assert first.data == {
        "type": "terminal.output",
        "call": opening["id"],
        "session": "default",
        "data": {"terminal": number, "offset": 0, "text": "one\n"},
    }
    assert text == "one\ntwo\n"
    assert rest[0].data["data"]["offset"] == 4
    assert rest[-1].data["data"] == {"terminal": number, "exit_code": 5, "reason": "exited"}


async def test_who_does_not_name_the_output_does_not_get_it(service: RunningService) -> None:
    async with listening(service.client, "/v1/events") as stream:
        await begun(service.client, "echo one", yield_time_ms=5000)
        frames = await stream.until("terminal.closed")

    assert "terminal.output" not in [frame.event for frame in frames]


async def test_a_secret_is_in_no_event_and_in_no_list(service: RunningService) -> None:
    await service.client.put("/v1/secrets/API", json={"value": "hunter2hunter2"})
    async with listening(service.client, "/v1/events?types=terminal.output,terminal.closed,terminal.opened") as stream:
        opening = await begun(service.client, f"printf hunter2; {AT_SIGN}; echo hunter2; : hunter2hunter2")
        listed = (await service.client.get(PLACE)).json()["data"]
        let_go(service)
        frames = await stream.until("terminal.closed")

    number = opening["result"]["structured"]["session_id"]
    text = "".join(frame.data["data"].get("text", "") for frame in frames)
    assert text == "[redacted]\n"
    assert listed[0]["command"].endswith(": [redacted]")
    assert "hunter2hunter2" not in "".join(frame.raw for frame in frames)
    assert await shown(service.client, number, "\n") == "[redacted]\n"


async def test_a_stranger_sees_and_ends_nothing(service: RunningService) -> None:
    number = (await begun(service.client, "sleep 100"))["result"]["structured"]["session_id"]
    made = await service.client.post("/v1/keys", json={"principal": "bob", "scopes": ["calls:run", "calls:read"]})
    async with service.client_of(made.json()["token"]) as bob:
        answers = [
            await bob.get(f"{PLACE}/{number}"),
            await bob.delete(f"{PLACE}/{number}"),
            await bob.get(f"{PLACE}/{number}", params={"principal": "admin"}),
            await bob.delete(f"{PLACE}/{number}", params={"principal": "admin"}),
            await bob.post(f"{PLACE}/{number}/resize", json={"rows": 1, "columns": 1}),
        ]
        listed = (await bob.get(PLACE)).json()["data"]

    assert [answer.status_code for answer in answers] == [404] * 5
    assert listed == []
    assert (await service.client.get(f"{PLACE}/{number}")).status_code == 200


async def test_a_key_that_only_reads_ends_nothing(service: RunningService) -> None:
    number = (await begun(service.client, "sleep 100"))["result"]["structured"]["session_id"]
    made = await service.client.post("/v1/keys", json={"principal": "admin", "scopes": ["calls:read"]})
    async with service.client_of(made.json()["token"]) as reader:
        assert (await reader.get(f"{PLACE}/{number}")).status_code == 200
        assert (await reader.delete(f"{PLACE}/{number}")).status_code == 403
