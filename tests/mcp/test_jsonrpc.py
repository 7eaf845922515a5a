"""Peers: what is asked and answered over a wire, here one that a test holds the other end of."""

import asyncio
import json
from typing import Any

import pytest

from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import ConnectionLost, JsonRpcError, RequestNotSent
from app.mcp.client.jsonrpc import MAX_BACKGROUND_SENDS, MAX_SERVER_REQUESTS, JsonRpcPeer, Transport
from tests.mcp.connections import HANG, Journal, Visitor, no
from tests.support.services import until


class Thread(Transport):
    """A wire that keeps what is sent. `is_held`: nothing gets away."""

    def __init__(self) -> None:
        self.sent: list[Raw] = []
        self.dropped: list[int] = []
        self.unsent: set[int] = set()
        self.way = asyncio.Event()
        self.way.set()

    async def send(self, message: Raw) -> None:
        await self.way.wait()
        self.sent.append(json.loads(json.dumps(message)))

    def discard(self, number: int) -> bool:
        self.dropped.append(number)
        return number in self.unsent


class Desk:
    """A peer, and the other end of its wire."""

    def __init__(self) -> None:
        self.visitor, self.journal, self.thread = Visitor(), Journal(), Thread()
        self.peer = JsonRpcPeer(self.visitor, self.journal)
        self.peer.transport = self.thread

    def says(self, of: int | None = None, **message: Any) -> None:
        self.peer.receive(json.dumps({"jsonrpc": "2.0", **message}).encode(), of)

    async def asks(self, method: str = "tools/call", **more: Any) -> tuple["asyncio.Task[Raw]", int]:
        """A request on its way, and its number."""
        before = len(self.thread.sent)
        task = asyncio.create_task(self.peer.request(method, **more))
        await until(lambda: len(self.thread.sent) > before)
        number: int = self.thread.sent[-1]["id"]
        return task, number


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_each_answer_goes_to_who_asked_for_it(desk: Desk) -> None:
    first, one = await desk.asks("a", params={"x": 1})
    second, two = await desk.asks("b")

    desk.says(id=two, result={"is": "b"})
    desk.says(id=one, result={"is": "a"})

    assert [await first, await second] == [{"is": "a"}, {"is": "b"}]
    assert desk.thread.sent == [
        {"jsonrpc": "2.0", "id": one, "method": "a", "params": {"x": 1}},
        {"jsonrpc": "2.0", "id": two, "method": "b"},
    ]


@pytest.mark.parametrize("form", [str, float])
async def test_a_number_that_comes_back_in_another_form_is_known(desk: Desk, form: Any) -> None:
    task, number = await desk.asks()

    desk.says(id=form(number), result={"ok": True})

    assert await task == {"ok": True}


async def test_answers_that_nobody_waits_for_are_dropped(desk: Desk) -> None:
    task, number = await desk.asks()

    odd: list[Any] = [number + 1, None, True, "x", [number], {}, -1, 1.5]
    for id in odd:
        desk.says(id=id, result={"is": "wrong"})
    desk.says(id=number, result={"is": "right"})
    desk.says(id=number, result={"is": "late"})

    assert await task == {"is": "right"}
    assert desk.peer.late_answers == 9


async def test_an_error_is_what_the_server_said(desk: Desk) -> None:
    task, number = await desk.asks()

    desk.says(id=number, error={"code": -32042, "message": "who are you?", "data": {"url": "x"}})

    with pytest.raises(JsonRpcError, match=r"who are you\?") as caught:
        await task
    assert (caught.value.code, caught.value.data) == (-32042, {"url": "x"})


@pytest.mark.parametrize("error", ["broken", {}, {"code": "x", "message": 3}, [1]])
async def test_an_error_of_any_form_ends_the_request(desk: Desk, error: Any) -> None:
    task, number = await desk.asks()

    desk.says(id=number, error=error)

    with pytest.raises(JsonRpcError) as caught:
        await task
    assert caught.value.code == -32603


async def test_a_result_that_is_no_object_ends_the_request(desk: Desk) -> None:
    task, number = await desk.asks("tools/list")

    desk.says(id=number, result=[1])

    with pytest.raises(JsonRpcError, match="The result of tools/list is not an object"):
        await task


async def test_an_error_without_a_number_belongs_to_the_stream_it_came_on(desk: Desk) -> None:
    task, number = await desk.asks()

    desk.says(of=number, id=None, error={"code": -32700, "message": "cannot read that"})

    with pytest.raises(JsonRpcError, match="cannot read that"):
        await task


