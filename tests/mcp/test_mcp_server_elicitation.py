"""What waits for a person is put to the user of the MCP client, on its stream or in rounds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import types

from app.core.principals import Scope
from tests.mcp.server_clients import ERAS, AttendedToys, User, Waiting, accept, mcp_client, texts
from tests.support.ask_calls import QUESTIONS, AskingToys, answer, key_with, open_ask
from tests.support.mcp_wire import ABOUT, Session2025, called
from tests.support.services import KEY, RunningService, until
from tests.support.toy_tools import Toys

MODES = pytest.mark.parametrize("mode", ERAS)
SECRET = {"path": ".env"}


@pytest.fixture
def toys() -> Toys:
    return AttendedToys()


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


async def of_call(service: RunningService) -> dict[str, Any]:
    """The ask that the only call waits for."""
    await until(lambda: service.rows("SELECT * FROM asks WHERE status = 'open'"))
    [row] = service.rows("SELECT call FROM asks WHERE status = 'open'")
    return await open_ask(service.client, row["call"])


@MODES
async def test_a_permission_is_a_form_and_the_answer_lets_the_call_run(service: RunningService, mode: str) -> None:
    user = User(accept(decision="allow_once"))

    async with mcp_client(service, mode, elicitation_callback=user) as client:
        result = await client.call_tool("need", SECRET)

    assert (result.is_error, texts(result)) == (False, ["had .env"])
    [asked] = user.asked
    assert asked.message.startswith("May need do this?\n- read: .env")
    assert asked.requested_schema["properties"]["decision"]["enum"] == ["allow_once", "allow_always", "deny"]
    assert len(service.rows("SELECT * FROM calls")) == 1
    [ask] = (await service.client.get("/v1/asks")).json()["data"]
    assert (ask["status"], ask["answer"]["decision"], ask["answer"]["principal"]) == (
        "answered",
        "allow_once",
        "admin",
    )


@MODES
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (accept(decision="deny", message="not today"), "did not allow read .env: not today"),
        (types.ElicitResult(action="decline"), "did not allow read .env."),
        (types.ElicitResult(action="cancel"), "did not allow read .env."),
        (accept(decision="whatever"), "does not match the question"),
    ],
    ids=["deny", "decline", "cancel", "misfit"],
)
async def test_whatever_is_not_a_yes_is_a_no(
    service: RunningService, mode: str, said: types.ElicitResult, sentence: str
) -> None:
    async with mcp_client(service, mode, elicitation_callback=User(said)) as client:
        result = await client.call_tool("need", SECRET)

    assert result.is_error is True
    [text] = texts(result)
    assert text.startswith("PermissionDenied: ")
    assert sentence in text


@MODES
async def test_who_answers_over_rest_first_is_heard_and_the_user_is_let_go(service: RunningService, mode: str) -> None:
    user = User()

    async with mcp_client(service, mode, elicitation_callback=user) as client:
        calling = Waiting(client.call_tool("need", SECRET))
        await user.is_asked()
        ask = await of_call(service)
        told = await answer(service.client, ask, decision="allow")
        if mode == "legacy":
            await until(user.was_canceled.is_set)
        else:
            user._answers.append(accept(decision="deny"))
            user.go.set()
        result = await calling.result()

    assert told.status_code == 200
    assert (result.is_error, texts(result)) == (False, ["had .env"])
    [row] = service.rows("SELECT * FROM calls")
    assert service.end(row["id"]) == ("completed", None)


@MODES
async def test_a_client_that_puts_nothing_to_anybody_waits_until_the_deadline(data_dir: Path, mode: str) -> None:
    service = RunningService(data_dir, AttendedToys(), ask_timeout=0.2)
    await service.open()

    async with mcp_client(service, mode) as client:
        result = await client.call_tool("need", SECRET)
    await service.close()

    assert result.is_error is True
    [text] = texts(result)
    assert text.startswith("AskExpired: No person answered whether this is allowed within 0.2 s")


@MODES
async def test_a_key_that_may_not_answer_is_not_asked(service: RunningService, mode: str) -> None:
    token = await key_with(service, Scope.CALLS_RUN)
    user = User(accept(decision="allow_once"))

    headers = {"Authorization": f"Bearer {token}"}
    async with mcp_client(service, mode, headers, elicitation_callback=user) as client:
        calling = Waiting(client.call_tool("need", SECRET))
        await answer(service.client, await of_call(service), decision="deny")
        result = await calling.result()

    assert (result.is_error, user.asked) == (True, [])


@MODES
async def test_always_is_offered_to_who_may_write_rules(service: RunningService, mode: str) -> None:
    token = await key_with(service, Scope.CALLS_RUN, Scope.ASKS_ANSWER)
    user = User(accept(decision="allow_always"))

    async with mcp_client(service, mode, {"Authorization": f"Bearer {token}"}, elicitation_callback=user) as client:
        refused = await client.call_tool("need", SECRET)
    async with mcp_client(service, mode, elicitation_callback=User(accept(decision="allow_always"))) as client:
        allowed = [await client.call_tool("need", SECRET) for _ in range(2)]

    assert user.asked[0].requested_schema["properties"]["decision"]["enum"] == ["allow_once", "deny"]
    assert [refused.is_error, *(result.is_error for result in allowed)] == [True, False, False]
    assert len(service.rows("SELECT * FROM asks WHERE principal = 'admin'")) == 1


@MODES
async def test_questions_are_fields_and_their_answers_come_back(data_dir: Path, mode: str) -> None:
    service = RunningService(data_dir, AskingToys())
    await service.open()
    user = User(accept(colour="Blue", why="because"))
    async with mcp_client(service, mode, elicitation_callback=user) as client:
        result = await client.call_tool("request_user_input", {"questions": QUESTIONS})
    await service.close()

    assert result.structured_content == {"answers": {"colour": "Blue", "why": "because"}}
    fields = user.asked[0].requested_schema["properties"]
    assert (fields["colour"]["enum"], "enum" in fields["why"]) == (["Red", "Blue"], False)


@MODES
async def test_what_a_server_asks_is_passed_on_as_it_is(service: RunningService, mode: str) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = {"server": "far", "mode": "form", "message": "Your name?", "requested_schema": schema}
    page = {"server": "far", "mode": "url", "message": "Look", "url": "https://far.example/x", "elicitation_id": "e1"}
    user = User(accept(name="Ann"), types.ElicitResult(action="accept"))

    async with mcp_client(service, mode, elicitation_callback=user) as client:
        named = await client.call_tool("elicit", {"shows": form})
        seen = await client.call_tool("elicit", {"shows": page})

    assert (texts(named), texts(seen)) == (["{'name': 'Ann'}"], ["{}"])
    assert (user.asked[0].message, user.asked[0].requested_schema) == ("Your name?", schema)
    assert (user.asked[1].mode, user.asked[1].url) == ("url", "https://far.example/x")


async def test_a_call_may_come_back_several_times_and_is_made_once(service: RunningService, toys: Toys) -> None:
    users = [accept(decision="allow_once"), accept(decision="allow_once")]
    toys.go["consent"].set()

    async with mcp_client(service, "auto", elicitation_callback=User(*users)) as client:
        result = await client.call_tool("relay", {"tool": "consent", "arguments": {"patterns": ["x"]}, "times": 2})

    assert texts(result) == ["did x did x"]
    assert len(service.rows("SELECT * FROM calls WHERE parent IS NULL")) == 1


async def test_a_question_goes_to_nobody_when_the_client_has_left(service: RunningService) -> None:
    session = Session2025(service.client)
    await session.begin(elicitation={}, sampling={})
    asked = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    params = {"name": "turn_to_client", "arguments": asked}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}

    async with (
        service.client_of(KEY) as leaving,
        leaving.stream("POST", "/mcp", json=message, headers=session.headers) as stream,
    ):
        async for line in stream.aiter_lines():
            if "sampling/createMessage" in line:
                break
    await until(lambda: not len(service.services.dispatcher.live_calls))

    [row] = service.rows("SELECT id, error FROM calls")
    assert service.end(row["id"]) == ("error", "Declined")
    assert "The MCP client has disconnected." in row["error"]


async def test_a_permission_can_be_given_after_a_restart(service: RunningService) -> None:
    params = {"name": "need", "arguments": SECRET}
    first = (await service.client.post("/mcp", **capable(params))).json()["result"]
    await service.restart()

    state = params | {"requestState": first["requestState"]}
    again = (await service.client.post("/mcp", **capable(state))).json()["result"]
    [id] = first["inputRequests"]
    said = {id: {"action": "accept", "content": {"decision": "allow_once"}}}
    done = (await service.client.post("/mcp", **capable(state | {"inputResponses": said}))).json()["result"]

    assert again["inputRequests"] == first["inputRequests"]
    assert done["content"] == [{"type": "text", "text": "had .env"}]
    assert len(service.rows("SELECT * FROM calls")) == 1


async def test_a_permission_cannot_be_given_before_it_is_asked(service: RunningService) -> None:
    """What a server asks by a name of its own can; an ask has no name before it is there."""
    said = {"action": "accept", "content": {"decision": "allow_once"}}
    asked = {"name": "need", "arguments": SECRET, "inputResponses": {"decision": said, "": said, "ask": said}}

    answer = (await service.client.post("/mcp", **capable(asked))).json()["result"]

    assert answer["resultType"] == "input_required"


async def test_nobody_answers_with_the_rights_of_another_key(service: RunningService) -> None:
    """Who repeats a call with its idempotency key waits for it, and is asked nothing that the first one is asked."""
    bound = service.client_of(await key_with(service, Scope.CALLS_RUN, principal="admin"))
    params = {"name": "need", "arguments": SECRET}
    first = (await service.client.post("/mcp", **capable(params, idempotencyKey="k"))).json()["result"]

    repeating = Waiting(bound.post("/mcp", **capable(params, idempotencyKey="k")))
    leaving = asyncio.create_task(bound.post("/mcp", **capable(params, idempotencyKey="k")))
    stolen = await bound.post("/mcp", **capable(params | {"requestState": first["requestState"]}))
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.wait([leaving])
    is_asked = repeating.task.done()
    [id] = first["inputRequests"]
    said = {id: {"action": "accept", "content": {"decision": "allow_once"}}}
    back = params | {"requestState": first["requestState"], "inputResponses": said}
    done = (await service.client.post("/mcp", **capable(back))).json()["result"]
    repeated = (await repeating.result()).json()["result"]
    await bound.aclose()

    assert (is_asked, stolen.json()["error"]["code"]) == (False, -32602)
    assert done["isError"] is False
    assert repeated["_meta"]["io.toolcrib/call"] == done["_meta"]["io.toolcrib/call"]
    assert len(service.rows("SELECT * FROM calls")) == 1


def capable(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The request of a client that can put things to its user."""
    meta = ABOUT | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}} | more
    asked = called(params["name"], params.get("arguments"))
    asked["json"]["params"] |= params | {"_meta": meta}
    return asked


