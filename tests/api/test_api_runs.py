"""Runs over HTTP: a model's message in, what to append out; nothing twice, nothing left unanswered."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.store import retention
from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import Toys

Body = dict[str, Any]


def call(id: str | None, name: str, arguments: Any = None) -> Body:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    made: Body = {"type": "function", "function": {"name": name, "arguments": given}}
    return made if id is None else {"id": id} | made


def message(*calls: Body) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(id: str, content: str) -> Body:
    return {"role": "tool", "tool_call_id": id, "content": content}


async def post(client: httpx.AsyncClient, body: Any, dialect: str = "openai-chat", **more: Any) -> httpx.Response:
    return await client.post(f"/v1/run/{dialect}", json=body, **more)


async def test_every_call_is_answered_in_the_order_of_the_message(client: httpx.AsyncClient, toys: Toys) -> None:
    body = message(
        call("call_aK", "note", {"text": "1"}),
        call("call_bK", "nowhere", {}),
        call("call_cK", "echo", '{"text": "half'),
        call("call_dK", "echo", {"text": "hi"}),
        call("call_eK", "echo", {"wrong": 1}),
    )

    answer = await post(client, {"id": "chatcmpl-1", "choices": [{"index": 0, "message": body}]})

    run = answer.json()
    assert answer.status_code == 200
    assert [one["tool_call_id"] for one in run["append"]] == ["call_aK", "call_bK", "call_cK", "call_dK", "call_eK"]
    codes = [one["error"] and one["error"]["code"] for one in run["calls"]]
    assert codes == [None, "UnknownTool", "InvalidArgs", None, "InvalidArgs"]
    assert run["append"][2]["content"].startswith("[ERROR:InvalidArgs] The arguments are not JSON: ")
    assert run["append"][3] == tool("call_dK", "hi")
    assert {one["message_id"] for one in run["calls"]} == {"chatcmpl-1"}
    assert run["calls"][2]["input"] == '{"text": "half'
    assert (run["pending"], run["blocked"], run["dialect"]) == ([], False, "openai-chat")
    assert toys.notes == ["1"]


async def test_a_message_without_calls_is_answered_with_nothing(client: httpx.AsyncClient) -> None:
    answer = await post(client, {"role": "assistant", "content": "Done."})

    assert answer.status_code == 200
    assert (answer.json()["append"], answer.json()["calls"]) == ([], [])
    assert (await client.get(f"/v1/run/{answer.json()['id']}")).json() == answer.json()


async def test_the_same_message_again_gets_the_same_answer_and_runs_nothing(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    body = message(call("call_aK", "note", {"text": "1"}), call("call_bK", "note", {"text": "2"}))

    first = await post(client, body)
    again = [await post(client, body) for _ in range(3)]
    await service.restart()
    later = await post(service.client, {"choices": [{"message": body}]})

    assert [answer.content for answer in again] == [first.content] * 3
    assert later.json() == first.json()
    assert toys.notes == ["1", "2"]
    assert len(service.rows("SELECT * FROM runs")) == 1


async def test_many_at_once_are_one_run(client: httpx.AsyncClient, service: RunningService, toys: Toys) -> None:
    body = message(call("call_aK", "note", {"text": "1"}))

    answers = await asyncio.gather(*(post(client, body) for _ in range(20)))

    assert len({answer.content for answer in answers}) == 1
    assert toys.notes == ["1"]
    assert len(service.rows("SELECT * FROM runs")) == 1


async def test_other_arguments_session_or_dialect_are_another_call(client: httpx.AsyncClient, toys: Toys) -> None:
    await client.post("/v1/sessions", json={"id": "other"})
    await post(client, message(call("call_aK", "note", {"text": "1"})))

    await post(client, message(call("call_aK", "note", {"text": "2"})))
    await post(client, message(call("call_aK", "note", {"text": "1"})), headers={"Toolcrib-Session": "other"})
    await post(client, message(call("call_aK", "note", {"text": "1"})), "mistral")

    assert toys.notes == ["1", "2", "1", "1"]


async def test_a_message_with_one_old_call_runs_only_the_new_one(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    old, new = call("call_aK", "note", {"text": "1"}), call("call_bK", "note", {"text": "2"})
    first = (await post(client, message(old))).json()

    both = (await post(client, message(old, new))).json()

    assert toys.notes == ["1", "2"]
    assert both["calls"][0] == first["calls"][0]
    assert (await client.get(f"/v1/run/{both['id']}")).json() == both


@pytest.mark.parametrize("id", ["call_0", "functions.note:0", "note_1", "3", "call-2", None])
async def test_ids_that_only_count_the_calls_of_a_turn_make_no_repeat(
    client: httpx.AsyncClient, toys: Toys, id: str | None
) -> None:
    body = message(call(id, "note", {"text": "1"}))

    first, second = (await post(client, body)).json(), (await post(client, body)).json()

    assert toys.notes == ["1", "1"]
    assert first["id"] != second["id"]


async def test_with_an_idempotency_key_they_do(client: httpx.AsyncClient, toys: Toys) -> None:
    body, headers = message(call("call_0", "note", {"text": "1"})), {"Idempotency-Key": "turn-7"}

    first, second = await post(client, body, headers=headers), await post(client, body, headers=headers)
    other = await post(client, message(call("call_0", "note", {"text": "2"})), headers=headers)

    assert first.content == second.content
    assert (other.status_code, other.json()["code"]) == (409, "IdempotencyConflict")
    assert toys.notes == ["1"]


async def test_what_takes_longer_than_the_wait_is_named_and_comes_later(client: httpx.AsyncClient, toys: Toys) -> None:
    body = message(call("call_aK", "echo", {"text": "hi"}), call("call_bK", "wait_free", {"name": "w"}))

    soon = await post(client, body, params={"wait": 0.05})
    toys.go["w"].set()
    by_id = await client.get(soon.headers["Location"], params={"wait": HANG})
    again = await post(client, body)

    assert soon.status_code == 202
    assert soon.json()["append"] == []
    assert soon.json()["pending"] == [soon.json()["calls"][1]["id"]]
    assert by_id.json()["append"] == [tool("call_aK", "hi"), tool("call_bK", "w")]
    assert again.json() == by_id.json()


async def test_calls_run_together_where_the_gate_lets_them(client: httpx.AsyncClient, toys: Toys) -> None:
    names = ["x", "y"]
    body = message(*(call(f"call_{name}K", "wait_free", {"name": name}) for name in names))
    asked = asyncio.create_task(post(client, body))
    async with asyncio.timeout(HANG):
        for name in names:
            await toys.started[name].wait()  # both, before either may go on
    for name in names:
        toys.go[name].set()

    assert [one["content"] for one in (await asked).json()["append"]] == names


async def test_a_persons_no_blocks_the_run(client: httpx.AsyncClient, service: RunningService) -> None:
    await client.post("/v1/rules", json={"permission": "edit", "pattern": "*", "action": "ask", "scope": "global"})
    asked = asyncio.create_task(post(client, message(call("call_aK", "act", {"paths": ["a.txt"]}))))
    await until(lambda: service.rows("SELECT * FROM asks"))
    [ask] = (await client.get("/v1/asks", params={"status": "open"})).json()["data"]
    await client.post(f"/v1/asks/{ask['id']}/answer", json={"decision": "deny", "message": "not today"})

    run = (await asked).json()

    assert run["blocked"] is True
    assert run["append"] == [tool("call_aK", f"[ERROR:PermissionDenied] {run['calls'][0]['error']['message']}")]
    assert "not today" in run["append"][0]["content"]


async def test_nobody_is_asked_when_that_is_said(client: httpx.AsyncClient) -> None:
    await client.post("/v1/rules", json={"permission": "edit", "pattern": "*", "action": "ask", "scope": "global"})

    run = (await post(client, message(call("call_aK", "act", {"paths": ["a.txt"]})), params={"on_ask": "deny"})).json()

    assert run["calls"][0]["error"]["code"] == "PermissionDenied"
    assert run["blocked"] is False


async def test_the_stream_has_the_events_of_all_calls_and_then_the_answer(client: httpx.AsyncClient) -> None:
    body = message(call("call_aK", "echo", {"text": "1"}), call("call_bK", "nowhere"))
    frames = list[tuple[str, Body]]()

    async with client.stream(
        "POST", "/v1/run/openai-chat", json=body, headers={"Accept": "text/event-stream"}
    ) as answer:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                frames.append((kind, json.loads(line.removeprefix("data: "))))

    run = frames[-1][1]
    assert frames[-1][0] == "append"
    assert [one["tool_call_id"] for one in run["append"]] == ["call_aK", "call_bK"]
    by_call = {one["id"]: [kind for kind, data in frames if data.get("call") == one["id"]] for one in run["calls"]}
    assert list(by_call.values()) == [
        ["call.pending", "call.running", "call.completed"],
        ["call.pending", "call.error"],
    ]
    assert (await client.get(f"/v1/run/{run['id']}")).json() == run


async def test_who_leaves_takes_the_calls_along_if_that_was_said(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    body = message(call("call_aK", "wait_free", {"name": "w"}))
    asked = asyncio.create_task(post(client, body, params={"cancel_on_disconnect": True}))
    await toys.started["w"].wait()
    asked.cancel()

    await until(lambda: service.rows("SELECT * FROM calls WHERE status = 'error'"))

    assert json.loads(service.rows("SELECT * FROM calls")[0]["error"])["code"] == "Canceled"


async def test_a_wrapper_that_leaked_is_answered_once(client: httpx.AsyncClient) -> None:
    uses = [{"recipient_name": "functions.echo", "parameters": {"text": text}} for text in ("one", "two")]
    body = message(call("call_wK", "multi_tool_use.parallel", {"tool_uses": uses}))

    run = (await post(client, body)).json()

    assert [one["tool"] for one in run["calls"]] == ["echo", "echo"]
    [only] = run["append"]
    assert only["tool_call_id"] == "call_wK"
    assert only["content"].index("one") < only["content"].index("two")


@pytest.mark.parametrize(
    ("dialect", "body", "status", "code"),
    [
        ("klingon", {}, 404, "NotFound"),
        ("auto", {"hello": 1}, 422, "UnknownDialect"),
        ("openai-chat", 7, 422, "UnreadableMessage"),
        ("openai-chat", message(*[call(f"call_K{n}x", "echo") for n in range(129)]), 422, "TooManyCalls"),
    ],
)
async def test_what_is_no_message_is_the_frontends_mistake(
    client: httpx.AsyncClient, service: RunningService, dialect: str, body: Any, status: int, code: str
) -> None:
    for route in ("run", "parse"):
        answer = await client.post(f"/v1/{route}/{dialect}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert service.rows("SELECT * FROM calls") == []


async def test_parsing_runs_nothing(client: httpx.AsyncClient, service: RunningService, toys: Toys) -> None:
    body = message(call("call_aK", "note", {"text": "1"})) | {"content": "Let me note that."}

    answer = await client.post("/v1/parse/auto", json=body)

    assert answer.json() == {
        "dialect": "openai-chat",
        "calls": [{"id": "call_aK", "type": "function", "name": "note", "arguments": {"text": "1"}}],
        "remaining_text": "Let me note that.",
    }
    assert toys.notes == []
    assert service.rows("SELECT * FROM runs") == []


async def test_text_is_read_for_tools_that_are_there(client: httpx.AsyncClient, toys: Toys) -> None:
    text = 'Noting.\n<tool_call>{"name": "note", "arguments": {"text": "1"}}</tool_call>\n'

    run = (await post(client, {"text": text}, "text")).json()
    parsed = (await client.post("/v1/parse/text", json={"text": text.replace("note", "naught")})).json()

    assert toys.notes == ["1"]
    assert [one["role"] for one in run["append"]] == ["user"]
    assert parsed["calls"] == []


async def test_a_run_is_seen_by_its_owner_only(client: httpx.AsyncClient, service: RunningService) -> None:
    run = (await post(client, message(call("call_aK", "echo", {"text": "1"})))).json()
    made = await client.post("/v1/keys", json={"principal": "eve", "scopes": ["calls:run", "calls:read"]})
    async with service.client_of(made.json()["token"]) as eve:
        answer = await eve.get(f"/v1/run/{run['id']}")
        own = await post(eve, message(call("call_aK", "echo", {"text": "1"})))

    assert answer.status_code == 404
    assert own.json()["id"] != run["id"]
    assert own.json()["calls"][0]["id"] != run["calls"][0]["id"]


async def test_a_run_whose_calls_were_removed_is_gone(client: httpx.AsyncClient, service: RunningService) -> None:
    run = (await post(client, message(call("call_aK", "echo", {"text": "1"})))).json()
    service.change("DELETE FROM calls WHERE id = ?", run["calls"][0]["id"])

    answer = await client.get(f"/v1/run/{run['id']}")

    assert (answer.status_code, answer.json()["code"]) == (410, "RunGone")


async def test_a_secret_in_the_arguments_is_kept_nowhere(client: httpx.AsyncClient, service: RunningService) -> None:
    await client.put("/v1/secrets/TOKEN", json={"value": "s3cr3t-value-of-mine"})
    body = message(
        call("call_aK", "echo", {"text": "s3cr3t-value-of-mine"}), call("call_bK", "echo", '{"s3cr3t-value-of-mine')
    )

    run = await post(client, body)

    assert "s3cr3t-value-of-mine" not in run.text
    assert "s3cr3t-value-of-mine" not in json.dumps(service.rows("SELECT * FROM runs"))


async def test_the_key_of_the_service_is_needed(service: RunningService) -> None:
    async with service.client_of(None) as nobody:
        assert (await nobody.get("/v1/dialects")).status_code == 401
    assert KEY


async def test_all_dialects_are_listed(client: httpx.AsyncClient) -> None:
    listed = {one["name"]: one for one in (await client.get("/v1/dialects")).json()["data"]}

    assert {"openai-chat", "openai-responses", "anthropic", "gemini", "bedrock", "mistral", "ollama"} <= listed.keys()
    assert {"cohere", "text", "text-xml", "mcp", "openrouter", "moonshot", "minimax", "zai", "xai"} <= listed.keys()
    assert {"copilot", "github-models", "deepseek", "vllm", "groq", "stackspot"} <= listed.keys()
    assert listed["groq"]["alias_of"] == "openai-chat"
    assert listed["stackspot"]["native_tools"] is False
    assert listed["openai-responses"]["strict"] is True


async def test_only_responses_that_can_be_gone_on_from_are_named(client: httpx.AsyncClient) -> None:
    chat = await post(client, {"id": "chatcmpl-1", "choices": [{"message": message(call("call_aK", "echo"))}]})
    item = {"type": "function_call", "call_id": "call_bK", "name": "echo", "arguments": "{}"}
    bare = await post(client, [item], "openai-responses")

    assert "previous_response_id" not in chat.json()
    assert "previous_response_id" not in bare.json()


async def test_a_shell_call_with_more_commands_than_a_message_may_have_is_refused(
    client: httpx.AsyncClient, service: RunningService
) -> None:
    action = {"commands": ["true"] * 129}
    item = {"type": "shell_call", "call_id": "call_aK", "action": action}

    answer = await post(client, [item], "openai-responses")

    assert (answer.status_code, answer.json()["code"]) == (422, "TooManyCalls")
    assert service.rows("SELECT * FROM calls") == []


async def test_a_name_that_was_changed_for_the_wire_finds_its_tool(client: httpx.AsyncClient) -> None:
    body = {"kind": "client", "name": "get-weather", "description": "Tell it."}
    await client.post("/v1/tools", json=body)
    [offered] = (await client.get("/v1/tools", params={"format": "cohere", "names": "get-weather"})).json()
    name = offered["function"]["name"]

    run = await post(client, message(call(None, name, {}), call(None, name, "{")), "cohere", params={"wait": 0})

    assert name != "get-weather"
    assert [one["tool"] for one in run.json()["calls"]] == ["get-weather", "get-weather"]
    assert run.json()["calls"][1]["error"]["code"] == "InvalidArgs"


async def test_old_runs_go_with_their_calls(client: httpx.AsyncClient, service: RunningService) -> None:
    first = (await post(client, message(call("call_aK", "echo", {"text": "1"})))).json()
    second = (await post(client, message(call("call_bK", "echo", {"text": "2"})))).json()

    await service.services.writer.submit(lambda batch: retention.remove(batch, [first["calls"][0]["id"]]))

    assert (await client.get(f"/v1/run/{first['id']}")).status_code == 404
    assert (await client.get(f"/v1/run/{second['id']}")).json() == second


async def test_an_option_that_does_not_fit_is_said(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for query in ["wait=-1", "wait=nan", "replay=half", "timeout=0", "on_ask=maybe", "cancel_on_disconnect=x"]:
        with subtests.test(query=query):
            answer = await client.post(f"/v1/run/openai-chat?{query}", json=message())

            assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")
            assert query.partition("=")[0] in answer.json()["detail"]


async def test_an_image_is_sent_along_where_it_can_be_and_told_of_elsewhere(client: httpx.AsyncClient) -> None:
    picture = (await client.get("/v1/dialects")).json()["data"]
    can = {one["name"] for one in picture if one["images"]}
    body = {"kind": "client", "name": "shoot", "description": "Take a picture."}
    await client.post("/v1/tools", json=body)
    run = (await post(client, message(call("call_aK", "shoot")), params={"wait": 0})).json()
    url = "data:image/png;base64,iVBORw0KGgo="
    result = {"output": "shot", "attachments": [{"mime": "image/png", "url": url, "filename": "a.png"}]}
    await client.post(f"/v1/calls/{run['pending'][0]}/result", json=result)
    other = (await post(client, message(call("call_bK", "shoot")), "deepseek", params={"wait": 0})).json()
    await client.post(f"/v1/calls/{other['pending'][0]}/result", json=result)

    seen = (await client.get(f"/v1/run/{run['id']}")).json()["append"]
    told = (await client.get(f"/v1/run/{other['id']}")).json()["append"]

    assert ("openai-chat" in can, "deepseek" in can) == (True, False)
    assert [one["role"] for one in seen] == ["tool", "user"]
    assert seen[1]["content"][1]["image_url"]["url"] == url
    assert [one["role"] for one in told] == ["tool"]
    where = f"/v1/calls/{other['calls'][0]['id']}/attachments/0"
    assert f"{client.base_url}".rstrip("/") + where in told[0]["content"]
    assert (await client.get(where)).status_code == 200


async def test_a_method_that_is_not_allowed_is_told_those_that_are(client: httpx.AsyncClient) -> None:
    answer = await client.options("/v1/run/openai-chat")

    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")
