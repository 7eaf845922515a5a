"""The Messages API: definitions, calls and results, checked with the provider's own package."""

import base64
import copy
import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import MessageParam, ToolChoiceParam, ToolUnionParam
from hypothesis import given

from app.core.runs import (
    Failure,
    Json,
    Media,
    ModelCall,
    Reply,
    SearchResult,
    Text,
    ToolOffer,
    ToolReference,
    Unreadable,
)
from app.providers.anthropic import dialect
from app.providers.dialects import Choice, ExportOptions, Quirks
from tests.providers.arbitrary import UNHURRIED, messages, require_an_answer
from tests.providers.neutral import PIXEL, WEATHER, offers_of, replies_of
from tests.providers.recorded import options_of, recorded
from tests.providers.typed_dicts import require

NOBODY = {"type": "message", "id": "msg_0", "role": "assistant", "model": "m", "content": [], "stop_reason": "end_turn"}
USAGE = {"usage": {"input_tokens": 1, "output_tokens": 1}, "stop_sequence": None}


def offer(name: str, schema: dict[str, Any] | None = None) -> ToolOffer:
    return ToolOffer(name=name, description=f"Does {name}.", schema=schema or WEATHER)


def options(**asked: Any) -> ExportOptions:
    return ExportOptions(quirks=dialect.quirks, **asked)


def reply(*parts: Any, error: Failure | None = None, **call: Any) -> Reply:
    return Reply(call=ModelCall(**{"id": "toolu_1", "name": "t"} | call), parts=parts, error=error)


def results_of(*replies: Reply) -> list[dict[str, Any]]:
    """The blocks of the one message, which the package must know."""
    (message,) = dialect.write_results(replies)
    require(MessageParam, message)
    assert message["role"] == "user"
    content: list[dict[str, Any]] = message["content"]
    return content


def filled(choice: Choice, *names: str, **asked: Any) -> tuple[dict[str, Any], list[str]]:
    warnings: list[str] = []
    tools = dialect.export_tools([offer(name) for name in names], options(**asked)).tools
    return dialect.fill_request(tools, choice, dialect.quirks, warnings), warnings


def send(answer: Any = None, **request: Any) -> tuple[dict[str, Any], Any]:
    """The body the package sends, and the message it reads from an answer."""
    sent: list[dict[str, Any]] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        return httpx2.Response(200, json=answer or NOBODY | USAGE)

    with httpx2.Client(transport=httpx2.MockTransport(respond)) as wire:
        client = anthropic.Anthropic(api_key="k", http_client=wire, max_retries=0)
        asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        message = client.messages.create(**asked | request)
    return sent[0], message


@recorded("definition", "anthropic")
def test_tools_are_offered_as_recorded_and_as_the_package_sends_them(case: dict[str, Any]) -> None:
    exported = dialect.export_tools(offers_of(case["input"]["tools"]), options_of(case, dialect))
    assert exported.tools == case["expected"]
    assert exported.warnings == []
    require(list[ToolUnionParam], exported.tools)
    body, _ = send(tools=exported.tools)
    assert body["tools"] == exported.tools


@recorded("calls", "anthropic", "anthropic-stream")
def test_calls_are_read_as_recorded(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["input"])
    reading = dialect.read_calls(case["input"], lambda name: None)
    assert [call.view() for call in reading.calls] == case["expected"]
    assert case["input"] == before


@recorded("results", "anthropic")
def test_results_are_written_as_recorded_and_as_the_package_sends_them(case: dict[str, Any]) -> None:
    written = dialect.write_results(replies_of(case["input"]["results"]))
    assert written == case["expected"]
    require(list[MessageParam], written)
    body, _ = send(messages=written)
    assert body["messages"] == written


def test_without_replies_there_is_nothing_to_say() -> None:
    assert dialect.write_results([]) == []


def test_the_cache_can_last_an_hour() -> None:
    tools = dialect.export_tools([offer("one"), offer("two")], options(cache="1h")).tools
    assert [tool.get("cache_control") for tool in tools] == [None, {"type": "ephemeral", "ttl": "1h"}]
    require(list[ToolUnionParam], tools)


