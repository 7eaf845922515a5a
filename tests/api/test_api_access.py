"""Who may come in, and what they may see."""

import asyncio
from typing import Any

import httpx
import pytest

from app.core.calls import CallRequest
from app.core.sessions import Session
from tests.support.services import HANG, KEY, RunningService, listening, until

PATHS = [
    ("POST", "/v1/calls"),
    ("POST", "/v1/calls/batch"),
    ("GET", "/v1/calls"),
    ("GET", "/v1/calls/call_1"),
    ("POST", "/v1/calls/call_1/cancel"),
    ("POST", "/v1/calls/call_1/result"),
    ("GET", "/v1/calls/call_1/output"),
    ("GET", "/v1/calls/call_1/events"),
    ("GET", "/v1/events"),
    ("GET", "/v1/tools"),
    ("GET", "/v1/tools/echo"),
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions/default"),
    ("DELETE", "/v1/sessions/ses_1"),
    ("GET", "/v1/sessions/default/plan"),
    ("GET", "/metrics"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/key_1"),
    ("POST", "/v1/tickets"),
    ("GET", "/v1/asks"),
    ("GET", "/v1/asks/ask_1"),
    ("POST", "/v1/asks/ask_1/answer"),
    ("GET", "/v1/rules"),
    ("POST", "/v1/rules"),
    ("DELETE", "/v1/rules/rule_1"),
]
BODIES: dict[str, Any] = {
    "/v1/calls": {"tool": "echo"},
    "/v1/calls/batch": {"calls": [{"tool": "echo"}]},
    "/v1/calls/call_1/result": {"output": "x"},
    "/v1/keys": {"principal": "ann"},
    "/v1/sessions": {},
    "/v1/asks/ask_1/answer": {"decision": "deny"},
    "/v1/rules": {"permission": "read", "pattern": "*", "action": "ask"},
}


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def ask(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
    body = BODIES.get(path) if method == "POST" else None
    return await client.request(method, path, json=body, **options)


async def new_key(service: RunningService, principal: str = "ann", scopes: list[str] | None = None) -> dict[str, Any]:
    body = {"principal": principal} | ({} if scopes is None else {"scopes": scopes})
    answer = await service.client.post("/v1/keys", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_nobody_gets_in_without_a_valid_key(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[str | None] = [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer é",
    ]
    for header in cases:
        with subtests.test(header=header):
            headers = {} if header is None else {"Authorization": header.encode()}
            async with service.client_of(None) as stranger:
                for method, path in PATHS:
                    answer = await ask(stranger, method, path, headers=headers)
                    assert_problem(answer, 401, "Unauthorized")
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert answer.json()["detail"] == "A valid key is required."
            assert service.rows("SELECT * FROM calls") == []


async def test_the_word_bearer_may_be_said_in_any_case(service: RunningService) -> None:
    async with service.client_of(None) as client:
        answer = await client.get("/v1/tools", headers={"Authorization": f"bEaReR   {KEY}"})

    assert answer.status_code == 200


async def test_a_key_does_only_what_its_scopes_say(service: RunningService) -> None:
    needed = {
        "calls:run": {
            ("POST", "/v1/calls"),
            ("POST", "/v1/calls/batch"),
            ("POST", "/v1/calls/call_1/cancel"),
            ("POST", "/v1/sessions"),
            ("DELETE", "/v1/sessions/ses_1"),
            ("POST", "/v1/calls/call_1/result"),
        },
        "calls:read": {("POST", "/v1/tickets")}
        | {(method, path) for method, path in PATHS if method == "GET"} - {("GET", "/v1/keys"), ("GET", "/metrics")},
        "metrics": {("GET", "/metrics")},
        "asks:answer": {("POST", "/v1/tickets")}
        | {(method, path) for method, path in PATHS if path.startswith("/v1/asks")},
        "rules:write": {(method, path) for method, path in PATHS if path.startswith("/v1/rules")},
    }
    for scope, allowed in needed.items():
        made = await new_key(service, "ann", [scope])
        async with service.client_of(made["token"]) as client:
            for method, path in PATHS:
                if (method, path) == ("GET", "/v1/events") and scope in ("calls:read", "asks:answer"):
                    continue
                answer = await ask(client, method, path)
                if (method, path) in allowed:
                    assert answer.status_code in (200, 201, 404), (scope, method, path)
                else:
                    assert_problem(answer, 403, "Forbidden")


async def test_what_belongs_to_somebody_else_is_not_there(service: RunningService) -> None:
    call = (await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait"})).json()
    ann = await new_key(service)
    async with service.client_of(ann["token"]) as client:
        for method, path in [
            ("GET", f"/v1/calls/{call['id']}"),
            ("GET", f"/v1/calls/{call['id']}?wait=1"),
            ("POST", f"/v1/calls/{call['id']}/cancel"),
            ("GET", f"/v1/calls/{call['id']}/output"),
            ("GET", f"/v1/calls/{call['id']}/events"),
        ]:
            foreign = await client.request(method, path)
            missing = await client.request(method, path.replace(call["id"], "call_0"))
            assert_problem(foreign, 404, "NotFound")
            assert foreign.text.replace(call["id"], "call_0") == missing.text
        assert (await client.get("/v1/calls")).json() == {"data": [], "next_cursor": None}
        page = await client.get("/v1/events", headers={"Accept": "application/json"})
        assert page.json() == {"data": [], "next_cursor": None}

    assert service.row(call["id"])["status"] == "running"


async def test_keys_of_one_principal_share_what_it_owns_and_an_admin_sees_all(service: RunningService) -> None:
    first, second = await new_key(service), await new_key(service)
    bob = await new_key(service, "bob")
    async with (
        service.client_of(first["token"]) as one,
        service.client_of(second["token"]) as two,
        service.client_of(bob["token"]) as stranger,
    ):
        made = (await one.post("/v1/calls", json={"tool": "echo"})).json()
        seen = await two.get(f"/v1/calls/{made['id']}")
        foreign = await stranger.get(f"/v1/calls/{made['id']}")
    by_admin = await service.client.get(f"/v1/calls/{made['id']}")

    assert made["principal"] == "ann"
    assert seen.json() == by_admin.json() == made
    assert foreign.status_code == 404


async def test_a_stream_tells_a_principal_only_of_its_own(service: RunningService) -> None:
    ann = await new_key(service)
    async with (
        service.client_of(ann["token"]) as client,
        listening(client, "/v1/events?types=call.completed,call.output") as hers,
        listening(service.client, "/v1/events?types=call.completed,call.output") as all_of_them,
    ):
        await service.client.post("/v1/calls", json={"tool": "say", "arguments": {"texts": ["admin's"]}})
        mine = (await client.post("/v1/calls", json={"tool": "say", "arguments": {"texts": ["hers"]}})).json()
        frames = await hers.until("call.completed")
        assert [frame.data["call"] for frame in frames] == [mine["id"]] * 2
        assert len(await all_of_them.until("call.completed") + await all_of_them.until("call.completed")) == 4


async def test_a_new_key_shows_its_token_once_and_works_at_once(service: RunningService) -> None:
    made = await service.client.post("/v1/keys", json={"principal": "ci", "name": "nightly", "scopes": ["calls:read"]})
    listed = (await service.client.get("/v1/keys")).json()

    assert made.status_code == 201
    token = made.json().pop("token")
    assert token.startswith("tk_")
    shown = {name: value for name, value in made.json().items() if name != "token"}
    assert shown == shown | {"principal": "ci", "name": "nightly", "scopes": ["calls:read"], "revoked_at": None}
    assert listed["data"][1] == shown
    assert [key["principal"] for key in listed["data"]] == ["admin", "ci"]
    assert token not in str(listed)
    assert token not in str(service.rows("SELECT * FROM keys"))
    async with service.client_of(token) as client:
        assert (await client.get("/v1/tools")).status_code == 200


async def test_a_key_made_without_scopes_may_run_and_read(service: RunningService) -> None:
    made = await new_key(service)

    assert made["scopes"] == ["calls:read", "calls:run"]


async def test_a_revoked_key_stops_working_at_once_and_stays_so(service: RunningService) -> None:
    made = await new_key(service)
    async with service.client_of(made["token"]) as client:
        assert (await client.get("/v1/calls")).status_code == 200
        revoked = await service.client.delete(f"/v1/keys/{made['id']}")
        assert (revoked.status_code, revoked.content) == (204, b"")
        assert_problem(await client.get("/v1/calls"), 401, "Unauthorized")
    again = await service.client.delete(f"/v1/keys/{made['id']}")
    assert_problem(again, 404, "NotFound")
    await service.restart()

    async with service.client_of(made["token"]) as client:
        assert_problem(await client.get("/v1/calls"), 401, "Unauthorized")
    listed = (await service.client.get("/v1/keys")).json()["data"]
    assert listed[1]["revoked_at"] is not None


async def test_an_open_stream_of_a_revoked_key_tells_nothing_more(service: RunningService) -> None:
    made = await new_key(service)
    async with (
        service.client_of(made["token"]) as client,
        listening(client, "/v1/events") as stream,
    ):
        await client.post("/v1/calls", json={"tool": "echo"})
        before = await stream.until("call.completed")
        await service.client.delete(f"/v1/keys/{made['id']}")
        service.services.dispatcher.submit(CallRequest(tool="echo"), Session(made["principal"], "default"))

        assert len(before) == 3
        assert await stream.rest() == []


async def test_the_configured_key_is_an_admins_even_if_it_was_made_as_less(service: RunningService) -> None:
    made = await new_key(service, "ann", ["calls:read"])
    service.settings["api_key"] = made["token"]
    await service.restart()

    async with service.client_of(made["token"]) as client:
        assert (await client.get("/v1/keys")).status_code == 200


async def test_the_first_of_a_repeated_header_counts_on_every_route(service: RunningService) -> None:
    two = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer nobody's")]

    async with httpx.AsyncClient(base_url=service.url) as client:
        read = await client.get("/v1/calls", headers=two)
        ran = await client.post("/v1/calls", headers=two, json={"tool": "echo"})

    assert (read.status_code, ran.status_code) == (200, 200)


async def test_a_new_key_works_after_a_restart(service: RunningService) -> None:
    made = await new_key(service)
    await service.restart()

    async with service.client_of(made["token"]) as client:
        assert (await client.get("/v1/calls")).status_code == 200


async def test_a_key_cannot_revoke_itself(service: RunningService) -> None:
    own = (await service.client.get("/v1/keys")).json()["data"][0]

    assert_problem(await service.client.delete(f"/v1/keys/{own['id']}"), 409, "KeyInUse")
    assert_problem(await service.client.delete("/v1/keys/key_0"), 404, "NotFound")


async def test_a_service_whose_first_admin_key_was_revoked_still_starts(service: RunningService) -> None:
    own = (await service.client.get("/v1/keys")).json()["data"][0]
    other = await new_key(service, "boss", ["admin"])
    async with service.client_of(other["token"]) as boss:
        assert (await boss.delete(f"/v1/keys/{own['id']}")).status_code == 204

    await service.restart()

    assert_problem(await service.client.get("/v1/keys"), 401, "Unauthorized")
    async with service.client_of(other["token"]) as boss:
        assert (await boss.get("/v1/keys")).status_code == 200


async def test_a_key_asked_for_badly_is_refused(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"principal": ""},
        {"principal": "a b"},
        {"principal": "-a"},
        {"principal": "x" * 65},
        {"principal": "ann", "scopes": []},
        {"principal": "ann", "scopes": ["everything"]},
        {"principal": "ann", "name": "x" * 129},
        {"principal": "ann", "token": "mine"},
    ]
    for body in cases:
        with subtests.test(body=body):
            assert_problem(await service.client.post("/v1/keys", json=body), 422, "InvalidRequest")
            assert len(service.rows("SELECT * FROM keys")) == 1


async def test_a_key_with_a_name_that_is_no_text_is_refused(service: RunningService) -> None:
    content = b'{"principal":"ann","name":"\\ud800"}'

    answer = await service.client.post("/v1/keys", content=content, headers={"Content-Type": "application/json"})

    assert_problem(answer, 400, "InvalidJson")


async def test_a_request_must_name_a_host_of_ours(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = [
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("LocalHost:99", 200),
        ("[::1]:8700", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8700", 403),
        ("[::2]", 403),
        ("", 403),
        ("crib.example:443", 200),
    ]
    service.settings["allowed_hosts"] = ["Crib.Example"]
    await service.restart()
    for host, status in cases:
        with subtests.test(host=host, status=status):
            for path in ("/healthz", "/v1/tools"):
                for _ in range(2):
                    answer = await service.client.get(path, headers={"Host": host})
                    assert answer.status_code == status
                    if status == 403:
                        assert_problem(answer, 403, "HostNotAllowed")


async def test_a_host_of_any_name_is_let_in_when_configured(service: RunningService) -> None:
    service.settings["allowed_hosts"] = ["*"]
    await service.restart()

    assert (await service.client.get("/v1/tools", headers={"Host": "any.example"})).status_code == 200


async def test_a_page_may_call_only_from_an_origin_of_ours(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | None, int]] = [
        (None, 200),
        ("http://127.0.0.1:{port}", 200),
        ("https://127.0.0.1:{port}", 200),
        ("https://app.example", 200),
        ("http://127.0.0.1", 403),
        ("http://127.0.0.1:1", 403),
        ("http://app.example", 403),
        ("https://app.example.evil.example", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ]
    service.settings["allowed_origins"] = ["https://app.example"]
    await service.restart()
    for origin, status in cases:
        with subtests.test(origin=origin, status=status):
            before = service.rows("SELECT * FROM calls")
            headers = {} if origin is None else {"Origin": origin.format(port=service.port)}

            answer = await service.client.post("/v1/calls", json={"tool": "note"}, headers=headers)

            assert answer.status_code == status
            if status == 403:
                assert_problem(answer, 403, "OriginNotAllowed")
                assert service.rows("SELECT * FROM calls") == before


async def test_a_browser_that_says_a_page_is_foreign_is_believed(
    service: RunningService, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, str | None, int]] = [
        ("same-origin", None, 200),
        ("none", None, 200),
        ("cross-site", "https://app.example", 200),
        ("same-site", "https://app.example", 200),
        ("cross-site", None, 403),
        ("same-site", None, 403),
        ("cross-site", "http://127.0.0.1:{port}", 403),
        ("cross-site", "https://evil.example", 403),
        ("same-origin", "https://evil.example", 403),
        ("what-comes-next", None, 403),
        ("", None, 403),
    ]
    service.settings["allowed_origins"] = ["https://app.example"]
    await service.restart()
    for site, origin, status in cases:
        with subtests.test(site=site, origin=origin, status=status):
            before = service.rows("SELECT * FROM calls")
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
            if origin is not None:
                headers["Origin"] = origin.format(port=service.port)

            ran = await service.client.post("/v1/calls", json={"tool": "note"}, headers=headers)
            read = await service.client.get("/healthz", headers=headers)

            assert (ran.status_code, read.status_code) == (status, status)
            if status == 403:
                assert_problem(ran, 403, "OriginNotAllowed")
                assert_problem(read, 403, "OriginNotAllowed")
                assert service.rows("SELECT * FROM calls") == before


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_on_another_page_leads_only_to_what_is_open_to_everybody(
    service: RunningService, site: str
) -> None:
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    for path in ("/docs", "/openapi.json", "/healthz", "/readyz"):
        assert (await service.client.get(path, headers=link)).status_code == 200
        assert_problem(await service.client.post(path, headers=link), 403, "OriginNotAllowed")
        assert_problem(
            await service.client.get(path, headers=link | {"Sec-Fetch-Mode": "no-cors"}), 403, "OriginNotAllowed"
        )
    for path in ("/v1/calls", "/v1/events", "/v1/tools", "/docs/", "/mcp"):
        assert_problem(await service.client.get(path, headers=link), 403, "OriginNotAllowed")


async def test_a_request_without_a_host_is_refused(service: RunningService) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(f"GET /v1/tools HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    async with asyncio.timeout(HANG):
        answer = await reader.read()
    writer.close()

    assert b" 403 " in answer.partition(b"\r\n")[0]


async def test_health_needs_no_key_and_tells_nothing(service: RunningService) -> None:
    async with service.client_of(None) as stranger:
        alive = await stranger.get("/healthz")
        ready = await stranger.get("/readyz")
        documents = [(await stranger.get(path)).status_code for path in ("/docs", "/openapi.json")]

    assert (alive.status_code, set(alive.json())) == (200, {"status", "version"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
    assert documents == [200, 200]


async def test_a_service_that_is_still_starting_says_so(service: RunningService) -> None:
    use, service.app.state.services = service.app.state.services, None
    try:
        ready = await service.client.get("/readyz")
        answer = await service.client.post("/v1/calls", json={"tool": "echo"})
    finally:
        service.app.state.services = use

    assert (ready.status_code, ready.json()) == (503, {"status": "starting"})
    assert_problem(answer, 503, "NotReady")
    assert answer.headers["retry-after"] == "1"


async def test_tools_are_listed_by_name_and_described_one_by_one(service: RunningService) -> None:
    listed = (await service.client.get("/v1/tools")).json()
    shout = (await service.client.get("/v1/tools/shout")).json()

    names = [tool["name"] for tool in listed["data"]]
    assert names == sorted(tool.name for tool in service.toys.tools)
    assert listed["next_cursor"] is None
    assert shout == {
        "name": "shout",
        "title": "Shout",
        "description": "The toy shout.",
        "parameters": {"type": "string"},
        "output_schema": None,
        "takes": "input",
        "grammar": None,
        "effect": "read",
        "lane": "none",
        "timeout": 120.0,
        "source": "toys",
        "server": None,
        "aliases": [],
        "annotations": {},
        "owner": None,
        "available": True,
        "reason": None,
    }
    assert shout in listed["data"]


async def test_a_bug_in_a_route_is_a_problem_without_details(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(principal: str) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(service.services.dispatcher.registry, "all", broken)

    answer = await service.client.get("/v1/tools")

    assert_problem(answer, 500, "Internal")
    assert "secret" not in answer.text
    await until(lambda: "secret detail" in caplog.text)
