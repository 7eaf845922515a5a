"""Calls over HTTP: created, waited for, read, listed, canceled, and their output."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.services import HANG, RunningService, until
from tests.support.toy_tools import ToyHook, Toys


def assert_problem(answer: httpx.Response, status: int, code: str) -> str:
    """The answer is a problem of this kind; gives its sentence."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code)
    assert set(body) == {"type", "title", "status", "detail", "code"}
    detail: str = body["detail"]
    return detail


async def create(client: httpx.AsyncClient, tool: str, arguments: Any = None, wait: float = 5, **more: Any) -> Any:
    body = {"tool": tool} | ({} if arguments is None else {"arguments": arguments}) | more
    answer = await client.post("/v1/calls", params={"wait": wait}, json=body)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


async def test_a_call_runs_and_can_be_read_back(client: httpx.AsyncClient) -> None:
    body = {"tool": "echo", "arguments": {"text": "hi"}, "call_id": "c1", "message_id": "m1", "metadata": {"a": [1]}}

    created = await client.post("/v1/calls", json=body)
    read_back = await client.get(f"/v1/calls/{created.json()['id']}")

    assert (created.status_code, read_back.status_code) == (200, 200)
    assert created.headers["content-type"] == "application/json"
    assert read_back.content == created.content
    view = created.json()
    assert list(view) == [
        "id",
        "tool",
        "session",
        "call_id",
        "message_id",
        "parent",
        "status",
        "waiting",
        "arguments",
        "input",
        "result",
        "error",
        "metadata",
        "principal",
        "sandbox",
        "created_at",
        "started_at",
        "ended_at",
        "duration_ms",
    ]
    assert view["result"]["output"] == "hi"
    assert (view["call_id"], view["message_id"], view["metadata"]) == ("c1", "m1", {"a": [1]})


async def test_what_the_model_got_wrong_is_a_failed_call_and_no_broken_request(client: httpx.AsyncClient) -> None:
    for tool, arguments, code in [
        ("ecko", {}, "UnknownTool"),
        ("note", {"text": 5}, "InvalidArgs"),
        ("fail", {"code": "ENOENT"}, "ENOENT"),
        ("bug", {}, "Internal"),
    ]:
        answer = await client.post("/v1/calls", json={"tool": tool, "arguments": arguments})

        assert (answer.status_code, answer.json()["status"]) == (200, "error")
        assert answer.json()["error"]["code"] == code


async def test_a_call_that_lasts_is_accepted_and_says_where_to_look(client: httpx.AsyncClient, toys: Toys) -> None:
    answer = await client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait"})
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert answer.headers["location"] == f"/v1/calls/{answer.json()['id']}"

    polling = asyncio.create_task(client.get(answer.headers["location"], params={"wait": 60}))
    short = await client.get(answer.headers["location"], params={"wait": 0.01})
    assert (short.status_code, short.json()["status"]) == (200, "running")
    toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        final = await polling

    assert (final.status_code, final.json()["status"]) == (200, "completed")
    assert (await client.get(answer.headers["location"], params={"wait": 60})).content == final.content


async def test_a_wait_that_runs_out_is_answered_with_the_call_as_it_stands(
    client: httpx.AsyncClient, toys: Toys
) -> None:
    answer = await client.post("/v1/calls", params={"wait": 0.01}, json={"tool": "wait"})

    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    toys.go["wait"].set()


async def test_a_call_that_ends_while_it_is_read_is_told_as_ended(service: RunningService, toys: Toys) -> None:
    for turn in range(60):
        call = await create(service.client, "wait_free", {"name": f"{turn}"}, wait=0)
        polling = asyncio.create_task(service.client.get(f"/v1/calls/{call['id']}", params={"wait": 60}))
        for _ in range(turn):
            await asyncio.sleep(0)
        toys.go[f"{turn}"].set()

        async with asyncio.timeout(HANG):
            assert (await polling).json()["status"] == "completed"


async def test_a_call_that_is_accepted_is_in_the_store(service: RunningService) -> None:
    answer = await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait"})

    assert service.row(answer.json()["id"])["status"] == "running"