def test_a_deferred_tool_never_carries_the_mark_of_the_cache() -> None:
    asked = options(cache="ephemeral", defers=lambda name: name != "here")
    tools = dialect.export_tools([offer("here"), offer("far"), offer("farther")], asked).tools
    assert [(tool["name"], tool.get("defer_loading"), "cache_control" in tool) for tool in tools] == [
        ("tool_search_tool_bm25", None, False),
        ("here", None, True),
        ("far", True, False),
        ("farther", True, False),
    ]
    all_deferred = dialect.export_tools([offer("far")], options(cache="ephemeral", defers=lambda name: True)).tools
    assert [tool["name"] for tool in all_deferred if "cache_control" in tool] == ["tool_search_tool_bm25"]


def test_where_the_provider_searches_our_own_search_is_left_out() -> None:
    ours, far = offer("tool_search"), offer("far")
    made = dialect.export_tools([ours, far], options(defers=lambda name: True))
    assert [tool["name"] for tool in made.tools] == ["tool_search_tool_bm25", "far"]
    assert made.warnings == [
        "tool_search: not exported, because the provider searches deferred tools itself.",
    ]
    kept = dialect.export_tools([ours, far], options(defers=lambda name: name == "tool_search"))
    assert [tool["name"] for tool in kept.tools][-2:] == ["tool_search", "far"]
    assert dialect.export_tools([ours, far], options()).warnings == []


def test_without_tools_nothing_is_searched_or_cached() -> None:
    assert dialect.export_tools([], options(cache="1h", defers=lambda name: True, strict="on")).tools == []


def test_the_models_own_tools_stand_in_for_shells_and_files_once_each() -> None:
    names = ["grep", "exec_command", "shell", "write_file", "read_file", "edit_file", "glob"]
    tools = dialect.export_tools([offer(name) for name in names], options(is_native=True)).tools
    assert [tool["name"] for tool in tools] == ["grep", "bash", "str_replace_based_edit_tool", "glob"]
    assert tools[1:3] == [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    ]
    require(list[ToolUnionParam], tools)
    body, _ = send(tools=tools)
    assert body["tools"] == tools


def test_a_built_in_tool_is_not_offered_beside_another_one_of_its_name() -> None:
    exported = dialect.export_tools([offer("bash"), offer("shell"), offer("read_file")], options(is_native=True))
    assert [tool["name"] for tool in exported.tools] == ["bash", "shell", "str_replace_based_edit_tool"]
    assert exported.warnings == ["The built-in tool bash is not exported: another tool has its name."]


def test_strict_is_only_for_those_who_ask_and_never_changes_what_it_cannot_say() -> None:
    free = {"type": "object", "properties": {"map": {"type": "object"}}}
    offers = [offer("get_weather"), offer("free", free)]
    assert not any("strict" in tool for tool in dialect.export_tools(offers, options(strict="auto")).tools)
    exported = dialect.export_tools(offers, options(strict="on"))
    assert [tool.get("strict") for tool in exported.tools] == [True, None]
    assert exported.tools[0]["input_schema"]["additionalProperties"] is False
    assert exported.tools[1]["input_schema"] == free
    assert exported.warnings == ["free is not strict: an object in it takes properties of any name."]
    assert "additionalProperties" not in WEATHER


def test_a_relative_that_knows_nothing_strict_says_so() -> None:
    exported = dialect.export_tools([offer("one")], ExportOptions(strict="on", quirks=Quirks(strict="never")))
    assert "strict" not in exported.tools[0]
    assert exported.warnings == ["This dialect has no strict tools; the schemas are unchanged."]


