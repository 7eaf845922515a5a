"""What browsers are told about calls from pages of other origins."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.services import HANG, KEY, RunningService, listening

PAGE = "https://app.example"
EXPOSED = {
    *("location", "toolcrib-output-total", "toolcrib-output-dropped", "retry-after", "traceparent"),
    *("mcp-session-id", "toolcrib-call", "etag", "content-range", "accept-ranges", "content-disposition"),
}


@pytest.fixture
async def open_service(service: RunningService) -> RunningService:
    """A service that pages of one origin may call."""
    service.settings["allowed_origins"] = [PAGE, "http://localhost:3000"]
    await service.restart()
    return service


def names(header: str) -> set[str]:
    return {name.strip().lower() for name in header.split(",")}


def assert_told(answer: httpx.Response, origin: str = PAGE) -> None:
    assert answer.headers.get_list("access-control-allow-origin") == [origin]
    assert "origin" in names(answer.headers["vary"])
    assert names(answer.headers["access-control-expose-headers"]) == EXPOSED
    assert "access-control-allow-credentials" not in answer.headers


def told(answer: httpx.Response) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control")}


async def preflight(service: RunningService, path: str = "/v1/calls", **headers: str) -> httpx.Response:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"} | headers
    async with service.client_of(None) as browser:
        return await browser.options(path, headers=asked)


async def test_without_a_list_nobody_is_told_anything(service: RunningService) -> None:
    own = {"Origin": service.url}
    answers = [
        await service.client.get("/v1/tools", headers=own),
        await service.client.post("/v1/calls", json={"tool": "echo"}, headers=own),
        await service.client.get("/v1/tools", headers={"Origin": PAGE}),
        await preflight(service),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 403, 403]
    assert [told(answer) for answer in answers] == [set()] * 4


async def test_a_page_on_the_list_may_ask_first_without_a_key(
    open_service: RunningService, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, str, str]] = [
        ("POST", "/v1/calls", "authorization, content-type, idempotency-key, toolcrib-session, traceparent"),
        ("POST", "/v1/tickets", "authorization,content-type"),
        ("GET", "/v1/events", "Last-Event-ID, Accept"),
        ("PUT", "/v1/secrets/x", "authorization, content-type"),
        ("PUT", "/v1/sessions/x/files/a", "authorization, content-type, if-match, if-none-match, idempotency-key"),
        ("GET", "/v1/sessions/x/files/a", "authorization, range, if-range, if-none-match, if-modified-since"),
        ("DELETE", "/v1/keys/key_1", "authorization"),
        ("PATCH", "/v1/sessions/default", "authorization, content-type"),
        (
            "POST",
            "/mcp",
            "authorization, content-type, accept, mcp-protocol-version, mcp-session-id, mcp-name, mcp-method",
        ),
    ]
    for method, path, headers in cases:
        with subtests.test(method=method, path=path, headers=headers):
            answer = await preflight(
                open_service,
                path,
                **{"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers},
            )

            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert method in answer.headers["access-control-allow-methods"]
            assert names(headers) <= names(answer.headers["access-control-allow-headers"])
            assert "origin" in names(answer.headers["vary"])
            assert "access-control-allow-credentials" not in answer.headers
            assert open_service.rows("SELECT * FROM calls") == []


@pytest.mark.parametrize(
    "asked", [{"Access-Control-Request-Method": "TRACE"}, {"Access-Control-Request-Headers": "authorization, x-other"}]
)
async def test_what_the_service_does_not_use_is_not_granted(
    open_service: RunningService, asked: dict[str, str]
) -> None:
    answer = await preflight(open_service, **asked)

    assert answer.status_code == 400
    assert "TRACE" not in answer.headers["access-control-allow-methods"]
    assert "x-other" not in names(answer.headers["access-control-allow-headers"])


async def test_a_page_that_is_not_on_the_list_may_not_even_ask(
    open_service: RunningService, subtests: pytest.Subtests
) -> None:
    for origin in ["https://evil.example", "null", PAGE + ".evil.example", "http://app.example", "*"]:
        with subtests.test(origin=origin):
            asked = await preflight(open_service, Origin=origin)
            tried = await open_service.client.post("/v1/calls", json={"tool": "echo"}, headers={"Origin": origin})

            for answer in (asked, tried):
                assert (answer.status_code, answer.json()["code"]) == (403, "OriginNotAllowed")
                assert told(answer) == set()
            assert open_service.rows("SELECT * FROM calls") == []


async def test_every_answer_to_a_page_on_the_list_may_be_read_by_it(open_service: RunningService) -> None:
    client, headers = open_service.client, {"Origin": PAGE}

    async def ask(method: str, path: str, **options: Any) -> int:
        answer = await client.request(method, path, headers=headers | options.pop("headers", {}), **options)
        assert_told(answer)
        return answer.status_code

    assert await ask("POST", "/v1/calls", json={"tool": "echo"}) == 200
    assert await ask("POST", "/v1/calls", json={"tool": "wait"}, params={"wait": 0}) == 202
    assert await ask("POST", "/v1/calls", content=b"{") == 400
    assert await ask("POST", "/v1/calls", json={}) == 422
    assert await ask("POST", "/v1/calls", json={"tool": "echo"}, headers={"Authorization": "Bearer no"}) == 401
    assert await ask("GET", "/v1/calls") == 200
    assert await ask("GET", "/v1/calls/call_0") == 404
    assert await ask("GET", "/v1/nowhere") == 404
    assert await ask("PUT", "/v1/calls") == 405
    assert await ask("OPTIONS", "/v1/calls") == 405
    assert await ask("GET", "/v1/events", params={"after": -1}) == 422
    assert await ask("GET", "/healthz") == 200
    open_service.app.state.services = None
    assert await ask("POST", "/v1/calls", json={"tool": "echo"}) == 503
    assert await ask("GET", "/v1/calls") == 503


async def test_a_bug_in_a_route_is_told_to_the_page_too(
    open_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(principal: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(open_service.services.dispatcher.registry, "all", broken)
    answer = await open_service.client.get("/v1/tools", headers={"Origin": PAGE})

    assert answer.status_code == 500
    assert_told(answer)


async def test_streams_may_be_read_by_the_page_that_opened_them_and_no_other(open_service: RunningService) -> None:
    call = {"method": "POST", "json": {"tool": "echo"}}
    for origin in (PAGE, "http://localhost:3000"):
        async with listening(open_service.client, "/v1/events", headers={"Origin": origin}) as stream:
            assert_told(stream.response, origin)
        headers = {"Origin": origin, "Accept": "text/event-stream"}
        async with listening(open_service.client, "/v1/calls", headers=headers, **call) as stream:
            assert_told(stream.response, origin)
    async with listening(open_service.client, "/v1/events") as stream:
        assert told(stream.response) == set()


async def test_who_is_no_page_is_told_nothing(open_service: RunningService) -> None:
    answers = [
        await open_service.client.post("/v1/calls", json={"tool": "echo"}),
        await open_service.client.get("/v1/calls"),
    ]

    assert [told(answer) for answer in answers] == [set()] * 2


async def test_a_page_of_our_own_needs_no_permission(open_service: RunningService) -> None:
    answer = await open_service.client.post("/v1/calls", json={"tool": "echo"}, headers={"Origin": open_service.url})

    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_a_page_may_reach_into_a_private_network(open_service: RunningService) -> None:
    answer = await preflight(open_service, **{"Access-Control-Request-Private-Network": "true"})

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"


async def test_a_call_asked_for_under_a_foreign_host_is_not_granted(open_service: RunningService) -> None:
    answer = await preflight(open_service, Host="evil.example")

    assert (answer.status_code, answer.json()["code"]) == (403, "HostNotAllowed")
    assert told(answer) == set()


async def test_a_client_that_leaves_a_page_s_call_is_noticed(open_service: RunningService) -> None:
    body = b'{"tool": "wait", "cancel_on_disconnect": true}'
    _, writer = await asyncio.open_connection("127.0.0.1", open_service.port)
    head = f"POST /v1/calls HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nOrigin: {PAGE}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await open_service.started("wait")
    writer.close()

    async with asyncio.timeout(HANG):
        while not (rows := open_service.rows("SELECT error FROM calls WHERE status = 'error'")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "Canceled" in rows[0]["error"]