async def test_a_call_that_waits_at_a_hook_is_accepted_as_pending(service: RunningService, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    service.hooks = [hook]
    await service.restart()

    answer = await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "note"})
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    await service.client.post(f"/v1/calls/{answer.json()['id']}/cancel")

    assert service.end(answer.json()["id"]) == ("error", "Canceled")


async def test_a_wait_must_be_a_number_of_seconds(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for wait in ["-1", "601", "nan", "inf", "soon", ""]:
        for method in ["POST", "GET", "batch"]:
            with subtests.test(wait=wait, method=method):
                if method == "GET":
                    call = await create(client, "echo")
                    answer = await client.get(f"/v1/calls/{call['id']}", params={"wait": wait})
                elif method == "POST":
                    answer = await client.post("/v1/calls", params={"wait": wait}, json={"tool": "echo"})
                else:
                    answer = await client.post(
                        "/v1/calls/batch", params={"wait": wait}, json={"calls": [{"tool": "echo"}]}
                    )

                assert "wait" in assert_problem(answer, 422, "InvalidRequest")


async def test_an_envelope_that_does_not_fit_is_refused_by_name(
    service: RunningService, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[Any, str]] = [
        ({}, "tool"),
        ({"tool": ""}, "tool"),
        ({"tool": 5}, "tool"),
        ({"tool": "x" * 257}, "tool"),
        ({"tool": "echo", "arguments": []}, "arguments"),
        ({"tool": "echo", "arguments": "text"}, "arguments"),
        ({"tool": "shout", "input": {"a": 1}}, "input"),
        ({"tool": "echo", "timeout": 0}, "timeout"),
        ({"tool": "echo", "timeout": 86_401}, "timeout"),
        ({"tool": "echo", "timeout": "5"}, "timeout"),
        ({"tool": "echo", "timeout": True}, "timeout"),
        ({"tool": "echo", "cancel_on_disconnect": 0}, "cancel_on_disconnect"),
        ({"tool": "echo", "cancel_on_disconnect": "yes"}, "cancel_on_disconnect"),
        ({"tool": "echo", "on_ask": "maybe"}, "on_ask"),
        ({"tool": "echo", "argument": {}}, "argument"),
        ([], ""),
        ("echo", ""),
        (5, ""),
    ]
    for body, field in cases:
        with subtests.test(body=body, field=field):
            answer = await service.client.post("/v1/calls", json=body)

            assert field in assert_problem(answer, 422, "InvalidRequest")
            assert service.rows("SELECT * FROM calls") == []


BAD_JSON = [
    b"",
    b"{",
    b'{"tool":"echo",}',
    b"{'tool':'echo'}",
    b'{"tool":"echo"} x',
    b'\xff{"tool":"echo"}',
    b'{"tool":"echo","arguments":{"text":NaN}}',
    b'{"tool":"echo","arguments":{"text":Infinity}}',
    b'{"tool":"echo","arguments":{"text":-Infinity}}',
    b'{"tool":"echo","arguments":{"text":1e999}}',
    b'{"tool":"echo","arguments":{"text":[-1E+400]}}',
    b'{"tool":"echo","arguments":{"text":"\\ud800"}}',
    b'{"tool":"echo","arguments":{"text":"\\udc00 \\ud800"}}',
    b'{"tool":"echo","arguments":{"\\udfff":1}}',
    b'{"tool":"\\ud800"}',
    b'{"tool":"echo","arguments":{"text":"\xed\xa0\x80"}}',
    b'{"tool":"echo","arguments":{"text":"\xc3"}}',
    b'{"tool":"echo","arguments":{"text":"a\nb"}}',
    b'{"tool":"echo","arguments":{"text":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    b'{"tool":"echo","arguments":{"text":' + b"9" * 5000 + b"}}",
]


async def test_what_is_not_json_is_refused_and_never_kept(service: RunningService, subtests: pytest.Subtests) -> None:
    for is_batch in [False, True]:
        for body in BAD_JSON:
            with subtests.test(is_batch=is_batch, body=body):
                path, content = ("/v1/calls/batch", b'{"calls":[' + body + b"]}") if is_batch else ("/v1/calls", body)
                if is_batch and body == b"":
                    content = b""

                answer = await service.client.post(path, content=content, headers={"Content-Type": "application/json"})

                assert_problem(answer, 400, "InvalidJson")
                assert service.rows("SELECT * FROM calls") == []


async def test_a_body_that_is_not_sent_as_json_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for path in ["/v1/calls", "/v1/calls/batch", "/v1/keys"]:
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]:
            with subtests.test(path=path, kind=kind):
                answer = await client.post(path, content=b'{"tool":"echo"}', headers={"Content-Type": kind})

                detail = assert_problem(answer, 415, "UnsupportedMediaType")
                assert detail == "Send the body with `Content-Type: application/json`."


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.mine+json"])
async def test_json_goes_by_several_names(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post("/v1/calls", content=b'{"tool":"echo"}', headers={"Content-Type": kind})

    assert answer.status_code == 200


async def test_json_values_come_back_exactly_as_they_were_sent(
    service: RunningService, subtests: pytest.Subtests
) -> None:
    texts: list[str] = [
        "12345678901234567890123456789012345678901234567890",
        "-9223372036854775809",
        "18446744073709551616",
        "9007199254740993",
        "1e308",
        "0.1",
        "-0.0",
        "1.0",
        '"\\ud83d\\ude00 \\u0000 \\u2028 é"',
        '{"b":1,"a":{"z":[null,true,false,{}]}}',
    ]
    for text in texts:
        for is_batch in [False, True]:
            with subtests.test(text=text, is_batch=is_batch):
                body = f'{{"tool":"echo","arguments":{{"text":{text}}},"metadata":{{"m":{text}}}}}'
                path, content = ("/v1/calls/batch", f'{{"calls":[{body}]}}') if is_batch else ("/v1/calls", body)

                answer = await service.client.post(path, content=content, headers={"Content-Type": "application/json"})

                call = answer.json()["data"][0] if is_batch else answer.json()
                expected = json.loads(text)
                assert call["status"] == "completed"
                assert repr(call["arguments"]) == repr({"text": expected})
                assert repr(call["metadata"]) == repr({"m": expected})
                assert repr(call["result"]["structured"]) == repr({"text": expected})
                assert (await service.client.get(f"/v1/calls/{call['id']}")).json() == call
                pending = (await service.client.get(f"/v1/calls/{call['id']}/events")).text.split("\n")
                assert repr(json.loads(pending[4][6:])["data"]["arguments"]) == repr({"text": expected})


async def test_a_session_is_named_in_the_body_or_the_header(service: RunningService) -> None:
    service.change(
        "INSERT INTO sessions (principal, id, agent, created_at) VALUES ('admin', 's1', 'builder', 0), "
        "('admin', 's2', null, 0), ('ann', 's3', null, 0)"
    )

    async def session(header: str | None, body: str | None) -> tuple[int, str]:
        headers = {"Toolcrib-Session": header} if header else {}
        asked = {"tool": "echo"} | ({"session": body} if body else {})
        answer = await service.client.post("/v1/calls", json=asked, headers=headers)
        return answer.status_code, answer.json().get("session") or answer.json()["detail"]

    assert await session(None, None) == (200, "default")
    assert await session("s1", None) == (200, "s1")
    assert await session("s1", "s2") == (200, "s2")
    assert await session("s1", "default") == (200, "default")
    assert await session("s3", None) == (404, "There is no session s3.")
    assert await session(None, "none") == (404, "There is no session none.")
    assert service.toys.contexts[1].agent == "builder"


async def test_a_call_is_canceled_and_canceling_it_again_changes_nothing(service: RunningService) -> None:
    call = await create(service.client, "wait", {"say": "so far"}, wait=0)
    await service.started("wait")

    first = await service.client.post(f"/v1/calls/{call['id']}/cancel")
    second = await service.client.post(f"/v1/calls/{call['id']}/cancel")

    assert (first.status_code, first.json()["error"]["code"]) == (200, "Canceled")
    assert first.json()["result"]["output"] == "so far"
    assert second.content == first.content
    assert service.end(call["id"]) == ("error", "Canceled")


async def test_a_cancel_of_a_completed_call_answers_with_it(client: httpx.AsyncClient) -> None:
    call = await create(client, "echo", {"text": "x"})

    answer = await client.post(f"/v1/calls/{call['id']}/cancel")

    assert answer.json() == call


async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient) -> None:
    for method, path in [
        ("GET", "/v1/calls/call_0"),
        ("POST", "/v1/calls/call_0/cancel"),
        ("GET", "/v1/calls/call_0/output"),
        ("GET", "/v1/calls/call_0/events"),
    ]:
        answer = await client.request(method, path)
        assert assert_problem(answer, 404, "NotFound") == "There is no call call_0."
    assert_problem(await client.get("/v1/tools/none"), 404, "NotFound")
    assert_problem(await client.get("/v1/nothing"), 404, "NotFound")
    assert_problem(await client.get("/"), 404, "NotFound")


async def test_a_method_that_is_not_there_is_a_problem_too(client: httpx.AsyncClient) -> None:
    assert_problem(await client.put("/v1/calls", json={}), 405, "MethodNotAllowed")
    assert_problem(await client.delete("/v1/tools"), 405, "MethodNotAllowed")


async def test_it_says_which_methods_a_path_has(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("/v1/calls", "GET, POST"),
        ("/v1/calls/batch", "POST"),
        ("/v1/calls/call_0", "GET"),
        ("/v1/keys", "GET, POST"),
        ("/v1/keys/key_0", "DELETE"),
        ("/healthz", "GET"),
    ]
    for path, methods in cases:
        with subtests.test(path=path, methods=methods):
            answer = await client.patch(path)

            assert_problem(answer, 405, "MethodNotAllowed")
            assert answer.headers["allow"] == methods


async def test_calls_are_listed_newest_first_page_by_page(client: httpx.AsyncClient) -> None:
    made = [(await create(client, "echo", {"text": n}))["id"] for n in range(7)]

    pages, cursor = [], None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/calls", params=params)).json()
        pages.append([call["id"] for call in page["data"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break

    newest = made[::-1]
    assert pages == [newest[:3], newest[3:6], newest[6:]]
    exact = (await client.get("/v1/calls", params={"limit": 7})).json()
    assert ([call["id"] for call in exact["data"]], exact["next_cursor"]) == (newest, None)


async def test_a_new_call_between_two_pages_moves_nothing(client: httpx.AsyncClient) -> None:
    made = [(await create(client, "echo"))["id"] for _ in range(4)]
    first = (await client.get("/v1/calls", params={"limit": 2})).json()
    await create(client, "echo")

    second = (await client.get("/v1/calls", params={"limit": 2, "cursor": first["next_cursor"]})).json()

    assert [call["id"] for call in first["data"] + second["data"]] == made[::-1]


async def test_a_list_can_be_narrowed(service: RunningService) -> None:
    client = service.client
    service.change("INSERT INTO sessions (principal, id, created_at) VALUES ('admin', 's1', 0)")
    one = await create(client, "echo", message_id="m1")
    two = await create(client, "fail", session="s1", message_id="m1")
    three = await create(client, "wait", wait=0)

    async def found(**params: Any) -> list[str]:
        answer = await client.get("/v1/calls", params=params)
        assert answer.status_code == 200, answer.text
        return [call["id"] for call in answer.json()["data"]]

    assert await found() == [three["id"], two["id"], one["id"]]
    assert await found(status="running") == [three["id"]]
    assert await found(status="error") == [two["id"]]
    assert await found(tool="echo") == [one["id"]]
    assert await found(session="s1") == [two["id"]]
    assert await found(message="m1") == [two["id"], one["id"]]
    assert await found(message="m1", tool="fail", status="error") == [two["id"]]
    assert await found(message="m1", tool="fail", status="completed") == []
    assert await found(since=two["created_at"]) == [three["id"], two["id"]]
    assert await found(until=two["created_at"]) == [one["id"]]
    assert await found(since=two["created_at"], until=three["created_at"]) == [two["id"]]
    assert await found(since="2020-01-01T00:00:00+02:00", until="2020-01-02") == []
    assert await found(since="2999-01-01T00:00:00Z") == []
    assert await found(since="9999-12-31T23:59:59Z") == []
    assert await found(until="0253-04-18T19:04:08Z") == []
    assert len(await found(since="0253-04-18T19:04:08Z", until="9999-12-31T23:59:59Z")) == 3


async def test_a_list_asked_for_badly_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 501},
        {"status": "done"},
        {"since": "yesterday"},
        {"since": "0.5"},
        {"until": "1767225600"},
        {"cursor": "x" * 65},
    ]
    for params in cases:
        with subtests.test(params=params):
            assert_problem(await client.get("/v1/calls", params=params), 422, "InvalidRequest")


async def test_a_short_output_is_read_from_the_result(client: httpx.AsyncClient) -> None:
    call = await create(client, "echo", {"text": "héllo"})

    async def output(**params: int) -> tuple[bytes, str, str]:
        answer = await client.get(f"/v1/calls/{call['id']}/output", params=params)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        headers = answer.headers
        return answer.content, headers["toolcrib-output-total"], headers["toolcrib-output-dropped"]

    assert await output() == ("héllo".encode(), "6", "0")
    assert await output(offset=2) == (b"\xa9llo", "6", "0")
    assert await output(offset=1, limit=2) == ("é".encode(), "6", "0")
    assert await output(offset=6) == (b"", "6", "0")
    assert await output(offset=2**62) == (b"", "6", "0")


async def test_a_cut_output_is_read_whole_by_ranges(client: httpx.AsyncClient) -> None:
    call = await create(client, "flood", {"text": "aé€😀", "times": 70_000})
    whole = ("aé€😀" * 70_000).encode()
    path = f"/v1/calls/{call['id']}/output"

    assert call["result"]["metadata"]["truncated"] is True
    assert (await client.get(path)).content == whole
    read = b""
    while len(read) < len(whole):
        piece = await client.get(path, params={"offset": len(read), "limit": 99_999})
        assert piece.headers["toolcrib-output-total"] == str(len(whole))
        read += piece.content
    assert read == whole
    for offset, limit in [(262_140, 10), (262_144, 1), (524_287, 3), (699_999, 5), (700_000, 5)]:
        piece = await client.get(path, params={"offset": offset, "limit": limit})
        assert piece.content == whole[offset : offset + limit]


async def test_output_is_readable_while_the_call_runs(service: RunningService, toys: Toys) -> None:
    call = await create(service.client, "say", {"texts": ["one ", "two"], "wait": True}, wait=0)
    await until(lambda: sum(row["n"] for row in service.rows("SELECT length(data) AS n FROM outputs")) == 7)

    answer = await service.client.get(f"/v1/calls/{call['id']}/output")

    assert (answer.content, answer.headers["toolcrib-output-total"]) == (b"one two", "7")
    toys.go["say"].set()


async def test_dropped_output_is_counted(service: RunningService) -> None:
    service.settings["output_limit"] = 10
    await service.restart()
    spoken = await create(service.client, "say", {"texts": ["12345", "6789é", "more"]})
    flooded = await create(service.client, "flood", {"text": "é", "times": 150})

    one = await service.client.get(f"/v1/calls/{spoken['id']}/output")
    two = await service.client.get(f"/v1/calls/{flooded['id']}/output")

    assert (one.content, one.headers["toolcrib-output-dropped"]) == (b"123456789", "6")
    assert (two.content, two.headers["toolcrib-output-dropped"]) == ("é".encode() * 5, "290")


@pytest.mark.parametrize("params", [{"offset": -1}, {"limit": 0}, {"offset": "x"}, {"offset": 2**63}])
async def test_a_range_that_cannot_be_is_refused(client: httpx.AsyncClient, params: dict[str, Any]) -> None:
    call = await create(client, "echo")

    assert_problem(await client.get(f"/v1/calls/{call['id']}/output", params=params), 422, "InvalidRequest")


async def test_a_batch_is_answered_in_order(client: httpx.AsyncClient, toys: Toys) -> None:
    asked = [
        {"tool": "echo", "arguments": {"text": "a"}, "call_id": "1"},
        {"tool": "none", "call_id": "2"},
        {"tool": "note", "arguments": {"text": "b"}, "call_id": "3"},
        {"tool": "shout", "input": "c", "call_id": "4"},
    ]

    answer = await client.post("/v1/calls/batch", json={"calls": asked})

    assert answer.status_code == 200
    body = answer.json()
    assert body["next_cursor"] is None
    assert [(call["call_id"], call["status"]) for call in body["data"]] == [
        ("1", "completed"),
        ("2", "error"),
        ("3", "completed"),
        ("4", "completed"),
    ]
    assert body["data"][3]["result"]["output"] == "C"
    read_back = [(await client.get(f"/v1/calls/{call['id']}")).json() for call in body["data"]]
    assert read_back == body["data"]


async def test_writers_of_a_batch_run_in_order(client: httpx.AsyncClient, toys: Toys) -> None:
    asked = [{"tool": "note", "arguments": {"text": str(n)}} for n in range(128)]

    answer = await client.post("/v1/calls/batch", json={"calls": asked})

    assert {call["status"] for call in answer.json()["data"]} == {"completed"}
    assert toys.notes == [str(n) for n in range(128)]


async def test_a_batch_that_lasts_is_answered_as_it_stands(client: httpx.AsyncClient, toys: Toys) -> None:
    asked = [
        {"tool": "wait", "arguments": {"name": "w", "effect": "write"}},
        {"tool": "note", "arguments": {"text": "x"}},
        {"tool": "wait_free"},
    ]

    answer = await client.post("/v1/calls/batch", params={"wait": 0}, json={"calls": asked})

    statuses = [call["status"] for call in answer.json()["data"]]
    assert statuses == ["running", "pending", "running"]
    for name in ("w", "wait"):
        toys.go[name].set()
    for call in answer.json()["data"]:
        ended = await client.get(f"/v1/calls/{call['id']}", params={"wait": 5})
        assert ended.json()["status"] == "completed"


async def test_a_batch_that_does_not_fit_runs_nothing(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        {"calls": []},
        {"calls": [{"tool": "echo"}] * 129},
        {},
        {"calls": [{"tool": "echo"}, {"tool": ""}]},
        {"calls": [{"tool": "echo", "cancel_on_disconnect": 0}]},
        [],
    ]
    for body in cases:
        with subtests.test(body=body):
            answer = await service.client.post("/v1/calls/batch", json=body)

            assert_problem(answer, 422, "InvalidRequest")
            assert service.rows("SELECT * FROM calls") == []


async def test_a_batch_with_an_unknown_session_runs_nothing(service: RunningService) -> None:
    body = {"calls": [{"tool": "echo"}, {"tool": "echo", "session": "nowhere"}]}

    answer = await service.client.post("/v1/calls/batch", json=body)

    assert_problem(answer, 404, "NotFound")
    assert service.rows("SELECT * FROM calls") == []


async def test_a_stopping_service_takes_no_more_calls_and_still_answers(service: RunningService) -> None:
    call = await create(service.client, "echo", {"text": "x"})
    await service.house.drain()

    for path, body in [("/v1/calls", {"tool": "echo"}), ("/v1/calls/batch", {"calls": [{"tool": "echo"}]})]:
        answer = await service.client.post(path, json=body)
        assert_problem(answer, 503, "Stopping")
        assert answer.headers["retry-after"] == "5"
    ready = await service.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "stopping")
    assert (await service.client.get("/healthz")).status_code == 200
    assert (await service.client.get(f"/v1/calls/{call['id']}")).json() == call


async def test_a_store_that_refuses_is_said_and_nothing_is_run(service: RunningService, toys: Toys) -> None:
    service.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")

    answer = await service.client.post("/v1/calls", json={"tool": "note", "arguments": {"text": "x"}})

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert toys.notes == []
    service.change("DROP TRIGGER no_calls")
    assert (await create(service.client, "note", {"text": "y"}))["status"] == "completed"


async def test_a_call_made_by_a_tool_is_listed_with_its_parent(client: httpx.AsyncClient) -> None:
    parent = await create(client, "relay", {"tool": "echo", "arguments": {"text": "x"}})

    listed = (await client.get("/v1/calls", params={"tool": "echo"})).json()["data"]

    assert [call["parent"] for call in listed] == [parent["id"]]


async def test_a_hundred_calls_at_once_all_end(client: httpx.AsyncClient, toys: Toys) -> None:
    async with asyncio.timeout(HANG * 4):
        views = await asyncio.gather(
            *(
                create(
                    client,
                    ("note", "echo", "say", "fail")[n % 4],
                    [{"text": str(n)}, {"text": n}, {"texts": ["x"]}, {}][n % 4],
                )
                for n in range(100)
            )
        )

    assert [view["status"] for view in views] == ["completed", "completed", "completed", "error"] * 25
    assert sorted(toys.notes) == sorted(str(n) for n in range(0, 100, 4))
