"""Cohere's Chat v2, checked with the provider's own package."""

import base64
from dataclasses import replace
from typing import Any

import pytest
from cohere import ClientV2, ToolChatMessageV2, ToolV2
from hypothesis import given

from app.core.runs import Failure, Json, Media, ModelCall, Reply, SearchResult, Text, Unreadable
from app.providers.cohere import dialect
from app.providers.dialects import Choice, ExportOptions
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
    {
        "id": "get_weather_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"location":"Oslo"}'},
    },
    {"id": "list_sessions_2", "type": "function", "function": {"name": "list_sessions", "arguments": "{}"}},
]
READ = (
    ModelCall(id="get_weather_1", name="get_weather", arguments={"location": "Oslo"}),
    ModelCall(id="list_sessions_2", name="list_sessions", arguments={}),
)
MESSAGE = {"role": "assistant", "tool_plan": "I look.", "tool_calls": CALLS}
RESPONSE: dict[str, Any] = {"id": "r-1", "finish_reason": "TOOL_CALL", "message": MESSAGE}


def event(type: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": type} | ({} if index is None else {"index": index})
    return made | ({"delta": {"message": message}} if message else {})


def start(index: int, call: dict[str, Any]) -> dict[str, Any]:
    return event("tool-call-start", index, tool_calls=call | {"function": call["function"] | {"arguments": ""}})


def more(index: int, arguments: str) -> dict[str, Any]:
    return event("tool-call-delta", index, tool_calls={"function": {"arguments": arguments}})


OPENING = [
    {"type": "message-start", "id": "r-1", "delta": {"message": {"role": "assistant"}}},
    event("tool-plan-delta", tool_plan="I "),
    event("tool-plan-delta", tool_plan="look."),
    start(0, CALLS[0]),
    more(0, '{"location":'),
    more(0, '"Oslo"}'),
    event("tool-call-end", 0),
]
STREAM = [
    *OPENING,
    start(1, CALLS[1]),
    more(1, "{}"),
    event("tool-call-end", 1),
    {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}},
]


def client(listener: Listener) -> ClientV2:
    return ClientV2(api_key="key", httpx_client=listener.client())


def answered(*parts: Any, id: str | None = "get_weather_1", error: Failure | None = None) -> Reply:
    return Reply(call=ModelCall(id=id, name="get_weather"), parts=parts, error=error)


def require_known(model: Any) -> None:
    """The package's models keep what they do not know; here there must be nothing of it."""
    assert not model.model_extra
    for name in type(model).model_fields:
        value = getattr(model, name)
        for one in value if isinstance(value, list) else [value]:
            if hasattr(one, "model_extra"):
                require_known(one)


@pytest.mark.parametrize("case", cases("cohere"), ids=lambda case: case["id"])
def test_the_recorded_cases_come_out_as_recorded(case: dict[str, Any]) -> None:
    assert made_of(dialect, case) == case["expected"]


def test_what_is_written_goes_over_the_wire_as_it_is() -> None:
    listener = Listener(RESPONSE)
    tools = dialect.export_tools([OFFER, QUIET, FREE], OPTIONS).tools
    request = dialect.fill_request(tools, Choice(mode="required"), dialect.quirks, [])
    found = SearchResult(source="https://x", title="X", text="body")
    results = dialect.write_results([answered(Text("a"), found), answered(Text("b"), id="list_sessions_2")])
    messages: list[Any] = [MESSAGE, *results]

    client(listener).chat(model="m", messages=messages, **request)

    assert listener.bodies[0]["tools"] == tools
    assert listener.bodies[0]["messages"][1:] == results
    assert listener.bodies[0]["tool_choice"] == "REQUIRED"
    for tool in tools:
        require_known(ToolV2.model_validate(tool))


def test_a_response_that_the_package_has_parsed_is_read() -> None:
    parsed = client(Listener(RESPONSE)).chat(model="m", messages=[])

    reading = read(dialect, parsed.model_dump(mode="json"))

    assert reading.calls == READ
    assert (reading.text, reading.message_id, reading.is_response) == ("I look.", "r-1", True)


def test_a_stream_that_the_package_has_parsed_is_read() -> None:
    events = client(Listener(STREAM, is_stream=True)).chat_stream(model="m", messages=[])

    reading = read(dialect, [one.model_dump(mode="json") for one in events])

    assert reading.calls == READ
    assert (reading.text, reading.message_id, reading.is_response) == ("I look.", "r-1", True)


@pytest.mark.parametrize("message", [RESPONSE, MESSAGE, CALLS, STREAM])
def test_a_response_a_message_the_calls_alone_and_a_stream_say_the_same(message: Any) -> None:
    assert read(dialect, message).calls == READ


