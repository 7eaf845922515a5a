"""The real client of OpenAI sends what we write and gives what we read, on a transport without a network."""

import json
from collections.abc import Callable
from typing import Any, cast

import httpx2
import pytest
from openai import OpenAI

from app.core.runs import CommandEnd, Failure, Media, ModelCall, Reply, Text, ToolOffer
from app.providers.dialects import Choice, Wire
from app.providers.responses.dialect import dialect
from tests.providers.neutral import PIXEL
from tests.providers.responses import (
    ACTION,
    CHECK,
    CLICK,
    EXEC,
    PATCH,
    PROGRAM,
    exported,
    line,
    nobody,
    note,
    patching,
    sessions,
    weather,
    words,
)

OUTPUT: list[Wire] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": '{"location":"Oslo"}',
        "namespace": "box",
        "caller": PROGRAM,
        "status": "completed",
    },
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "note", "input": "hi"},
    {"type": "apply_patch_call", "id": "ap_1", "call_id": "call_3", "status": "completed", "operation": PATCH},
    {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "call_4",
        "status": "completed",
        "action": ACTION,
        "environment": {"type": "local"},
    },
    {"type": "local_shell_call", "id": "ls_1", "call_id": "call_5", "status": "completed", "action": EXEC},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_6",
        "status": "completed",
        "action": CLICK,
        "pending_safety_checks": [CHECK],
    },
    {
        "type": "tool_search_call",
        "id": "ts_1",
        "call_id": "call_7",
        "status": "completed",
        "execution": "client",
        "arguments": {"query": "mail"},
    },
    {
        "type": "function_call",
        "id": "fc_2",
        "call_id": "call_8",
        "name": "get_weather",
        "arguments": '{"loc',
        "status": "incomplete",
    },
]
RESPONSE: Wire = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "model": "gpt-5.2",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class Wired:
    """A client, and the body of its last request."""

    def __init__(self, answer: Callable[[], httpx2.Response]) -> None:
        self.body: Wire = {}
        self._answer = answer
        transport = httpx2.MockTransport(self._handle)
        self.client = OpenAI(api_key="none", max_retries=0, http_client=httpx2.Client(transport=transport))

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.body = json.loads(request.content)
        return self._answer()


@pytest.fixture
def wired() -> Wired:
    return Wired(lambda: httpx2.Response(200, json=RESPONSE))


def test_tools_and_choices_go_over_the_wire_as_they_are(wired: Wired) -> None:
    made = exported(
        *(weather, sessions, note, patching, words, line),
        strict="auto",
        model="gpt-5.4",
        is_native=True,
        defers=lambda name: name == "get_weather",
        namespace=("box", "Workspace tools"),
    )
    warnings: list[str] = []
    choice = Choice(mode="required", allowed=("get_weather", "note", "shell"), parallel=False)
    request = dialect.fill_request(made.tools, choice, dialect.quirks, warnings)

    wired.client.responses.create(model="gpt-5.4", input="hi", **cast(Any, request))

    assert wired.body == {"model": "gpt-5.4", "input": "hi", **request}
    assert request["tool_choice"]["tools"] == [
        {"type": "function", "name": "get_weather"},
        {"type": "custom", "name": "note"},
        {"type": "shell"},
    ]
    assert warnings == []


def test_answers_go_over_the_wire_as_they_are(wired: Wired) -> None:
    calls = dialect.read_calls(RESPONSE, nobody).calls
    image = Media(mime="image/png", data=PIXEL)
    replies = [
        Reply(call=calls[0], parts=(Text("12 C"), image)),
        Reply(call=calls[1], parts=(image, Media(mime="application/pdf", data="JVBERi0=", name="a.pdf"))),
        Reply(call=calls[2], error=Failure("PatchMismatch", "does not fit")),
        Reply(call=calls[3], commands=(CommandEnd(stdout="a\n", exit_code=0), CommandEnd())),
        Reply(call=calls[4], commands=(CommandEnd(stderr="no", exit_code=2),)),
        Reply(call=calls[5], error=Failure("UnknownTool", "There is no computer.")),
        Reply(call=calls[6], tools=(weather,)),
        Reply(call=calls[7], error=Failure("InvalidArgs", calls[7].arguments_error or "")),
    ]
    items = dialect.write_results(replies)

    wired.client.responses.create(model="gpt-5.2", input=cast(Any, [*OUTPUT, *items]))

    assert wired.body["input"] == [*OUTPUT, *items]
    assert [item.get("call_id", item.get("id")) for item in items] == [f"call_{n}" for n in range(1, 9)] + [None]
    assert items[0]["caller"] == PROGRAM


def test_a_response_that_the_client_parsed_is_read_like_the_one_that_was_sent(wired: Wired) -> None:
    parsed = wired.client.responses.create(model="gpt-5.2", input="hi").model_dump(mode="json")

    reading, sent = dialect.read_calls(parsed, nobody), dialect.read_calls(RESPONSE, nobody)

    assert [(call.id, call.type, call.name) for call in reading.calls] == [
        ("call_1", "function", "get_weather"),
        ("call_2", "custom", "note"),
        ("call_3", "apply_patch", "apply_patch"),
        ("call_4", "shell", "shell"),
        ("call_5", "local_shell", "local_shell"),
        ("call_6", "computer", "computer"),
        ("call_7", "tool_search", "tool_search"),
        ("call_8", "function", "get_weather"),
    ]
    assert [_bare(call) for call in reading.calls] == [_bare(call) for call in sent.calls]
    assert (reading.text, reading.message_id, reading.is_response) == ("Let me see.", "resp_1", True)
    assert reading.calls[7].raw_arguments == '{"loc'


def test_the_events_that_the_client_parsed_say_the_same() -> None:
    events: list[Wire] = [{"type": "response.created", "response": RESPONSE | {"output": [], "status": "in_progress"}}]
    for place, item in enumerate(OUTPUT):
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
        if item["type"] == "function_call":
            piece = {"item_id": item["id"], "output_index": place, "delta": item["arguments"]}
            events.append({"type": "response.function_call_arguments.delta", **piece})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    events.append({"type": "response.incomplete", "response": RESPONSE})
    numbered = [event | {"sequence_number": number} for number, event in enumerate(events)]
    lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered)
    headers = {"content-type": "text/event-stream"}
    wired = Wired(lambda: httpx2.Response(200, headers=headers, content=lines.encode()))

    with wired.client.responses.create(model="gpt-5.2", input="hi", stream=True) as stream:
        parsed = [event.model_dump(mode="json") for event in stream]

    sent = dialect.read_calls(RESPONSE, nobody)
    for told in (parsed, parsed[:-1]):
        reading = dialect.read_calls(told, nobody)
        assert [_bare(call) for call in reading.calls] == [_bare(call) for call in sent.calls]
        assert (reading.text, reading.message_id) == ("Let me see.", "resp_1")


def test_a_tool_of_ours_that_is_named_like_theirs_is_told_apart(wired: Wired) -> None:
    mine = ToolOffer(name="local_shell", description="Mine.", schema={"type": "object", "properties": {}})
    request = dialect.fill_request(exported(mine).tools, Choice(mode="tool", name="local_shell"), dialect.quirks, [])

    wired.client.responses.create(model="gpt-5.2", input="hi", **cast(Any, request))

    assert wired.body["tool_choice"] == {"type": "function", "name": "local_shell"}


def _bare(call: ModelCall) -> Any:
    """The call without what the client wrote as null because nothing was said of it."""
    return _without_nulls(call.view())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
