"""OpenAI Chat Completions: tools out, calls in, results out, checked with the provider's own package."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import openai
import pytest
from hypothesis import given
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)

from app.core.runs import Failure, Json, Media, ModelCall, Reply, Text, Unreadable
from app.providers.dialects import Choice, ExportOptions, Quirks
from app.providers.openai_chat import dialect
from tests.providers.chat_cases import (
    ANY_JSON,
    FREE,
    OFFER,
    PATCH,
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

FULL = dialect.quirks
OPTIONS = ExportOptions(strict="off", quirks=FULL)
CALL: Any = {
    "id": "call_a",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"location":"Oslo"}'},
}
CUSTOM: Any = {"id": "call_p", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
RESPONSE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CUSTOM]},
        }
    ],
}


def client(listener: Listener) -> openai.OpenAI:
    return openai.OpenAI(api_key="key", http_client=listener.new_client())


def answered(*parts: Any, id: str | None = "call_a", error: Failure | None = None) -> Reply:
    return Reply(call=ModelCall(id=id, name="get_weather"), parts=parts, error=error)


@pytest.mark.parametrize("case", cases("openai-chat", "openai-chat-stream"), ids=lambda case: case["id"])
def test_the_recorded_cases_come_out_as_recorded(case: dict[str, Any]) -> None:
    assert made_of(dialect, case) == case["expected"]


@pytest.mark.parametrize("model", ["gpt-5", "gpt-4o"])
def test_what_is_written_goes_over_the_wire_as_it_is(model: str) -> None:
    listener = Listener(RESPONSE)
    tools = dialect.export_tools([OFFER, QUIET, FREE], replace(OPTIONS, strict="auto", model=model)).tools
    request = dialect.fill_request(tools, Choice(mode="required", allowed=("get_weather",), parallel=False), FULL, [])
    png = Media(mime="image/png", data=PIXEL)
    pdf = Media(mime="application/pdf", data=PIXEL, name="a.pdf")
    results = dialect.write_results([answered(Text("shot"), png, pdf), answered(id="call_b")])
    messages: list[Any] = [{"role": "assistant", "tool_calls": [CALL, CUSTOM]}, *results]

    client(listener).chat.completions.create(model=model, messages=messages, **request)

    assert listener.bodies[0]["tools"] == tools
    assert listener.bodies[0]["messages"][1:] == results
    assert listener.bodies[0]["tool_choice"] == request["tool_choice"]
    require(list[ChatCompletionToolUnionParam], tools)
    require(list[ChatCompletionMessageParam], results)


def test_a_response_that_the_package_has_parsed_is_read() -> None:
    parsed = client(Listener(RESPONSE)).chat.completions.create(model="m", messages=[])

    reading = read(dialect, parsed.model_dump(mode="json"), OFFER, FREE)

    assert reading.message_id == "chatcmpl-1"
    assert reading.text == "Let me see."
    assert reading.is_response
    assert reading.calls == (
        ModelCall(id="call_a", name="get_weather", arguments={"location": "Oslo"}),
        ModelCall(id="call_p", name="apply_patch", type="custom", input=PATCH),
    )


def test_a_stream_that_the_package_has_parsed_is_read() -> None:
    chunks = cases("openai-chat-stream")[0]["input"]
    stream = client(Listener(chunks, is_stream=True)).chat.completions.create(model="m", messages=[], stream=True)

    reading = read(dialect, [chunk.model_dump(mode="json") for chunk in stream], OFFER, QUIET)

    assert [call.name for call in reading.calls] == ["get_weather", "list_sessions"]
    assert reading.message_id == "chatcmpl-1"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(RESPONSE, id="response"),
        pytest.param(RESPONSE["choices"][0]["message"], id="message"),
        pytest.param([CALL, CUSTOM], id="list"),
    ],
)
def test_a_response_a_message_and_the_calls_alone_say_the_same(message: Any) -> None:
    assert [call.id for call in read(dialect, message).calls] == ["call_a", "call_p"]


def test_one_call_alone_is_read_too() -> None:
    assert [call.id for call in read(dialect, CALL).calls] == ["call_a"]


@given(ANY_JSON | spoiled(RESPONSE, [CALL, CUSTOM], *(case["input"] for case in cases("openai-chat-stream"))))
def test_any_json_is_read_or_refused_in_a_sentence(message: Any) -> None:
    require_readable_or_said(dialect, message)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Nothing to do."},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"choices": []},
        [],
    ],
)
def test_a_message_without_calls_is_no_error(message: Any) -> None:
    assert read(dialect, message).calls == ()


def test_what_is_no_message_of_a_model_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        "hello",
        None,
        {},
        {"error": {"message": "no credit"}},
        {"candidates": []},
        {"role": "user", "content": "hi"},
        {"role": "model", "parts": []},
        {"tool_calls": {}},
        {"tool_calls": [{"id": "a"}]},
        {"tool_calls": [{"id": 1, "function": {"name": "x"}}]},
        {"choices": [1]},
        {"choices": [{"message": 1}]},
        [{"type": "function_call", "call_id": "a", "name": "x", "arguments": "{}"}],
    ]
    for message in cases:
        with subtests.test(message=message), pytest.raises(Unreadable, match=r"^[A-Z`].*\.$"):
            read(dialect, message)


def test_a_message_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]

    with pytest.raises(Unreadable, match="too deep"):
        read(dialect, [{"id": "a", "function": {"name": "x", "arguments": deep}}])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", {"arguments": {}}),
        ("null", {"arguments": {}}),
        (None, {"arguments": {}}),
        ({"a": 1}, {"arguments": {"a": 1}}),
        ('{"a":1}', {"arguments": {"a": 1}}),
    ],
)
def test_arguments_are_read_however_they_are_written(written: Any, expected: dict[str, Any]) -> None:
    call = read(dialect, [{"id": "a", "function": {"name": "x", "arguments": written}}]).calls[0]

    assert call == ModelCall(id="a", name="x", **expected)


@pytest.mark.parametrize("written", ['{"a":', "[1]", [1], 7])
def test_arguments_that_cannot_be_read_are_kept_with_the_reason(written: Any) -> None:
    call = read(dialect, [{"id": "a", "function": {"name": "x", "arguments": written}}]).calls[0]

    assert call.arguments is None
    assert call.arguments_error is not None
    assert call.raw_arguments == (written if isinstance(written, str) else json.dumps(written))


def test_the_input_of_a_custom_call_has_to_be_text() -> None:
    call = read(dialect, [{"id": "a", "custom": {"name": "x", "input": {"b": 1}}}]).calls[0]

    assert (call.type, call.input) == ("custom", None)
    assert (call.arguments_error, call.raw_arguments) == ("The input is not a string.", '{"b": 1}')


def test_a_call_without_a_name_still_gets_an_answer() -> None:
    assert read(dialect, [{"id": "a", "function": {}}]).calls == (ModelCall(id="a", name="", arguments={}),)


def test_the_old_way_to_call_a_function_has_no_id_and_is_answered_by_name() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}}
    calls = read(dialect, message).calls

    answers = dialect.write_results([Reply(call=calls[0], parts=(Text("12 C"),))])

    assert calls == (ModelCall(id=None, name="get_weather", arguments={}),)
    assert answers == [{"role": "function", "name": "get_weather", "content": "12 C"}]
    require(list[ChatCompletionMessageParam], answers)


def test_one_turn_may_be_split_over_several_choices() -> None:
    other = {"id": "call_b", "type": "function", "function": {"name": "list_sessions", "arguments": ""}}
    response = {
        "choices": [
            {"message": {"role": "assistant", "content": "I look."}, "finish_reason": "stop"},
            {"message": {"role": "assistant", "content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"},
            {"message": {"role": "assistant", "content": "Twice.", "tool_calls": [other]}},
        ]
    }

    reading = read(dialect, response)

    assert [call.id for call in reading.calls] == ["call_a", "call_b"]
    assert reading.text == "I look.\nTwice."


def test_blocks_of_claude_are_read_where_there_are_no_choices() -> None:
    response = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Oslo"}},
        ],
    }

    reading = read(dialect, response)

    assert reading.calls == (ModelCall(id="toolu_1", name="get_weather", arguments={"location": "Oslo"}),)
    assert (reading.text, reading.message_id, reading.is_response) == ("I look.", "msg_1", True)


def test_the_last_block_of_a_message_that_ran_out_is_not_run() -> None:
    blocks = [{"type": "tool_use", "id": name, "name": name, "input": {"a": 1}} for name in ("one", "two")]

    calls = read(dialect, {"role": "assistant", "content": blocks, "stop_reason": "max_tokens"}).calls

    assert [call.arguments for call in calls] == [{"a": 1}, None]
    assert calls[1].raw_arguments == '{"a": 1}'


@pytest.mark.parametrize("reason", ["length", "content_filter", "LENGTH"])
def test_a_response_that_was_cut_off_leaves_its_unfinished_calls_unrun(reason: str) -> None:
    whole = deepcopy(RESPONSE)
    whole["choices"][0]["finish_reason"] = reason
    broken = {"id": "call_b", "function": {"name": "x", "arguments": '{"pa'}}
    whole["choices"][0]["message"]["tool_calls"] = [QUIET_CALL, CALL, broken, CUSTOM]

    calls = read(dialect, whole).calls

    assert [call.arguments for call in calls] == [{}, {"location": "Oslo"}, None, None]
    assert [call.raw_arguments for call in calls] == [None, None, '{"pa', PATCH]
    assert "ended before" in str(calls[3].arguments_error)
    assert calls[3].input is None


QUIET_CALL = {"id": "call_q", "function": {"name": "list_sessions", "arguments": ""}}


def test_a_call_that_was_cut_off_before_its_arguments_is_not_one_without_any() -> None:
    message = {"choices": [{"message": {"tool_calls": [QUIET_CALL]}, "finish_reason": "length"}]}

    assert "ended before" in str(read(dialect, message).calls[0].arguments_error)


def test_a_refusal_is_what_the_model_said() -> None:
    assert read(dialect, {"role": "assistant", "content": None, "refusal": "No."}).text == "No."


def test_free_text_is_a_custom_tool_for_models_that_take_one() -> None:
    plain = replace(FREE, grammar=None)
    tools = dialect.export_tools([FREE, plain], replace(OPTIONS, model="openai/gpt-5.1")).tools

    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": FREE.grammar}}
    about = {"name": "apply_patch", "description": "Change files by a patch."}
    assert tools == [
        {"type": "custom", "custom": about | {"format": grammar}},
        {"type": "custom", "custom": about | {"format": {"type": "text"}}},
    ]
    require(list[ChatCompletionToolUnionParam], tools)


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, model="gpt-4o"),
        replace(OPTIONS, model=None),
        replace(OPTIONS, model="gpt-5", quirks=replace(FULL, takes_freeform=False)),
    ],
)
def test_elsewhere_free_text_is_the_one_argument_of_a_function(options: ExportOptions) -> None:
    tool = dialect.export_tools([FREE], options).tools[0]

    parameters = tool["function"]["parameters"]
    assert list(parameters["properties"]) == parameters["required"] == ["input"]
    assert FREE.grammar is not None
    assert FREE.grammar in parameters["properties"]["input"]["description"]
    assert tool["function"]["description"].startswith(FREE.description)
    assert "`input`" in tool["function"]["description"]


def test_strict_is_said_as_the_provider_understands_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, bool | None]] = [
        ("full", "auto", True),
        ("full", "on", True),
        ("full", "off", None),
        ("on_request", "auto", None),
        ("on_request", "on", True),
        ("on_request", "off", None),
        ("false", "auto", False),
        ("false", "on", True),
        ("false", "off", False),
        ("never", "auto", None),
        ("never", "on", None),
        ("never", "off", None),
    ]
    for level, strict, expected in cases:
        with subtests.test(level=level, strict=strict, expected=expected):
            options = ExportOptions(strict=strict, quirks=Quirks(strict=level))

            made = dialect.export_tools([OFFER, QUIET], options)

            assert [tool["function"].get("strict") for tool in made.tools] == [expected, expected]
            assert all(("strict" in tool["function"]) is (expected is not None) for tool in made.tools)
            if expected is not True:
                assert made.tools[0]["function"]["parameters"] == OFFER.schema
            assert len(made.warnings) == (1 if (level, strict) == ("never", "on") else 0)


def test_strict_that_cannot_be_is_given_up_with_the_reason_and_the_schema_untouched() -> None:
    schema = {"type": "object", "properties": {"labels": {"type": "object", "additionalProperties": True}}}
    offer = replace(OFFER, schema=schema)

    made = dialect.export_tools([offer, QUIET], replace(OPTIONS, strict="on"))

    assert [tool["function"]["strict"] for tool in made.tools] == [False, True]
    assert made.tools[0]["function"]["parameters"] == schema
    assert len(made.warnings) == 1
    assert made.warnings[0].startswith("get_weather: not strict: ")


def test_offers_are_left_as_they_were() -> None:
    offers = [OFFER, QUIET, FREE]
    before = deepcopy(offers)

    tools = dialect.export_tools(offers, replace(OPTIONS, strict="on")).tools
    loose = dialect.export_tools(offers, OPTIONS).tools
    tools[0]["function"]["parameters"]["properties"].clear()
    loose[0]["function"]["parameters"]["properties"]["location"].clear()

    assert offers == before


def test_a_tool_without_a_schema_to_speak_of_takes_an_object_without_properties() -> None:
    tool = dialect.export_tools([replace(QUIET, schema={}, description="")], OPTIONS).tools[0]

    assert tool["function"] == {"name": "list_sessions", "parameters": {"type": "object", "properties": {}}}


def test_tools_beyond_the_most_are_left_out_and_named() -> None:
    offers = [replace(QUIET, name=f"tool_{number}") for number in range(130)]

    made = dialect.export_tools(offers, OPTIONS)

    assert [tool["function"]["name"] for tool in made.tools] == [f"tool_{number}" for number in range(128)]
    assert made.warnings == ["At most 128 tools are supported, so these were left out: tool_128, tool_129."]


def test_a_description_that_is_too_long_is_cut_and_said_to_be() -> None:
    made = dialect.export_tools([replace(OFFER, description="x" * 1025)], OPTIONS)

    assert made.tools[0]["function"]["description"] == "x" * 1023 + "…"
    assert made.warnings == ["get_weather: the description was cut to 1024 characters, this provider's limit."]


def test_a_name_that_is_not_taken_is_changed_and_said_to_be() -> None:
    made = dialect.export_tools([replace(OFFER, name="weather.now")], OPTIONS)

    name = made.tools[0]["function"]["name"]
    assert name.startswith("weather_now_")
    assert made.warnings == [f"weather.now: renamed to {name}, because the provider does not accept the name."]


def test_a_tool_with_a_schema_nested_without_end_is_left_out_alone() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {}}
    for _ in range(2_000):
        deep = {"type": "object", "properties": {"a": deep}}

    made = dialect.export_tools([replace(OFFER, schema=deep), QUIET], OPTIONS)

    assert [tool["function"]["name"] for tool in made.tools] == ["list_sessions"]
    assert made.warnings == ["get_weather: left out, because its schema is nested too deep."]


def test_what_has_no_place_here_is_said_once_each() -> None:
    options = replace(OPTIONS, cache="1h", namespace=("box", "Tools"), is_native=True, defers=lambda name: True)

    made = dialect.export_tools([OFFER, QUIET], options)

    assert len(made.tools) == 2
    assert [" ".join(sentence.split()[3:6]) for sentence in made.warnings] == [
        "no cache marker",
        "no deferred tools;",
        "no namespaces; the",
        "no built-in tools;",
    ]
    assert all(sentence.endswith(".") for sentence in made.warnings)


def tools_of(*offers: Any, model: str | None = "gpt-5") -> list[Any]:
    return dialect.export_tools(offers or [OFFER, QUIET, FREE], replace(OPTIONS, model=model)).tools


FUNCTION = {"type": "function", "function": {"name": "get_weather"}}
PATCHER = {"type": "custom", "custom": {"name": "apply_patch"}}


def test_a_choice_is_said_in_the_words_of_the_provider(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Choice, dict[str, Any]]] = [
        (Choice(), {}),
        (Choice(mode="auto"), {"tool_choice": "auto"}),
        (Choice(mode="none"), {"tool_choice": "none"}),
        (Choice(mode="required"), {"tool_choice": "required"}),
        (Choice(mode="tool", name="get_weather"), {"tool_choice": FUNCTION}),
        (Choice(mode="tool", name="apply_patch"), {"tool_choice": PATCHER}),
        (Choice(parallel=False), {"parallel_tool_calls": False}),
        (Choice(parallel=True), {"parallel_tool_calls": True}),
        (
            Choice(allowed=("apply_patch", "get_weather")),
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [FUNCTION, PATCHER]},
                }
            },
        ),
        (
            Choice(mode="required", allowed=("get_weather",)),
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FUNCTION]}}},
        ),
        (Choice(mode="none", allowed=("get_weather",)), {"tool_choice": "none"}),
    ]
    for choice, expected in cases:
        with subtests.test(choice=choice, expected=expected):
            tools = tools_of()
            warnings: list[str] = []

            request = dialect.fill_request(tools, choice, FULL, warnings)

            assert request == {"tools": tools} | expected
            assert warnings == []
            if "tool_choice" in request:
                require(ChatCompletionToolChoiceOptionParam, request["tool_choice"])


def test_a_choice_goes_by_the_names_on_the_wire() -> None:
    odd = replace(OFFER, name="weather.now")
    tools = tools_of(odd)

    request = dialect.fill_request(tools, Choice(mode="tool", name="weather.now"), FULL, [])

    assert request["tool_choice"]["function"]["name"] == tools[0]["function"]["name"]


@pytest.mark.parametrize(
    ("choice", "count", "said"),
    [
        (Choice(mode="tool", name="nope"), 3, "nope is not among the tools"),
        (Choice(mode="tool"), 3, "The tool to use is not among the tools"),
        (Choice(allowed=("nope", "get_weather")), 3, "not among the tools: nope"),
    ],
)
def test_a_choice_of_what_is_not_offered_is_said_and_not_sent(choice: Choice, count: int, said: str) -> None:
    warnings: list[str] = []

    request = dialect.fill_request(tools_of(), choice, FULL, warnings)

    assert len(request["tools"]) == count
    assert "nope" not in json.dumps(request)
    assert len(warnings) == 1
    assert said in warnings[0]


def test_nothing_is_offered_when_nothing_offered_is_allowed() -> None:
    warnings: list[str] = []

    assert dialect.fill_request(tools_of(), Choice(allowed=("nope",)), FULL, warnings) == {}
    assert warnings == ["These are allowed, but not among the tools: nope."]


@pytest.mark.parametrize(
    ("choice", "warned"), [(Choice(), 0), (Choice(mode="auto", parallel=False), 0), (Choice(mode="required"), 1)]
)
def test_without_tools_nothing_is_said_because_an_empty_list_is_refused(choice: Choice, warned: int) -> None:
    warnings: list[str] = []

    assert dialect.fill_request([], choice, FULL, warnings) == {}
    assert len(warnings) == warned


@pytest.mark.parametrize(
    ("modes", "choice", "names", "said", "warned"),
    [
        ({"auto", "required"}, Choice(mode="tool", name="get_weather"), ["get_weather"], "required", 0),
        ({"auto"}, Choice(mode="tool", name="get_weather"), ["get_weather"], None, 1),
        ({"auto"}, Choice(mode="required"), ["get_weather", "list_sessions"], None, 1),
        ({"auto"}, Choice(mode="auto"), ["get_weather", "list_sessions"], "auto", 0),
        (set(), Choice(mode="auto"), ["get_weather", "list_sessions"], None, 0),
        ({"auto"}, Choice(mode="none"), [], None, 1),
        ({"auto"}, Choice(mode="auto", allowed=("list_sessions",)), ["list_sessions"], "auto", 0),
    ],
)
def test_what_cannot_be_said_is_done_by_what_is_offered(
    modes: set[Any], choice: Choice, names: list[str], said: str | None, warned: int
) -> None:
    warnings: list[str] = []

    request = dialect.fill_request(tools_of(OFFER, QUIET), choice, Quirks(modes=frozenset(modes)), warnings)

    assert [tool["function"]["name"] for tool in request.get("tools", [])] == names
    assert request.get("tool_choice") == said
    assert len(warnings) == warned


def test_one_call_at_a_time_is_a_warning_where_it_cannot_be_said() -> None:
    warnings: list[str] = []
    quirks = Quirks(has_parallel_choice=False)

    request = dialect.fill_request(tools_of(OFFER), Choice(parallel=False), quirks, warnings)
    dialect.fill_request(tools_of(OFFER), Choice(parallel=True), quirks, warnings)

    assert list(request) == ["tools"]
    assert warnings == ["This provider cannot disable parallel calls."]


def test_a_result_is_one_message_of_text(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Reply, str]] = [
        (answered(), "(no output)"),
        (answered(Text("")), "(no output)"),
        (answered(Json({"a": [1, "ä"]})), '{"a": [1, "ä"]}'),
        (answered(Text("a"), Text("b")), "a\nb"),
        (answered(error=Failure("Timeout", "too slow")), "[ERROR:Timeout] too slow"),
        (answered(Text("out"), error=Failure("ExitCode:2", "it failed")), "[ERROR:ExitCode:2] it failed\nout"),
        (answered(Media(mime="audio/wav", data=PIXEL, name="a.wav")), "[file a.wav (audio/wav)]"),
        (answered(Media(mime="image/svg+xml", data=PIXEL)), "[image (image/svg+xml)]"),
        (answered(Media(mime="image/png", url="file:///a.png")), "[image (image/png), available at file:///a.png]"),
        (
            answered(Media(mime="application/pdf", url="https://x/a.pdf")),
            "[file (application/pdf), available at https://x/a.pdf]",
        ),
    ]
    for reply, expected in cases:
        with subtests.test(reply=reply, expected=expected):
            messages = dialect.write_results([reply])

            assert messages == [{"role": "tool", "tool_call_id": "call_a", "content": expected}]
            require(list[ChatCompletionMessageParam], messages)


def test_files_of_all_calls_follow_in_one_message_of_the_user() -> None:
    shots = [Media(mime="image/png", data=PIXEL), Media(mime="image/webp", url="https://x/b.webp")]
    pdf = Media(mime="application/pdf", data=PIXEL)

    messages = dialect.write_results([answered(*shots), answered(Text("read it"), pdf, id="call_b")])

    assert messages == [
        {
            "role": "tool",
            "tool_call_id": "call_a",
            "content": "[image 1 of call_a attached below]\n[image 2 of call_a attached below]",
        },
        {"role": "tool", "tool_call_id": "call_b", "content": "read it\n[file 1 of call_b attached below]"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[image 1 of call_a]"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                {"type": "text", "text": "[image 2 of call_a]"},
                {"type": "image_url", "image_url": {"url": "https://x/b.webp"}},
                {"type": "text", "text": "[file 1 of call_b]"},
                {
                    "type": "file",
                    "file": {"filename": "document.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"},
                },
            ],
        },
    ]
    require(list[ChatCompletionMessageParam], messages)


def test_the_calls_of_a_leaked_wrapper_are_answered_once() -> None:
    case = next(case for case in cases("openai-chat", kind="calls") if case["id"] == "C07")
    calls = read(dialect, case["input"], OFFER, QUIET).calls

    answers = dialect.write_results([Reply(call=call, parts=(Text(call.name.upper()),)) for call in calls])

    text = "get_weather:\nGET_WEATHER\nlist_sessions:\nLIST_SESSIONS"
    assert answers == [{"role": "tool", "tool_call_id": "call_w", "content": text}]
