"""The frontend runs a call itself and posts the result: once, in time, and only its own."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.core.calls import CallRequest
from app.core.sessions import Session
from tests.support.client_tools import OSLO, ClientToys
from tests.support.mcp_wire import called
from tests.support.services import HANG, RunningService, listening, until
from tests.support.toy_tools import ToyHook, Toys

WEATHER = {"tool": "get_weather", "arguments": OSLO}
RAIN = {"output": "rain"}


@pytest.fixture
def toys() -> Toys:
    return ClientToys()


async def given_out(service: RunningService, body: dict[str, Any] = WEATHER) -> dict[str, Any]:
    answer = await service.client.post("/v1/calls", params={"wait": 0}, json=body)
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    call: dict[str, Any] = answer.json()
    return call


async def post(client: httpx.AsyncClient, id: str, body: Any = RAIN) -> httpx.Response:
    return await client.post(f"/v1/calls/{id}/result", json=body)


def assert_problem(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    detail: str = answer.json()["detail"]
    return detail


async def test_a_frontend_that_watches_runs_the_call_and_its_result_is_the_answer(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    async with listening(client, "/v1/events") as stream:
        asking = asyncio.create_task(client.post("/v1/calls", json=WEATHER | {"call_id": "toolu_1"}))
        told = (await stream.until("call.running"))[-1].data
        assert told["data"]["client"] is True
        assert told["data"]["arguments"] == OSLO

        posted = await post(client, told["call"], {"output": "rain", "title": "Oslo", "structured": {"c": 12}})
        ended = (await stream.until("call.completed"))[-1].data

    answer = await asking
    assert (posted.status_code, answer.status_code) == (200, 200)
    assert posted.json() == answer.json() == (await client.get(f"/v1/calls/{told['call']}")).json()
    assert answer.json()["status"] == "completed"
    assert (
        answer.json()["result"]
        == ended["data"]["result"]
        == {
            "title": "Oslo",
            "output": "rain",
            "metadata": {"truncated": False, "original_size": 4, "truncated_size": 4},
            "attachments": [],
            "structured": {"c": 12},
        }
    )
    assert service.end(told["call"]) == ("completed", None)


async def test_its_events_are_told_again_byte_for_byte_after_the_end_and_after_a_restart(
    service: RunningService,
) -> None:
    call = await given_out(service)
    path = f"/v1/calls/{call['id']}/events"
    async with listening(service.client, path) as stream:
        live = await stream.until("call.running")
        await post(service.client, call["id"])
        live += await stream.rest()
    async with listening(service.client, path) as stream:
        after_the_end = await stream.rest()
    await service.restart()
    async with listening(service.client, path) as stream:
        after_a_restart = await stream.rest()

    assert [frame.event for frame in live] == ["call.pending", "call.running", "call.completed"]
    assert live == after_the_end == after_a_restart


async def test_a_client_that_failed_says_why(service: RunningService, client: httpx.AsyncClient) -> None:
    named, unnamed = await given_out(service), await given_out(service)
    error = {"code": "HttpStatus:404", "message": "There is no station."}

    first = await post(client, named["id"], {"output": "asked twice", "error": error})
    second = await post(client, unnamed["id"], {"error": {"message": "The browser is closed."}})

    assert (first.status_code, first.json()["status"]) == (200, "error")
    assert first.json()["error"] == error | {"retryable": False}
    assert first.json()["result"]["output"] == "asked twice"
    assert second.json()["error"] == {
        "code": "ToolUnavailable",
        "message": "The browser is closed.",
        "retryable": True,
    }
    assert second.json()["result"] is None


async def test_attachments_and_metadata_come_along(service: RunningService, client: httpx.AsyncClient) -> None:
    call = await given_out(service)
    files = [
        {"mime": "image/png", "url": "data:image/png;base64,iVBORw0KGgo=", "filename": "sky.png"},
        {"type": "file", "mime": "text/html", "url": "https://example.com/"},
    ]

    ended = (await post(client, call["id"], {"metadata": {"station": 3}, "attachments": files})).json()

    assert ended["result"]["attachments"] == [{"type": "file"} | files[0], {"filename": None} | files[1]]
    assert ended["result"]["metadata"] == {
        "station": 3,
        "truncated": False,
        "original_size": 0,
        "truncated_size": 0,
    }


async def test_a_result_may_be_empty(service: RunningService, client: httpx.AsyncClient) -> None:
    call = await given_out(service)

    ended = (await post(client, call["id"], {})).json()

    assert (ended["status"], ended["result"]["output"]) == ("completed", "")


@pytest.mark.parametrize("body", [RAIN, {"output": "snow"}, {"error": {"message": "no"}}])
async def test_a_second_result_is_a_conflict_also_when_it_is_the_same(
    service: RunningService, client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    call = await given_out(service)
    first = await post(client, call["id"])

    detail = assert_problem(await post(client, call["id"], body), 409, "CallEnded")

    assert detail == "This call has ended; its result stays as it is."
    assert (await client.get(f"/v1/calls/{call['id']}")).json() == first.json()


async def test_of_many_results_at_once_one_is_taken(service: RunningService, client: httpx.AsyncClient) -> None:
    call = await given_out(service)

    async with asyncio.timeout(HANG * 2):
        answers = await asyncio.gather(*(post(client, call["id"], {"output": str(n)}) for n in range(30)))

    [taken] = [answer for answer in answers if answer.status_code == 200]
    assert {answer.status_code for answer in answers if answer is not taken} == {409}
    assert (await client.get(f"/v1/calls/{call['id']}")).json() == taken.json()
    assert service.end(call["id"]) == ("completed", None)


async def test_a_second_result_while_a_hook_looks_at_the_first_is_told_so(service: RunningService) -> None:
    thinking, go = asyncio.Event(), asyncio.Event()

    class Slow(ToyHook):
        async def _after(self, about: dict[str, Any]) -> None:
            thinking.set()
            await go.wait()

    service.hooks = [Slow("h")]
    await service.restart()
    made = await service.client.post("/v1/calls", params={"wait": 0}, json=WEATHER)
    id = made.json()["id"]
    await until(lambda: service.row(id)["status"] == "running")
    first = asyncio.create_task(post(service.client, id))
    async with asyncio.timeout(HANG):
        await thinking.wait()

    detail = assert_problem(await post(service.client, id, {"output": "snow"}), 409, "CallEnded")
    go.set()

    assert detail == "The result of this call was posted already; the first one stands."
    assert (await first).json()["result"]["output"] == "rain"


async def test_a_result_after_the_deadline_is_late(service: RunningService, client: httpx.AsyncClient) -> None:
    ended = (await client.post("/v1/calls", json={"tool": "get_soon", "arguments": OSLO})).json()
    assert ended["error"]["code"] == "Timeout"

    assert_problem(await post(client, ended["id"]), 409, "CallEnded")


async def test_a_result_after_a_cancel_is_late(service: RunningService, client: httpx.AsyncClient) -> None:
    call = await given_out(service)
    canceled = (await client.post(f"/v1/calls/{call['id']}/cancel")).json()
    assert canceled["error"]["code"] == "Canceled"

    assert_problem(await post(client, call["id"]), 409, "CallEnded")

    assert (await client.get(f"/v1/calls/{call['id']}")).json() == canceled


async def test_a_call_of_a_client_that_went_away_is_canceled_when_it_asked_for_that(service: RunningService) -> None:
    body = WEATHER | {"cancel_on_disconnect": True}
    asking = asyncio.create_task(service.client.post("/v1/calls", json=body))
    await until(lambda: service.rows("SELECT * FROM calls WHERE status = 'running'"))
    [row] = service.rows("SELECT id FROM calls")

    asking.cancel()
    ended = await service.client.get(f"/v1/calls/{row['id']}", params={"wait": 5})

    assert ended.json()["error"]["code"] == "Canceled"


async def test_what_the_service_runs_takes_no_result(
    service: RunningService, client: httpx.AsyncClient, toys: Toys
) -> None:
    running = (await client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait"})).json()
    ended = (await client.post("/v1/calls", json={"tool": "echo"})).json()

    assert assert_problem(await post(client, running["id"]), 409, "NotClientRun") == (
        "wait is run by the service; clients cannot post its result."
    )
    assert_problem(await post(client, ended["id"]), 409, "CallEnded")
    toys.go["wait"].set()
    answer = await client.get(f"/v1/calls/{running['id']}", params={"wait": 5})
    assert answer.json()["result"]["output"] == "wait"


async def test_what_does_not_run_yet_takes_no_result(service: RunningService) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    service.hooks = [hook]
    await service.restart()
    pending = (await service.client.post("/v1/calls", params={"wait": 0}, json=WEATHER)).json()

    detail = assert_problem(await post(service.client, pending["id"]), 409, "CallNotRunning")
    hook.go.set()
    await until(lambda: service.row(pending["id"])["status"] == "running")

    assert detail == "This call does not run yet; post its result when it does."
    assert (await post(service.client, pending["id"])).json()["status"] == "completed"


async def test_a_body_that_does_not_fit_ends_nothing(
    service: RunningService, client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[Any] = [
        [],
        {"output": 7},
        {"text": "rain"},
        {"metadata": []},
        {"attachments": [{"mime": "image/png"}]},
        {"attachments": [{"mime": "text/html", "url": "javascript:alert(1)"}]},
        {"error": "no"},
        {"error": {}},
        {"error": {"message": ""}},
        {"error": {"message": "no", "code": ""}},
        {"error": {"message": "no", "code": "7up"}},
        {"error": {"message": "no", "code": "a b"}},
        {"error": {"message": "no", "code": "x" * 65}},
    ]
    for body in cases:
        with subtests.test(body=body):
            call = await given_out(service)

            assert_problem(await post(client, call["id"], body), 422, "InvalidRequest")

            assert service.row(call["id"])["status"] == "running"


async def test_only_the_owner_and_who_sees_all_may_post_and_only_with_the_scope(service: RunningService) -> None:
    async def client_with(principal: str, scopes: list[str]) -> httpx.AsyncClient:
        made = await service.client.post("/v1/keys", json={"principal": principal, "scopes": scopes})
        return service.client_of(made.json()["token"])

    ann = await client_with("ann", ["calls:run"])
    reader = await client_with("ann", ["calls:read"])
    bob = await client_with("bob", ["calls:run", "calls:read"])
    async with ann, reader, bob:
        hers = [(await ann.post("/v1/calls", params={"wait": 0}, json=WEATHER)).json()["id"] for _ in range(2)]

        nothing = assert_problem(await post(bob, hers[0]), 404, "NotFound")
        assert nothing == f"There is no call {hers[0]}."
        assert_problem(await post(reader, hers[0]), 403, "Forbidden")
        assert service.row(hers[0])["status"] == "running"
        assert (await post(ann, hers[0])).status_code == 200
        assert_problem(await post(bob, hers[0]), 404, "NotFound")
        assert (await post(service.client, hers[1])).status_code == 200
    assert_problem(await post(service.client, "call_0"), 404, "NotFound")


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_after_a_restart_the_result_ends_the_call_and_those_who_ask_again_get_it(
    service: RunningService, how: str
) -> None:
    headers = {"Idempotency-Key": "k"}
    made = await service.client.post("/v1/calls", params={"wait": 0}, json=WEATHER, headers=headers)
    if how == "restart":
        await service.restart()
    else:
        await service.crash()
        await service.open()

    again = asyncio.create_task(service.client.post("/v1/calls", json=WEATHER, headers=headers))
    await until(lambda: service._server.server_state.tasks)
    posted = await post(service.client, made.json()["id"])

    assert (posted.status_code, posted.json()["status"]) == (200, "completed")
    assert (await again).json() == posted.json()
    assert service.end(made.json()["id"]) == ("completed", None)


async def test_who_waits_while_the_service_stops_is_told_that_it_still_runs(service: RunningService) -> None:
    asking = asyncio.create_task(service.client.post("/v1/calls", json=WEATHER))
    batch = asyncio.create_task(service.client.post("/v1/calls/batch", json={"calls": [WEATHER]}))
    await until(lambda: len(service.rows("SELECT * FROM calls WHERE status = 'running'")) == 2)
    calls = [row["id"] for row in service.rows("SELECT id FROM calls")]

    await service.house.drain()
    late = await post(service.client, calls[0])

    answer, answers = await asking, await batch
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert [call["status"] for call in answers.json()["data"]] == ["running"]
    assert assert_problem(late, 503, "Stopping") == "The service is stopping; post the result again later."
    assert late.headers["retry-after"] == "5"
    await service.restart()
    assert [(await post(service.client, id)).status_code for id in calls] == [200, 200]


async def test_it_is_counted_as_a_call_that_runs_also_after_a_restart(service: RunningService) -> None:
    async def live() -> list[str]:
        text = (await service.client.get("/metrics")).text
        return [line for line in text.splitlines() if line.startswith("toolcrib_calls_live{")]

    call = await given_out(service)
    before = await live()
    await service.restart()
    after = await live()
    await post(service.client, call["id"])

    running = ['toolcrib_calls_live{status="pending"} 0.0', 'toolcrib_calls_live{status="running"} 1.0']
    assert before == after == running
    assert (await live())[1] == 'toolcrib_calls_live{status="running"} 0.0'


async def test_a_result_is_answered_when_it_is_recorded_and_not_before(service: RunningService) -> None:
    call = await given_out(service)
    live = service.services.dispatcher.live_calls.get(call["id"])
    assert live is not None

    with service.stalled_writer():
        posting = asyncio.create_task(post(service.client, call["id"]))
        await until(lambda: live.call.is_final)
        assert (await service.client.get(f"/v1/calls/{call['id']}")).json() == call
        assert not posting.done()
    answer = await posting

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert service.end(call["id"]) == ("completed", None)


async def test_a_call_over_mcp_that_is_kept_for_the_next_start_is_no_success(service: RunningService) -> None:
    asking = asyncio.create_task(service.client.post("/mcp", **called("get_weather", OSLO)))
    await until(lambda: service.rows("SELECT * FROM calls WHERE status = 'running'"))
    [row] = service.rows("SELECT id FROM calls")

    await service.house.drain()

    result = (await asking).json()["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"] == (
        f"Interrupted: the service is stopping; call {row['id']} continues after the restart."
    )


async def test_a_call_in_a_session_of_somebody_else_is_run_by_nobody_else(service: RunningService) -> None:
    live = service.services.dispatcher.submit(
        CallRequest(tool="get_weather", arguments=OSLO), Session("ann", "default")
    )
    await until(lambda: live.is_open)
    bob = (await service.client.post("/v1/keys", json={"principal": "bob"})).json()
    async with service.client_of(bob["token"]) as client, listening(client, "/v1/events?after=0") as stream:
        await client.post("/v1/calls", params={"wait": 0}, json={"tool": "echo"})
        told = await stream.until("call.completed")

    assert live.call.id not in json.dumps([frame.data for frame in told])