async def test_what_is_no_message_is_noted_and_costs_only_itself(desk: Desk) -> None:
    task, number = await desk.asks()

    for junk in (b"Listening on port 3000", b"[1", b"17", b'"x"', b"null", b'{"a": 1}', b"\xff\xfe", b"[" * 5000):
        desk.peer.receive(junk)
    desk.says(id=number, result={})

    assert await task == {}
    assert "not JSON: Listening on port 3000\n" in desk.journal.text
    assert "not a JSON-RPC message: {'a': 1}\n" in desk.journal.text
    assert len(desk.journal.texts) == 8
    assert max(map(len, desk.journal.texts)) < 300


async def test_messages_that_come_as_one_list_are_taken_one_by_one(desk: Desk) -> None:
    task, number = await desk.asks()

    desk.peer.receive(json.dumps([{"method": "notifications/x"}, 7, {"id": number, "result": {"ok": 1}}]).encode())

    assert await task == {"ok": 1}
    assert desk.visitor.told_of == ["notifications/x"]


async def test_half_characters_and_huge_numbers_survive(desk: Desk) -> None:
    task, number = await desk.asks()

    desk.peer.receive(b'{"id": %d, "result": {"half": "\\ud83d!", "huge": %d, "latin": "\xe9"}}' % (number, 10**30))

    assert await task == {"half": "�!", "huge": 10**30, "latin": "�"}


async def test_progress_comes_while_it_is_waited_for_and_in_its_order(desk: Desk) -> None:
    heard: list[Any] = []
    task, number = await desk.asks(params={"_meta": {"own": 1}}, on_progress=lambda *step: heard.append(step))
    assert desk.thread.sent[-1]["params"]["_meta"] == {"own": 1, "progressToken": number}

    desk.says(method="notifications/progress", params={"progressToken": number, "progress": 1, "total": 2})
    desk.says(method="notifications/progress", params={"progressToken": str(number), "progress": 1.5, "message": "on"})
    for odd in ({"progress": "x"}, {"progress": True}, {}):
        desk.says(method="notifications/progress", params={"progressToken": number, **odd})
    desk.says(method="notifications/progress", params={"progressToken": number + 1, "progress": 1})
    desk.says(id=number, result={})
    desk.says(method="notifications/progress", params={"progressToken": number, "progress": 9})

    await task
    assert heard == [(1, 2, None), (1.5, None, "on")]
    assert desk.visitor.news == []


async def test_a_callback_that_fails_does_not_harm_the_request(desk: Desk) -> None:
    def broken(*step: Any) -> None:
        raise RuntimeError("mine")

    task, number = await desk.asks(on_progress=broken)

    desk.says(method="notifications/progress", params={"progressToken": number, "progress": 1})
    desk.says(id=number, result={"ok": 1})

    assert await task == {"ok": 1}


