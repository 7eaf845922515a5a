"""What a key is bound to: sessions, workspaces and numbers. What lies outside is not there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.principals import Bounds
from app.core.rules import Action, Rule
from tests.api.test_api_access import assert_problem
from tests.api.test_api_sessions import make
from tests.mcp.server_clients import mcp_client
from tests.support.services import RunningService, listening
from tests.support.toy_tools import Toys

EVENTS = {"Accept": "application/json"}
NOTHING: dict[str, Any] = {"data": [], "next_cursor": None}


@pytest.fixture
async def service(data_dir: Path, toys: Toys, tmp_path: Path) -> AsyncIterator[RunningService]:
    """One with two projects its operator allows, and a session in each: `in-1` and `out-1`."""
    for name in ("in", "out"):
        (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    service = RunningService(data_dir, toys, workspace_roots=[tmp_path / "in", tmp_path / "out"])
    await service.open()
    for name in ("in", "out"):
        await make(service.client, id=f"{name}-1", workspace=str(tmp_path / name))
    yield service
    await service.close()


@asynccontextmanager
async def key_with(
    service: RunningService,
    principal: str = "admin",
    scopes: tuple[str, ...] = ("calls:run", "calls:read"),
    **bounds: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    body = {"principal": principal, "scopes": list(scopes), "bounds": bounds}
    made = await service.client.post("/v1/keys", json=body)
    assert made.status_code == 201, made.text
    async with service.client_of(made.json()["token"]) as client:
        yield client


def both(tmp_path: Path) -> list[dict[str, Any]]:
    """The same session_filter, by names and by folders."""
    return [{"sessions": ["in-*"]}, {"workspaces": [str(tmp_path / "link")]}]


async def run(client: httpx.AsyncClient, session: str, tool: str = "echo", **options: Any) -> dict[str, Any]:
    answer = await client.post("/v1/calls", json={"tool": tool, "session": session, **options})
    assert answer.status_code == 200, answer.text
    call: dict[str, Any] = answer.json()
    return call


async def test_bounds_are_kept_and_shown(service: RunningService, tmp_path: Path) -> None:
    body = {
        "sessions": ["ci-*"],
        "workspaces": [str(tmp_path / "link"), "/does/not/exist"],
        "tools": ["read_file"],
        "rules": [{"permission": "edit", "action": "ask"}],
        "approval": "never",
        "on_ask": "deny",
        "calls_per_minute": 60,
        "concurrent_calls": 2,
        "streams": 1,
    }

    made = (await service.client.post("/v1/keys", json={"principal": "ci", "bounds": body})).json()
    await service.restart()

    assert made["bounds"] == body | {
        "workspaces": [str(tmp_path / "in"), "/does/not/exist"],
        "rules": [{"permission": "edit", "pattern": "*", "action": "ask"}],
    }
    listed = (await service.client.get("/v1/keys")).json()["data"]
    assert [key["bounds"] for key in listed if key["id"] == made["id"]] == [made["bounds"]]
    kept = service.services.keyring.find(made["token"])
    assert kept is not None
    assert kept.bounds == Bounds(
        sessions=("ci-*",),
        workspaces=(str(tmp_path / "in"), "/does/not/exist"),
        tools=("read_file",),
        rules=(Rule("edit", "*", Action.ASK),),
        approval="never",
        on_ask="deny",
        calls_per_minute=60,
        concurrent_calls=2,
        streams=1,
    )


async def test_bounds_asked_for_badly_are_refused(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"sessions": "ci-*"},
        {"sessions": [""]},
        {"workspaces": ["relative"]},
        {"workspaces": ["/a\0b"]},
        {"tools": ["x" * 257]},
        {"rules": [{"action": "sometimes"}]},
        {"approval": "always"},
        {"on_ask": "shout"},
        {"calls_per_minute": 0},
        {"concurrent_calls": 60_001},
        {"streams": 1.5},
        {"principals": ["bob"]},
    ]
    for bounds in cases:
        with subtests.test(bounds=bounds):
            answer = await service.client.post("/v1/keys", json={"principal": "ci", "bounds": bounds})

            assert_problem(answer, 422, "InvalidRequest")
            assert len(service.rows("SELECT * FROM keys")) == 1


@pytest.mark.parametrize("bounds", [{"sessions": ["a"]}, {"workspaces": ["/srv"]}, {"tools": ["echo"]}])
async def test_an_admin_key_is_not_bound_to_less_than_it_can_give_itself(
    service: RunningService, bounds: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"principal": "boss", "scopes": ["admin"], "bounds": bounds}

    assert_problem(await service.client.post("/v1/keys", json=body), 422, "InvalidRequest")
    body["bounds"] = {"streams": 3}
    assert (await service.client.post("/v1/keys", json=body)).status_code == 201


async def test_sessions_out_of_bounds_are_not_there(service: RunningService, tmp_path: Path) -> None:
    for bounds in both(tmp_path):
        async with key_with(service, **bounds) as client:
            listed = (await client.get("/v1/sessions")).json()["data"]
            for id in ("out-1", "default"):
                for method, path in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/plan")]:
                    body: dict[str, Any] | None = {} if method == "PATCH" else None
                    foreign = await client.request(method, f"/v1/sessions/{id}{path}", json=body)
                    missing = await client.request(method, f"/v1/sessions/no-such{path}", json=body)
                    assert_problem(foreign, 404, "NotFound")
                    assert foreign.text.replace(id, "no-such") == missing.text
                assert_problem(await client.post("/v1/calls", json={"tool": "echo", "session": id}), 404, "NotFound")
                batch = {"calls": [{"tool": "echo", "session": "in-1"}, {"tool": "echo", "session": id}]}
                assert_problem(await client.post("/v1/calls/batch", json=batch), 404, "NotFound")
            assert_problem(await client.post("/v1/calls", json={"tool": "echo"}), 404, "NotFound")
            assert (await client.get("/v1/sessions/in-1")).status_code == 200
            assert (await run(client, "in-1"))["status"] == "completed"

        assert [one["id"] for one in listed] == ["in-1"]


async def test_a_session_out_of_bounds_cannot_be_made(service: RunningService, tmp_path: Path, data_dir: Path) -> None:
    inside = str(tmp_path / "in/deep")
    by_name, by_folder = both(tmp_path)
    async with key_with(service, **by_name) as client:
        for body in ({"id": "out-2", "workspace": inside}, {"workspace": inside}, {}):
            answer = await client.post("/v1/sessions", json=body)
            assert_problem(answer, 403, "Forbidden")
            assert answer.json()["detail"] == (
                "This key sees only the sessions it is bound to; name an `id` that matches."
            )
        await make(client, id="in-2")
    async with key_with(service, **by_folder) as client:
        for workspace in (None, ".", str(tmp_path / "out"), str(tmp_path / "out/not there")):
            answer = await client.post("/v1/sessions", json={"id": "x", "workspace": workspace})
            assert_problem(answer, 403, "Forbidden")
            assert "workspaces it is bound to" in answer.json()["detail"]
        made = await make(client, id="x", workspace=inside)
        assert (await client.get("/v1/sessions/x")).json() == made

    assert sorted(path.name for path in (data_dir / "workspaces/admin").iterdir()) == ["in-2"]


async def test_calls_out_of_bounds_are_not_there(service: RunningService, tmp_path: Path, toys: Toys) -> None:
    hidden = await run(service.client, "out-1")
    body = {"tool": "wait_free", "session": "out-1"}
    running = (await service.client.post("/v1/calls", params={"wait": 0}, json=body)).json()
    shown = await run(service.client, "in-1")
    for bounds in both(tmp_path):
        async with key_with(service, **bounds) as client:
            for call in (hidden, running):
                for method, path in [
                    ("GET", ""),
                    ("GET", "?wait=1"),
                    ("POST", "/cancel"),
                    ("GET", "/output"),
                    ("GET", "/events"),
                ]:
                    foreign = await client.request(method, f"/v1/calls/{call['id']}{path}")
                    missing = await client.request(method, f"/v1/calls/call_0{path}")
                    assert_problem(foreign, 404, "NotFound")
                    assert foreign.text.replace(call["id"], "call_0") == missing.text
                assert_problem(await client.post("/v1/tickets", json={"call": call["id"]}), 404, "NotFound")
            for params in ({}, {"session": "in-1"}, {"limit": 1}, {"tool": "echo"}, {"status": "completed"}):
                listed = (await client.get("/v1/calls", params=params)).json()
                assert listed == {"data": [shown], "next_cursor": None}
            for params in ({"session": "out-1"}, {"status": "running"}):
                assert (await client.get("/v1/calls", params=params)).json() == NOTHING
            for path in ("", "/output", "/events"):
                assert (await client.get(f"/v1/calls/{shown['id']}{path}", headers=EVENTS)).status_code == 200

    assert service.row(running["id"])["status"] == "running"
    toys.go["wait"].set()


async def test_events_out_of_bounds_are_not_told(service: RunningService, tmp_path: Path) -> None:
    await run(service.client, "out-1")
    for bounds in both(tmp_path):
        async with (
            key_with(service, **bounds) as client,
            listening(client, "/v1/events", params={"types": "call.completed,call.output,session.changed"}) as live,
        ):
            ticket = (await client.post("/v1/tickets")).json()["ticket"]
            await run(service.client, "out-1", "say", arguments={"texts": ["hidden"]})
            await run(service.client, "default")
            await make(service.client, id="out-2", workspace=str(tmp_path / "out/deep"))
            await make(service.client, id="in-2", workspace=str(tmp_path / "in/deep"))
            await run(service.client, "out-2")
            await run(service.client, "in-2", "say", arguments={"texts": ["shown"]})
            told = await live.until("call.completed")
            page = (await client.get("/v1/events?after=0", headers=EVENTS)).json()["data"]
            async with (
                service.client_of(None) as browser,
                listening(browser, "/v1/events", params={"ticket": ticket, "after": 0}) as replayed,
            ):
                past = [await replayed.must() for _ in page]
                for id in ("in-2", "out-2"):
                    await service.client.delete(f"/v1/sessions/{id}")

        assert [(frame.event, frame.data["session"]) for frame in told] == [
            ("session.changed", "in-2"),
            ("call.output", "in-2"),
            ("call.completed", "in-2"),
        ]
        assert {event["session"] for event in page} == {"in-1", "in-2"}
        assert [frame.data for frame in past] == page


async def test_what_is_replayed_from_memory_is_bound_too(service: RunningService, tmp_path: Path) -> None:
    async with listening(service.client, "/v1/events") as everything:
        start = service.services.hub.last_seq
        await run(service.client, "out-1")
        await run(service.client, "in-1")
        await everything.until("call.completed")
        for bounds in both(tmp_path):
            async with (
                key_with(service, **bounds) as client,
                listening(client, "/v1/events", params={"after": start}) as stream,
            ):
                told = await stream.until("call.completed")
                assert [frame.data["session"] for frame in told] == ["in-1"] * 3


async def test_a_deleted_session_stays_readable_for_those_bound_to_its_name(
    service: RunningService, tmp_path: Path
) -> None:
    call = await run(service.client, "in-1")
    by_name, by_folder = both(tmp_path)
    await service.client.delete("/v1/sessions/in-1")

    async with key_with(service, **by_name) as client:
        assert (await client.get(f"/v1/calls/{call['id']}")).json() == call
        assert (await client.get("/v1/calls")).json()["data"] == [call]
    async with key_with(service, **by_folder) as client:
        assert_problem(await client.get(f"/v1/calls/{call['id']}"), 404, "NotFound")
        assert (await client.get("/v1/calls")).json() == NOTHING


async def test_a_used_idempotency_key_does_not_name_a_call_out_of_bounds(service: RunningService) -> None:
    headers = {"Idempotency-Key": "k"}
    hidden = await service.client.post("/v1/calls", json={"tool": "echo", "session": "out-1"}, headers=headers)

    async with key_with(service, sessions=["in-*"]) as client:
        answer = await client.post("/v1/calls", json={"tool": "echo", "session": "in-1"}, headers=headers)

    assert_problem(answer, 409, "IdempotencyConflict")
    assert hidden.json()["id"] not in answer.text


async def test_bounds_hide_nothing_of_a_namesake(service: RunningService) -> None:
    """The same name at another principal is another session."""
    async with key_with(service, "bob", sessions=["out-1"]) as client:
        assert_problem(await client.get("/v1/sessions/out-1"), 404, "NotFound")
        made = await make(client, id="out-1")
        assert (await client.get("/v1/sessions")).json()["data"] == [made]


async def test_a_key_makes_as_many_calls_in_a_minute_as_it_may(service: RunningService) -> None:
    async with key_with(service, calls_per_minute=2) as client:
        for _ in range(2):
            await run(client, "default")
        refused = await client.post("/v1/calls", json={"tool": "echo"})
        batch = await client.post("/v1/calls/batch", json={"calls": [{"tool": "echo"}] * 3})

    for answer in (refused, batch):
        assert_problem(answer, 429, "TooManyCalls")
    assert 58 <= int(refused.headers["retry-after"]) <= 60
    assert batch.headers["retry-after"] == "60"
    assert (await run(service.client, "default"))["status"] == "completed"


async def test_a_key_has_as_many_calls_under_way_as_it_may(service: RunningService, toys: Toys) -> None:
    async with key_with(service, concurrent_calls=1) as client:
        first = await client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait_free"})
        await service.started("wait")
        refused = await client.post("/v1/calls", json={"tool": "echo"})

    assert first.status_code == 202
    assert_problem(refused, 429, "TooManyCalls")
    toys.go["wait"].set()


async def test_a_key_has_as_many_streams_open_as_it_may(service: RunningService) -> None:
    async with key_with(service, streams=1) as client, listening(client, "/v1/events"):
        assert_problem(await client.get("/v1/events"), 429, "TooManyStreams")
        async with listening(service.client, "/v1/events"), listening(service.client, "/v1/events"):
            pass


async def test_an_mcp_client_works_in_the_session_its_header_names(
    service: RunningService, toys: Toys, tmp_path: Path
) -> None:
    async with mcp_client(service, "auto", {"Toolcrib-Session": "in-1"}) as client:
        answer = await client.call_tool("echo", {"text": "hello"})
    async with mcp_client(service, "auto", {"Toolcrib-Session": "no-such"}) as client:
        missing = await client.call_tool("echo", {"text": "hello"})

    assert (answer.is_error, toys.contexts[-1].session_id) == (False, "in-1")
    assert toys.contexts[-1].workspace.root == str(tmp_path / "in")
    assert missing.is_error is True
    assert [block.text for block in missing.content if block.type == "text"] == [
        "There is no session no-such. Name an existing one in the header Toolcrib-Session, or omit it."
    ]
    assert len(service.rows("SELECT * FROM calls")) == 1


async def test_an_mcp_client_with_a_bound_key_finds_only_what_fits(service: RunningService) -> None:
    async with key_with(service, sessions=["in-*"]) as bound:
        key = bound.headers["Authorization"]
        for headers in ({}, {"Toolcrib-Session": "out-1"}):
            async with mcp_client(service, "auto", headers | {"Authorization": key}) as client:
                assert (await client.call_tool("echo", {"text": "hello"})).is_error is True
        async with mcp_client(service, "auto", {"Toolcrib-Session": "in-1", "Authorization": key}) as client:
            assert (await client.call_tool("echo", {"text": "hello"})).is_error is False


async def test_many_sessions_are_looked_up_for_a_batch_at_one_moment(service: RunningService) -> None:
    """Every call has its own text: the same call again and again would be a doom loop, and ask a person."""
    sessions = ("in-1", "out-1", "default") * 4
    batches = [
        {"calls": [{"tool": "echo", "arguments": {"text": f"{n} {i}"}, "session": id} for i, id in enumerate(sessions)]}
        for n in range(3)
    ]

    answers = await asyncio.gather(*(service.client.post("/v1/calls/batch", json=batch) for batch in batches))

    assert [[call["session"] for call in answer.json()["data"]] for answer in answers] == [list(sessions)] * 3
