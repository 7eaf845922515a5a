"""Mistral, checked with the provider's own package."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from mistralai.client import Mistral
from mistralai.client.models import ToolMessageTypedDict, ToolTypedDict

from app.core.runs import Failure, Media, ModelCall, Reply, Text
from app.providers.dialects import Choice, ExportOptions
from app.providers.mistral import dialect
from tests.providers.chat_cases import (
    ANY_JSON,
    FREE,
    OFFER,
    QUIET,
    Listener,
    cases,
    made_of,
    read,
    require_readable_or_said,
    spoiled,
)
from tests.providers.neutral import PIXEL
from tests.providers.typed_dicts import require

OPTIONS = ExportOptions(quirks=dialect.quirks)
CALLS = [
    {"id": "a1b2c3d4e", "function": {"name": "get_weather", "arguments": '{"location":"Oslo"}'}},
    {"id": "f6g7h8i9j", "function": {"name": "list_sessions", "arguments": {}}},
]
READ = (
    ModelCall(id="a1b2c3d4e", name="get_weather", arguments={"location": "Oslo"}),
    ModelCall(id="f6g7h8i9j", name="list_sessions", arguments={}),
)
MESSAGE = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
RESPONSE: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "chat.completion",
    "model": "m",
    "created": 1,
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": MESSAGE}],
}
PNG = Media(mime="image/png", data=PIXEL)


def client(listener: Listener) -> Mistral:
    return Mistral(api_key="key", client=listener.new_client())


def answered(*parts: Any, id: str | None = "a1b2c3d4e", error: Failure | None = None) -> Reply:
    return Reply(call=ModelCall(id=id, name="get_weather"), parts=parts, error=error)


def chunk(*calls: Any, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    inner = delta | ({"tool_calls": list(calls)} if calls else {})
    return {"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "delta": inner, "finish_reason": finish}]}


@pytest.mark.parametrize("case", cases("mistral"), ids=lambda case: case["id"])
def test_the_recorded_cases_come_out_as_recorded(case: dict[str, Any]) -> None:
    assert made_of(dialect, case) == case["expected"]


@pytest.mark.parametrize("strict", ["auto", "on"])
def test_what_is_written_goes_over_the_wire_as_it_is(strict: Any) -> None:
    listener = Listener(RESPONSE)
    tools = dialect.export_tools([OFFER, QUIET, FREE], replace(OPTIONS, strict=strict, model="gpt-5")).tools
    request = dialect.fill_request(tools, Choice(mode="required", parallel=False), dialect.quirks, [])
    results = dialect.write_results([answered(Text("shot"), PNG), answered(id=None)])
    messages: list[Any] = [MESSAGE, *results]

    client(listener).chat.complete(model="m", messages=messages, **request)

    assert listener.bodies[0]["tools"] == tools
    assert listener.bodies[0]["messages"][1:] == results
    assert listener.bodies[0]["tool_choice"] == "any"
    assert listener.bodies[0]["parallel_tool_calls"] is False
    assert [tool["function"].get("strict") for tool in tools] == [True if strict == "on" else None] * 3
    require(list[ToolTypedDict], tools)
    require(list[ToolMessageTypedDict], results)


def test_a_response_that_the_package_has_parsed_is_read() -> None:
    parsed = client(Listener(RESPONSE)).chat.complete(model="m", messages=[])

    reading = read(dialect, parsed.model_dump(mode="json"), OFFER, QUIET)

    assert reading.calls == READ
    assert (reading.text, reading.message_id, reading.is_response) == ("I look.", "cmpl-1", True)


def test_a_stream_that_the_package_has_parsed_is_read() -> None:
    chunks = [chunk(role="assistant", content="I look."), chunk(*CALLS, finish="tool_calls")]
    events = client(Listener(chunks, is_stream=True)).chat.stream(model="m", messages=[])

    reading = read(dialect, [event.model_dump(mode="json") for event in events])

    assert reading.calls == READ
    assert (reading.text, reading.message_id) == ("I look.", "cmpl-1")


@pytest.mark.parametrize("message", [RESPONSE, MESSAGE, CALLS])
def test_a_response_a_message_and_the_calls_alone_say_the_same(message: Any) -> None:
    assert read(dialect, message).calls == READ


@given(ANY_JSON | spoiled(RESPONSE, CALLS, [chunk(content="I look."), chunk(*CALLS, finish="tool_calls")]))
def test_any_json_is_read_or_refused_in_a_sentence(message: Any) -> None:
    require_readable_or_said(dialect, message)


def test_the_word_null_is_no_id_and_none_is_sent_back() -> None:
    calls = read(dialect, [CALLS[0] | {"id": "null"}]).calls

    assert calls[0].id is None
    assert dialect.write_results([Reply(call=calls[0])]) == [
        {"role": "tool", "name": "get_weather", "content": "(no output)"}
    ]


def test_what_the_provider_ran_itself_is_not_run_again() -> None:
    messages = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Done."}]},
        {"role": "tool", "content": "found", "tool_call_id": "x"},
        MESSAGE | {"content": ""},
    ]

    reading = read(dialect, {"choices": [{"messages": messages, "finish_reason": "tool_calls"}]})

    assert reading.calls == READ
    assert reading.text == "Done."


def test_a_response_that_was_cut_off_leaves_its_last_call_unrun() -> None:
    response = deepcopy(RESPONSE)
    response["choices"][0]["finish_reason"] = "model_length"
    response["choices"][0]["message"]["tool_calls"] = [
        CALLS[1],
        {"id": "x", "function": {"name": "y", "arguments": ""}},
    ]

    calls = read(dialect, response).calls

    assert calls[0] == READ[1]
    assert "ended before" in str(calls[1].arguments_error)


def test_schemas_go_without_references_and_names() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "string"}},
    }

    tools = dialect.export_tools([replace(OFFER, schema=schema)], OPTIONS).tools

    assert tools[0]["function"]["parameters"] == {"type": "object", "properties": {"a": {"type": "string"}}}


def test_one_tool_is_chosen_by_offering_no_other() -> None:
    tools = dialect.export_tools([OFFER, QUIET], OPTIONS).tools
    warnings: list[str] = []

    request = dialect.fill_request(tools, Choice(mode="tool", name="list_sessions"), dialect.quirks, warnings)

    assert request == {"tools": [tools[1]], "tool_choice": "any"}
    assert warnings == []


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        (answered(), "(no output)"),
        (answered(error=Failure("ENOENT", "no such file: a")), "[ERROR:ENOENT] no such file: a"),
        (answered(PNG), [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]),
        (
            answered(Media(mime="image/png", url="https://x/a.png"), error=Failure("Timeout", "slow")),
            [
                {"type": "text", "text": "[ERROR:Timeout] slow"},
                {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
            ],
        ),
        (
            answered(Media(mime="application/pdf", url="https://x/a.pdf", name="a.pdf")),
            [{"type": "document_url", "document_url": "https://x/a.pdf", "document_name": "a.pdf"}],
        ),
        (answered(Text("see"), Media(mime="application/pdf", data=PIXEL)), "see\n[file (application/pdf)]"),
        (answered(Media(mime="image/png", url="data:,x")), "[image (image/png)]"),
    ],
)
def test_pictures_stand_in_the_message_of_the_tool(reply: Reply, content: Any) -> None:
    messages = dialect.write_results([reply])

    assert messages == [{"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "get_weather", "content": content}]
    require(list[ToolMessageTypedDict], messages)