async def test_who_cancels_cancels_at_the_server(desk: Desk) -> None:
    task, number = await desk.asks()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: len(desk.thread.sent) == 2)

    params = {"requestId": number, "reason": "canceled"}
    assert desk.thread.sent[-1] == {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


async def test_a_request_that_takes_too_long_is_canceled_at_the_server(desk: Desk) -> None:
    with pytest.raises(TimeoutError):
        await desk.peer.request("tools/call", timeout=0.01)
    await until(lambda: len(desk.thread.sent) == 2)

    assert desk.thread.sent[-1]["params"]["reason"] == "timed out"


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_a_hello_is_never_canceled_at_the_server(desk: Desk, method: str) -> None:
    with pytest.raises(TimeoutError):
        await desk.peer.request(method, timeout=0.01)
    await asyncio.sleep(0)

    assert len(desk.thread.sent) == 1


async def test_what_the_server_has_not_seen_is_not_canceled_there(desk: Desk) -> None:
    task, number = await desk.asks()
    desk.thread.unsent = {number}

    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert desk.thread.dropped == [number]
    assert len(desk.thread.sent) == 1


async def test_what_the_server_asks_is_answered(desk: Desk) -> None:
    desk.says(id="s1", method="roots/list")
    desk.says(id=7, method="elicitation/create", params={"message": "?"})
    desk.says(id=8, method="ping")
    await until(lambda: len(desk.thread.sent) == 3)

    assert sorted(desk.thread.sent, key=lambda one: str(one["id"])) == [
        {"jsonrpc": "2.0", "id": 7, "result": {"method": "elicitation/create"}},
        {"jsonrpc": "2.0", "id": 8, "result": {}},
        {"jsonrpc": "2.0", "id": "s1", "result": {"method": "roots/list"}},
    ]
    assert desk.visitor.asks == [("roots/list", {}, None), ("elicitation/create", {"message": "?"}, None)]


async def test_no_is_an_answer_too_and_a_bug_of_ours_is_one(desk: Desk) -> None:
    desk.visitor.answer = no
    desk.says(id=1, method="sampling/createMessage")
    await until(lambda: desk.thread.sent)
    desk.visitor.answer = lambda method, params: 1 / 0
    desk.says(id=2, method="sampling/createMessage")
    await until(lambda: len(desk.thread.sent) == 2)

    said = {"code": -32000, "message": "not today", "data": {"method": "sampling/createMessage"}}
    assert desk.thread.sent[0]["error"] == said
    assert desk.thread.sent[1]["error"] == {"code": -32603, "message": "Internal error."}


async def test_what_the_server_asks_on_a_requests_own_stream_is_about_that_request(desk: Desk) -> None:
    context: Any = object()
    task, number = await desk.asks(ctx=context)

    desk.says(of=number, id=1, method="elicitation/create")
    desk.says(of=number, method="notifications/message", params={"data": "x"})
    desk.says(id=2, method="roots/list")
    desk.says(method="notifications/message")
    await until(lambda: len(desk.visitor.asks) == 2)

    assert [about for _, _, about in desk.visitor.asks] == [context, None]
    assert [about for _, _, about in desk.visitor.news] == [context, None]
    task.cancel()


async def test_the_server_can_take_back_what_it_asked(desk: Desk) -> None:
    desk.visitor.answer = lambda method, params: asyncio.sleep(HANG)
    desk.says(id=1, method="elicitation/create")
    await until(lambda: desk.visitor.asks)

    desk.says(method="notifications/cancelled", params={"requestId": 1})
    desk.says(method="notifications/cancelled", params={"requestId": 99})
    desk.says(method="notifications/cancelled", params={})
    await until(lambda: desk.visitor.canceled)

    assert desk.visitor.canceled == ["elicitation/create"]
    assert desk.thread.sent == []


async def test_a_server_that_asks_too_much_is_answered_no(desk: Desk) -> None:
    desk.visitor.answer = lambda method, params: asyncio.sleep(HANG)

    for number in range(MAX_SERVER_REQUESTS + 3):
        desk.says(id=number, method="elicitation/create")
    await until(lambda: len(desk.thread.sent) == 3)

    assert [one["id"] for one in desk.thread.sent] == [
        MAX_SERVER_REQUESTS,
        MAX_SERVER_REQUESTS + 1,
        MAX_SERVER_REQUESTS + 2,
    ]
    assert all("Too many requests" in one["error"]["message"] for one in desk.thread.sent)
    await desk.peer.close()


async def test_a_server_that_asks_and_does_not_read_costs_a_bounded_number_of_tasks(desk: Desk) -> None:
    desk.thread.way.clear()

    for number in range(5000):
        desk.says(id=number, method="ping")

    assert len(asyncio.all_tasks()) <= MAX_SERVER_REQUESTS + MAX_BACKGROUND_SENDS + 5
    assert "an answer was dropped" in desk.journal.text
    await desk.peer.close()
    assert len(asyncio.all_tasks()) <= 5


async def test_with_the_connection_everything_ends_that_waits_for_it(desk: Desk) -> None:
    task, number = await desk.asks()
    other, second = await desk.asks()
    desk.visitor.answer = lambda method, params: asyncio.sleep(HANG)
    desk.says(id=1, method="elicitation/create")
    await until(lambda: desk.visitor.asks)

    desk.peer.close_with("It is gone.", {second})
    desk.peer.close_with("Said too late.")

    for one, kind in ((task, ConnectionLost), (other, RequestNotSent)):
        with pytest.raises(ConnectionLost, match=r"It is gone\.") as caught:
            await one
        assert type(caught.value) is kind
    with pytest.raises(RequestNotSent, match="It is gone"):
        await desk.peer.request("tools/call")
    with pytest.raises(RequestNotSent, match="It is gone"):
        await desk.peer.notify("notifications/x")
    assert desk.peer.lost.result() == "It is gone."
    await desk.peer.close()
    assert desk.visitor.canceled == ["elicitation/create"]
    assert number != second


async def test_what_a_subscription_tells_goes_to_who_holds_it(desk: Desk) -> None:
    heard: list[str] = []
    task, number = await desk.asks("subscriptions/listen", on_notification=lambda method, params: heard.append(method))
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}

    desk.says(method="notifications/tools/list_changed", params=meta)
    desk.says(of=number, method="notifications/prompts/list_changed")
    desk.says(method="notifications/resources/list_changed")
    desk.says(method="notifications/cancelled", params={"requestId": number})

    with pytest.raises(ConnectionLost, match="ended the subscription"):
        await task
    assert heard == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]
    assert desk.visitor.told_of == ["notifications/resources/list_changed"]