def test_the_plan_and_the_text_are_both_said() -> None:
    stream = [
        event("content-start", 0, content={"type": "text", "text": ""}),
        event("content-delta", 0, content={"text": "He"}),
        event("content-delta", 0, content={"text": "re."}),
        *STREAM,
    ]
    message = MESSAGE | {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Here."}]}

    assert read(dialect, stream).text == read(dialect, message).text == "I look.\nHere."


@given(ANY_JSON | spoiled(RESPONSE, CALLS, STREAM))
def test_any_json_is_read_or_refused_in_a_sentence(message: Any) -> None:
    require_readable_or_said(dialect, message)


def test_a_response_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]

    with pytest.raises(Unreadable, match="too deep"):
        read(dialect, {"tool_plan": "", "tool_calls": [{"function": {"name": "x", "arguments": deep}}]})


@pytest.mark.parametrize("end", [[], [{"type": "message-end", "delta": {"finish_reason": "MAX_TOKENS"}}]])
def test_a_call_is_not_run_when_the_stream_ended_in_the_middle_of_it(end: list[Any]) -> None:
    calls = read(dialect, [*OPENING, start(1, CALLS[1]), more(1, '{"pa'), *end]).calls

    assert calls[0] == READ[0]
    assert (calls[1].id, calls[1].raw_arguments) == ("list_sessions_2", '{"pa')
    assert "ended before" in str(calls[1].arguments_error)


def test_names_go_without_a_dash() -> None:
    made = dialect.export_tools([replace(OFFER, name="get-weather")], OPTIONS)

    assert made.tools[0]["function"]["name"].startswith("get_weather_")
    assert len(made.warnings) == 1


def test_strict_is_a_matter_of_the_request() -> None:
    made = dialect.export_tools([OFFER, QUIET], replace(OPTIONS, strict="on"))

    assert all("strict" not in tool["function"] for tool in made.tools)
    assert len(made.warnings) == 1
    assert "`strict_tools: true`" in made.warnings[0]


@pytest.mark.parametrize(
    ("choice", "names", "said", "warned"),
    [
        (Choice(mode="auto"), ["get_weather", "list_sessions"], None, 0),
        (Choice(mode="none"), ["get_weather", "list_sessions"], "NONE", 0),
        (Choice(mode="required"), ["get_weather", "list_sessions"], "REQUIRED", 0),
        (Choice(mode="tool", name="list_sessions"), ["list_sessions"], "REQUIRED", 0),
        (Choice(allowed=("get_weather",)), ["get_weather"], None, 0),
        (Choice(parallel=False), ["get_weather", "list_sessions"], None, 1),
    ],
)
def test_a_choice_is_said_in_the_words_of_the_provider(
    choice: Choice, names: list[str], said: str | None, warned: int
) -> None:
    warnings: list[str] = []

    request = dialect.fill_request(
        dialect.export_tools([OFFER, QUIET], OPTIONS).tools, choice, dialect.quirks, warnings
    )

    assert [tool["function"]["name"] for tool in request["tools"]] == names
    assert request.get("tool_choice") == said
    assert len(warnings) == warned


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        (answered(), "(no output)"),
        (answered(Text("12 C")), "12 C"),
        (answered(Json({"a": 1})), '{"a": 1}'),
        (answered(error=Failure("ENOENT", "no such file: a")), "[ERROR:ENOENT] no such file: a"),
        (answered(Media(mime="image/png", data=PIXEL)), "[image (image/png)]"),
        (
            answered(Media(mime="application/pdf", url="https://x/a")),
            "[file (application/pdf), available at https://x/a]",
        ),
        (
            answered(
                Text("two"),
                Media(mime="text/markdown", data=base64.b64encode("# Ä".encode()).decode(), name="a.md"),
                SearchResult(source="https://x", title="X", text="body"),
                error=Failure("Timeout", "slow"),
            ),
            [
                {"type": "text", "text": "[ERROR:Timeout] slow\ntwo"},
                {"type": "document", "document": {"data": {"title": "a.md", "text": "# Ä"}}},
                {"type": "document", "document": {"data": {"title": "X", "source": "https://x", "text": "body"}}},
            ],
        ),
        (
            answered(Media(mime="application/json", data=base64.b64encode(b"[1]").decode())),
            [{"type": "document", "document": {"data": {"text": "[1]"}}}],
        ),
    ],
)
def test_what_can_be_cited_is_a_document(reply: Reply, content: Any) -> None:
    messages = dialect.write_results([reply])

    assert messages == [{"role": "tool", "tool_call_id": "get_weather_1", "content": content}]
    require_known(ToolChatMessageV2.model_validate(messages[0]))


def test_no_id_is_made_up() -> None:
    assert dialect.write_results([answered(id=None)]) == [{"role": "tool", "content": "(no output)"}]


def test_ids_only_count_the_calls_of_a_message() -> None:
    assert dialect.numbers_calls