def test_free_text_is_one_argument_that_is_explained() -> None:
    patch = ToolOffer(name="apply_patch", description="Patch.", schema={}, takes="input", grammar="start: /.+/")
    (tool,) = dialect.export_tools([patch], options()).tools
    assert tool["input_schema"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    assert tool["description"].startswith("Patch.\n\n")
    assert "`input`" in tool["description"]
    assert "start: /.+/" in tool["description"]


def test_names_are_made_legal_and_namespaces_are_said_to_be_unknown() -> None:
    exported = dialect.export_tools([offer("a.b")], options(namespace=("n", "d")))
    (tool,) = exported.tools
    assert tool["name"].startswith("a_b_")
    assert exported.warnings == [
        "This dialect has no namespaces; the tools are exported without one.",
        f"a.b: renamed to {tool['name']}, because the provider does not accept the name.",
    ]


def test_a_choice_is_said_in_one_place_and_nothing_is_said_of_the_rest(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Choice, Any]] = [
        (Choice(), None),
        (Choice(parallel=True), None),
        (Choice(mode="auto"), {"type": "auto"}),
        (Choice(mode="required"), {"type": "any"}),
        (Choice(mode="none"), {"type": "none"}),
        (Choice(mode="none", parallel=False), {"type": "none"}),
        (Choice(mode="tool", name="one"), {"type": "tool", "name": "one"}),
        (Choice(parallel=False), {"type": "auto", "disable_parallel_tool_use": True}),
        (Choice(mode="required", parallel=False), {"type": "any", "disable_parallel_tool_use": True}),
        (
            Choice(mode="tool", name="one", parallel=False),
            {"type": "tool", "name": "one", "disable_parallel_tool_use": True},
        ),
    ]
    for choice, said in cases:
        with subtests.test(choice=choice, said=said):
            request, warnings = filled(choice, "one", "two")
            assert request.get("tool_choice") == said
            assert [tool["name"] for tool in request["tools"]] == ["one", "two"]
            assert warnings == []
            if said is not None:
                require(ToolChoiceParam, said)
                body, _ = send(**request)
                assert body["tool_choice"] == said


def test_tools_that_are_not_allowed_are_left_out_with_a_warning() -> None:
    request, warnings = filled(Choice(mode="required", allowed=("two", "shell")), "one", "two", "shell", is_native=True)
    assert [tool["name"] for tool in request["tools"]] == ["two", "bash"]
    assert request["tool_choice"] == {"type": "any"}
    assert warnings == ["Anthropic has no list of allowed tools; the other tools are left out of the request."]


def test_narrowing_keeps_the_search_and_the_cache() -> None:
    asked: dict[str, Any] = {"cache": "ephemeral", "defers": lambda name: name == "far"}
    kept, _ = filled(Choice(allowed=("far",)), "far", "near", **asked)
    assert [tool["name"] for tool in kept["tools"]] == ["tool_search_tool_bm25", "far"]
    assert kept["tools"][0]["cache_control"] == {"type": "ephemeral"}
    near, _ = filled(Choice(allowed=("near",)), "far", "near", **asked)
    assert [tool["name"] for tool in near["tools"]] == ["near"]


def test_nothing_is_chosen_among_no_tools_and_a_built_in_goes_by_its_own_name() -> None:
    assert filled(Choice(mode="required"))[0] == {"tools": []}
    request, _ = filled(Choice(mode="tool", name="shell"), "shell", is_native=True)
    assert request["tool_choice"] == {"type": "tool", "name": "bash"}
    assert filled(Choice(mode="tool", name="a.b"), "a.b")[0]["tool_choice"]["name"].startswith("a_b_")


CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "I will look. "},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "text", "text": "Now."},
    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Oslo"},
     "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}, "toolset_name": "box"},
    {"type": "tool_use", "id": "toolu_2", "name": "unknown", "input": {}},
]  # fmt: skip
RESPONSE: dict[str, Any] = NOBODY | USAGE | {"id": "msg_1", "stop_reason": "tool_use", "content": CONTENT}
CALLS = (
    ModelCall(
        id="toolu_1",
        name="get_weather",
        arguments={"location": "Oslo"},
        caller={"type": "code_execution_20250825", "tool_id": "srvtoolu_1"},
        toolset="box",
    ),
    ModelCall(id="toolu_2", name="unknown", arguments={}),
)


def read(message: Any) -> Any:
    return dialect.read_calls(message, lambda name: None)


def test_a_response_a_message_and_bare_blocks_are_read_alike() -> None:
    whole = read(RESPONSE)
    assert (whole.calls, whole.text, whole.message_id, whole.is_response) == (
        CALLS,
        "I will look. Now.",
        "msg_1",
        True,
    )
    message = read({"role": "assistant", "content": CONTENT})
    assert (message.calls, message.message_id, message.is_response) == (CALLS, None, False)
    assert read(CONTENT).calls == CALLS
    assert read(CONTENT[4:]).calls == CALLS
    assert read(CONTENT[4]).calls == CALLS[:1]


