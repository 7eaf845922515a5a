"""Ollama's own chat, checked with its own package."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from ollama import Client, Message, Tool

from app.core.runs import Failure, Media, ModelCall, Reply, Text, Unreadable
from app.providers.dialects import Choice, ExportOptions
from app.providers.ollama import dialect
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

OPTIONS = ExportOptions(quirks=dialect.quirks)
CALLS = [
    {"function": {"name": "get_weather", "arguments": {"location": "Oslo"}}},
    {"function": {"name": "list_sessions", "arguments": {}}},
]
READ = (
    ModelCall(id=None, name="get_weather", arguments={"location": "Oslo"}),
    ModelCall(id=None, name="list_sessions", arguments={}),
)
MESSAGE = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
RESPONSE = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": MESSAGE, "done": True, "done_reason": "stop"}
STREAM = [
    {"model": "m", "message": {"role": "assistant", "content": "I "}, "done": False},
    {"model": "m", "message": {"role": "assistant", "content": "look.", "tool_calls": CALLS[:1]}, "done": False},
    {"model": "m", "message": {"role": "assistant", "content": "", "tool_calls": CALLS[1:]}, "done": False},
    {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"},
]


def answered(*parts: Any, error: Failure | None = None) -> Reply:
    return Reply(call=READ[0], parts=parts, error=error)


def lines(event: Any) -> str:
    return json.dumps(event) + "\n"


@pytest.mark.parametrize("case", cases("ollama"), ids=lambda case: case["id"])
def test_the_recorded_cases_come_out_as_recorded(case: dict[str, Any]) -> None:
    assert made_of(dialect, case) == case["expected"]


def test_what_is_written_goes_over_the_wire_as_it_is() -> None:
    listener = Listener(RESPONSE)
    tools = dialect.export_tools([OFFER, QUIET], OPTIONS).tools
    request = dialect.fill_request(tools, Choice(), dialect.quirks, [])
    results = dialect.write_results([answered(Text("shot"), Media(mime="image/png", data=PIXEL)), answered()])

    Client(transport=listener.transport()).chat(model="m", messages=[MESSAGE, *results], **request)

    assert listener.bodies[0]["tools"] == tools
    assert listener.bodies[0]["messages"][1:] == results
    assert [Tool.model_validate(tool).model_dump(exclude_none=True) for tool in tools] == tools


def test_a_response_that_the_package_has_parsed_is_read() -> None:
    parsed = Client(transport=Listener(RESPONSE).transport()).chat(model="m", messages=[])

    reading = read(dialect, parsed.model_dump(mode="json"))

    assert reading.calls == READ
    assert (reading.text, reading.message_id, reading.is_response) == ("I look.", None, True)


def test_a_stream_that_the_package_has_parsed_is_read() -> None:
    listener = Listener(STREAM, is_stream=True, lines=lines)
    parts = Client(transport=listener.transport()).chat(model="m", messages=[], stream=True)

    reading = read(dialect, [part.model_dump(mode="json") for part in parts])

    assert reading.calls == READ
    assert reading.text == "I look."


@pytest.mark.parametrize("message", [RESPONSE, MESSAGE, CALLS, STREAM, [*STREAM, {"error": "out of memory"}]])
def test_a_response_a_message_the_calls_alone_and_a_stream_say_the_same(message: Any) -> None:
    assert read(dialect, message).calls == READ


@given(ANY_JSON | spoiled(RESPONSE, CALLS, STREAM))
def test_any_json_is_read_or_refused_in_a_sentence(message: Any) -> None:
    require_readable_or_said(dialect, message)


@pytest.mark.parametrize("message", [{"message": 1}, [*STREAM, 1], {"message": {"tool_calls": 1}}])
def test_what_is_no_message_of_a_model_is_refused(message: Any) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        read(dialect, message)


def test_a_response_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]

    with pytest.raises(Unreadable, match="too deep"):
        read(dialect, {"message": {"tool_calls": [{"function": {"name": "x", "arguments": deep}}]}})


def test_free_text_is_the_one_argument_of_a_function_for_every_model() -> None:
    tool = dialect.export_tools([FREE], replace(OPTIONS, model="gpt-5")).tools[0]

    assert list(tool["function"]["parameters"]["properties"]) == ["input"]


def test_strict_is_not_known_and_said_to_be_so() -> None:
    made = dialect.export_tools([OFFER], replace(OPTIONS, strict="on"))

    assert "strict" not in made.tools[0]["function"]
    assert made.warnings == ["This provider has no strict mode; strict was left out."]


@pytest.mark.parametrize(
    ("choice", "names", "warned"),
    [
        (Choice(mode="auto", parallel=True), ["get_weather", "list_sessions"], 0),
        (Choice(mode="required"), ["get_weather", "list_sessions"], 1),
        (Choice(mode="tool", name="get_weather"), ["get_weather"], 1),
        (Choice(mode="none"), [], 1),
        (Choice(allowed=("list_sessions",)), ["list_sessions"], 0),
        (Choice(parallel=False), ["get_weather", "list_sessions"], 1),
    ],
)
def test_there_is_no_word_for_a_choice_here(choice: Choice, names: list[str], warned: int) -> None:
    warnings: list[str] = []

    request = dialect.fill_request(
        dialect.export_tools([OFFER, QUIET], OPTIONS).tools, choice, dialect.quirks, warnings
    )

    assert request.keys() <= {"tools"}
    assert [tool["function"]["name"] for tool in request.get("tools", [])] == names
    assert len(warnings) == warned


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answered(), {"content": "(no output)"}),
        (answered(Text("12 C")), {"content": "12 C"}),
        (answered(error=Failure("ENOENT", "no such file: a")), {"content": "[ERROR:ENOENT] no such file: a"}),
        (answered(Media(mime="image/png", data=PIXEL)), {"content": "[images attached: 1]", "images": [PIXEL]}),
        (
            answered(Text("a"), Media(mime="image/png", data=PIXEL), Media(mime="application/pdf", data=PIXEL)),
            {"content": "a\n[file (application/pdf)]", "images": [PIXEL]},
        ),
        (
            answered(Media(mime="image/png", url="https://x/a.png")),
            {"content": "[image (image/png), available at https://x/a.png]"},
        ),
    ],
)
def test_a_result_goes_by_the_name_of_its_tool(reply: Reply, expected: dict[str, Any]) -> None:
    messages = dialect.write_results([reply])

    assert messages == [{"role": "tool", "tool_name": "get_weather"} | expected]
    assert messages[0].keys() <= Message.model_fields.keys()


def test_calls_are_numbered_by_who_runs_them() -> None:
    assert dialect.numbers_calls