async def test_a_state_is_good_for_its_call_and_its_key_alone(service: RunningService) -> None:
    other = service.client_of(await key_with(service, Scope.ADMIN, principal="admin"))
    params = {"name": "need", "arguments": SECRET}
    first = (await service.client.post("/mcp", **capable(params))).json()["result"]
    [id] = first["inputRequests"]
    back = params | {
        "requestState": first["requestState"],
        "inputResponses": {id: {"action": "accept", "content": {"decision": "allow_once"}}},
    }
    broken = back["requestState"][:-4] + "AAAA"

    async def tried(client: httpx.AsyncClient, **changes: Any) -> int:
        answer = await client.post("/mcp", **capable(back | changes))
        code: int = answer.json()["error"]["code"]
        return code

    refused = [
        await tried(service.client, requestState=broken),
        await tried(service.client, requestState=""),
        await tried(service.client, arguments={"path": "other"}),
        await tried(service.client, name="echo"),
        await tried(other),
    ]
    assert service.rows("SELECT * FROM asks WHERE status != 'open'") == []
    done = (await service.client.post("/mcp", **capable(back))).json()["result"]
    again = (await service.client.post("/mcp", **capable(back))).json()["result"]
    await other.aclose()

    assert refused == [-32602] * 5
    assert (first["resultType"], done["resultType"], done["isError"]) == ("input_required", "complete", False)
    assert again == done
    assert len(service.rows("SELECT * FROM calls")) == 1