def test_what_the_package_reads_is_read_here_too() -> None:
    _, message = send(RESPONSE)
    assert read(message.to_dict(mode="json")).calls == CALLS
    assert read(message.model_dump(mode="json")).calls == CALLS


def test_a_message_without_calls_has_none() -> None:
    assert read({"role": "assistant", "content": "hello"}).text == "hello"
    assert read({"role": "assistant", "content": []}).calls == ()
    assert read([]).calls == ()


def test_a_paused_turn_is_not_ours_to_go_on_with() -> None:
    reading = read(RESPONSE | {"stop_reason": "pause_turn"})
    assert (reading.calls, reading.text) == ((), "I will look. Now.")


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_a_call_at_the_end_of_a_message_that_was_cut_is_not_run(reason: str) -> None:
    first, last = read(RESPONSE | {"stop_reason": reason}).calls
    assert first == CALLS[0]
    assert (last.id, last.arguments, last.raw_arguments) == ("toolu_2", None, "{}")
    assert "before the arguments were complete" in last.arguments_error
    said_last = read(RESPONSE | {"stop_reason": reason, "content": [*CONTENT, {"type": "text", "text": "so"}]})
    assert said_last.calls == CALLS


def test_arguments_that_a_client_kept_as_they_were_are_still_no_arguments() -> None:
    kept = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"INVALID_JSON": '{"a": '}}
    (call,) = read([kept]).calls
    assert (call.arguments, call.raw_arguments) == (None, '{"a": ')


def events(*pieces: str, ends: bool = True, reason: str = "tool_use") -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}
    return [
        {"type": "message_start", "message": NOBODY | USAGE | {"id": "msg_9", "stop_reason": None}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " see."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": block},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in pieces
        ),
        *([{"type": "content_block_stop", "index": 1}] if ends else []),
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


def test_a_stream_is_the_message_it_builds() -> None:
    reading = read(events('{"a": ', '"ü"}'))
    assert reading.calls == (ModelCall(id="toolu_1", name="t", arguments={"a": "ü"}),)
    assert (reading.text, reading.message_id, reading.is_response) == ("Let me see.", "msg_9", True)


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (events('{"a": b}'), "not JSON"),
        (events('{"a": 1', ends=False), "before the arguments were complete"),
        (events('{"a": 1}', reason="max_tokens"), "before the arguments were complete"),
    ],
)
def test_a_streamed_call_that_is_broken_or_cut_says_so(stream: list[dict[str, Any]], wrong: str) -> None:
    (call,) = read(stream).calls
    assert call.arguments is None
    assert wrong in call.arguments_error
    assert call.raw_arguments.startswith('{"a": ')


def test_the_package_builds_the_same_call_from_a_stream() -> None:
    stream = events('{"a": ', "1}")
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in stream)

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=body, headers={"content-type": "text/event-stream"})

    with httpx2.Client(transport=httpx2.MockTransport(respond)) as wire:
        client = anthropic.Anthropic(api_key="k", http_client=wire, max_retries=0)
        with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as streaming:
            message = streaming.get_final_message()
    built = read(message.to_dict(mode="json"))
    assert (built.calls, built.text) == (read(stream).calls, read(stream).text)


def test_what_is_no_message_is_refused_in_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        None,
        "hello",
        {},
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
        {"content": None},
        {"content": ["x"]},
        [{"role": "assistant"}],
        [{"type": "tool_use", "name": "t", "input": {}}],
        [{"type": "tool_use", "id": "toolu_1", "input": {}}],
    ]
    for message in cases:
        with subtests.test(message=message), pytest.raises(Unreadable, match=r"\.$"):
            read(message)


@UNHURRIED
@given(
    messages("type", "content", "tool_use", "id", "name", "input", "role", "assistant", "stop_reason", "message_start")
    | messages(
        "type", "content_block_start", "content_block_delta", "index", "content_block", "delta", "tool_use", "id"
    )
)
def test_whatever_comes_is_read_or_refused(message: Any) -> None:
    require_an_answer(dialect, message)


def test_text_alone_is_a_string_and_nothing_is_said_to_be_nothing() -> None:
    (mixed, empty, blank) = results_of(reply(Text("a"), Json({"b": 1})), reply(), reply(Text("")))
    assert mixed["content"] == 'a\n{"b": 1}'
    assert empty["content"] == blank["content"] == "(no output)"
    assert "is_error" not in mixed


def test_the_toolset_goes_back_with_the_result() -> None:
    (block,) = results_of(reply(Text("done"), toolset="computer"))
    assert block["toolset_name"] == "computer"


PDF = base64.b64encode(b"%PDF-1.4").decode()
SVG = Media(mime="image/svg+xml", data=PIXEL, name="a.svg", url="https://x/a.svg")


@pytest.mark.parametrize(
    ("media", "block"),
    [
        (Media(mime="image/jpg", data=PIXEL),
         {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PIXEL}}),
        (Media(mime="image/png", url="https://x/a.png"),
         {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}),
        (Media(mime="application/pdf", url="https://x/a.pdf", name="a"),
         {"type": "document", "title": "a", "source": {"type": "url", "url": "https://x/a.pdf"}}),
        (Media(mime="application/pdf", data=PDF),
         {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}),
        (Media(mime="text/markdown; charset=utf-8", data=base64.b64encode("# ü".encode()).decode(), name="a.md"),
         {"type": "document", "title": "a.md", "source": {"type": "text", "media_type": "text/plain", "data": "# ü"}}),
    ],
)  # fmt: skip
def test_files_the_model_can_see_are_blocks_of_their_own(media: Media, block: dict[str, Any]) -> None:
    (result,) = results_of(reply(Text("see"), media))
    assert result["content"] == [{"type": "text", "text": "see"}, block]


@pytest.mark.parametrize(
    ("media", "said"),
    [
        (SVG, "[image a.svg (image/svg+xml), available at https://x/a.svg]"),
        (Media(mime="image/png", url="file:///a.png"), "[image (image/png), available at file:///a.png]"),
        (Media(mime="text/plain", data="*** no base64"), "[file (text/plain)]"),
        (Media(mime="text/plain", data=base64.b64encode(b"\xff").decode()), "[file (text/plain)]"),
        (Media(mime="text/plain", url="https://x/a.txt"), "[file (text/plain), available at https://x/a.txt]"),
        (Media(mime="application/zip", data=PDF, name="a.zip"), "[file a.zip (application/zip)]"),
    ],
)
def test_other_files_leave_a_placeholder(media: Media, said: str) -> None:
    (result,) = results_of(reply(Text("see"), media))
    assert result["content"] == f"see\n{said}"


def test_an_error_is_text_alone_and_its_files_come_after_all_results() -> None:
    image = Media(mime="image/png", data=PIXEL)
    failed = reply(Text("half"), image, error=Failure("ExitCode:1", "it broke"))
    first, second, file = results_of(failed, reply(Text("fine"), id="toolu_2"))
    assert first == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "is_error": True,
        "content": "[ERROR:ExitCode:1] it broke\nhalf\n[image (image/png)]",
    }
    assert second["content"] == "fine"
    assert file == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def test_a_program_that_calls_gets_nothing_but_results() -> None:
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    failed = reply(Media(mime="image/png", data=PIXEL), error=Failure("Timeout", "late"), caller=caller)
    assert [block["type"] for block in results_of(failed)] == ["tool_result"]
    direct = reply(Media(mime="image/png", data=PIXEL), error=Failure("Timeout", "late"), caller={"type": "direct"})
    assert [block["type"] for block in results_of(direct)] == ["tool_result", "image"]


def test_found_tools_go_by_the_names_they_were_offered_under() -> None:
    (result,) = results_of(reply(ToolReference("a.b"), SearchResult(source="s", title="t", text="")))
    reference, empty = result["content"]
    (offered,) = dialect.export_tools([offer("a.b")], options()).tools
    assert reference == {"type": "tool_reference", "tool_name": offered["name"]}
    assert empty == {"type": "text", "text": "t (s)\n"}
