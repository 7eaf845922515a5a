"""generateContent: definitions, calls and results, checked with the provider's own package."""

import base64
import copy
import json
from typing import Any

import pytest
from google.genai import types
from hypothesis import given

from app.core.runs import Failure, Json, Media, ModelCall, Reply, Text, ToolOffer, Unreadable
from app.providers.dialects import Choice, Dialect, ExportOptions
from app.providers.gemini.dialect import dialect, openapi_dialect
from tests.providers.arbitrary import UNHURRIED, messages, require_an_answer
from tests.providers.genai_wire import wired
from tests.providers.neutral import PIXEL, WEATHER, offers_of
from tests.providers.recorded import options_of, recorded

SAID = {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}
AS_THEY_ARE = ("response", "args", "parametersJsonSchema")


def offer(name: str, schema: dict[str, Any] | None = None) -> ToolOffer:
    return ToolOffer(name=name, description=f"Does {name}.", schema=WEATHER if schema is None else schema)


def options(**asked: Any) -> ExportOptions:
    return ExportOptions(quirks=dialect.quirks, **asked)


def reply(*parts: Any, error: Failure | None = None, **call: Any) -> Reply:
    return Reply(call=ModelCall(**{"id": "fc-1", "name": "t"} | call), parts=parts, error=error)


def camel(value: Any, above: str = "") -> Any:
    """JSON of the package in camel case: it sends both, and base64 in the alphabet for addresses."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value.replace("-", "+").replace("_", "/") if above == "data" else value
    made = {}
    for name, inner in value.items():
        first, *rest = name.split("_")
        word = name if above == "properties" else first + "".join(part.capitalize() for part in rest)
        made[word] = inner if word in AS_THEY_ARE else camel(inner, word)
    return made


def send(answers: Any = SAID, **asked: Any) -> tuple[dict[str, Any], list[Any]]:
    """The body the package sends, and the responses it reads from what comes back: one, or a stream of them."""
    request: dict[str, Any] = {"model": "gemini-x", "contents": "x"} | asked
    with wired(answers) as (client, sent):
        if isinstance(answers, list):
            read = list(client.models.generate_content_stream(**request))
        else:
            read = [client.models.generate_content(**request)]
    return camel(sent[0]), [response.model_dump(mode="json") for response in read]


def contents_of(*replies: Reply) -> list[dict[str, Any]]:
    """The responses of the one content, which the package must know and send as they are."""
    (content,) = dialect.write_results(replies)
    typed = types.Content.model_validate(content)
    assert camel(typed.model_dump(mode="json", by_alias=True, exclude_none=True)) == content
    body, _ = send(contents=[content])
    assert body["contents"] == [content]
    assert content["role"] == "user"
    return [part["functionResponse"] for part in content["parts"]]


@recorded("definition", "gemini-openapi")
def test_older_definitions_are_as_recorded_and_as_the_package_sends_them(case: dict[str, Any]) -> None:
    exported = openapi_dialect.export_tools(offers_of(case["input"]["tools"]), options_of(case, openapi_dialect))
    assert exported.tools == case["expected"]
    assert exported.warnings == []
    body, _ = send(config={"tools": exported.tools})
    assert body["tools"] == exported.tools


@recorded("calls", "gemini")
def test_calls_are_read_as_recorded(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["input"])
    reading = dialect.read_calls(case["input"], lambda name: None)
    assert [call.view() for call in reading.calls] == case["expected"]
    assert case["input"] == before


def test_all_tools_are_declared_in_one_with_their_schemas_as_they_are() -> None:
    schema = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "additionalProperties": False}
    exported = dialect.export_tools([offer("one"), offer("two", schema)], options())
    assert exported.tools == [
        {
            "functionDeclarations": [
                {"name": "one", "description": "Does one.", "parametersJsonSchema": WEATHER},
                {"name": "two", "description": "Does two.", "parametersJsonSchema": schema},
            ]
        }
    ]
    assert exported.warnings == []
    types.Tool.model_validate(exported.tools[0])
    body, _ = send(config={"tools": exported.tools})
    assert body["tools"] == exported.tools


@pytest.mark.parametrize("one", [dialect, openapi_dialect])
def test_without_offers_there_is_no_tool(one: Dialect) -> None:
    assert one.export_tools([], options()).tools == []


def test_a_tool_without_arguments_says_nothing_of_them_in_the_older_form() -> None:
    exported = openapi_dialect.export_tools([offer("ping", {"type": "object", "properties": {}})], options())
    assert exported.tools == [{"functionDeclarations": [{"name": "ping", "description": "Does ping."}]}]
    assert exported.warnings == []


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"type": "object", "additionalProperties": {"type": "string"}}, "it takes arguments of any name"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "it holds itself"),
    ],
)
def test_what_the_older_form_cannot_say_of_a_schema_is_a_warning(schema: dict[str, Any], lost: str) -> None:
    exported = openapi_dialect.export_tools([offer("odd", schema)], options())
    assert exported.warnings == [f"The schema of odd is offered without a part of it: {lost}."]


def test_more_tools_than_can_be_declared_are_named_and_left_out() -> None:
    exported = dialect.export_tools([offer(f"t{number}") for number in range(514)], options())
    assert len(exported.tools[0]["functionDeclarations"]) == 512
    assert exported.warnings == ["At most 512 tools are supported, so these were left out: t512, t513."]


@pytest.mark.parametrize("one", [dialect, openapi_dialect])
def test_what_gemini_does_not_know_is_said(one: Dialect) -> None:
    asked = options(strict="on", cache="1h", defers=lambda name: True, namespace=("n", "d"), is_native=True)
    warnings = one.export_tools([offer("one")], asked).warnings
    assert len(warnings) == 5
    assert "VALIDATED" in warnings[0]
    assert one.export_tools([offer("one")], options(defers=lambda name: False)).warnings == []


def test_dots_in_names_stay_and_colons_do_not() -> None:
    (tool,) = dialect.export_tools([offer("a.b-c"), offer("a:b")], options()).tools
    first, second = tool["functionDeclarations"]
    assert first["name"] == "a.b-c"
    assert second["name"].startswith("a_b_")


def test_a_choice_is_a_mode_with_names(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Choice, Any]] = [
        (Choice(), None),
        (Choice(parallel=True), None),
        (Choice(mode="auto"), {"mode": "AUTO"}),
        (Choice(mode="none"), {"mode": "NONE"}),
        (Choice(mode="none", allowed=("a",)), {"mode": "NONE"}),
        (Choice(mode="required"), {"mode": "ANY"}),
        (Choice(mode="required", allowed=("a", "b")), {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}),
        (Choice(mode="tool", name="a"), {"mode": "ANY", "allowedFunctionNames": ["a"]}),
        (Choice(mode="auto", allowed=("a",)), {"mode": "VALIDATED", "allowedFunctionNames": ["a"]}),
        (Choice(allowed=("a",)), {"mode": "VALIDATED", "allowedFunctionNames": ["a"]}),
    ]
    for choice, config in cases:
        with subtests.test(choice=choice, config=config):
            warnings: list[str] = []
            tools = dialect.export_tools([offer("a"), offer("b")], options()).tools
            request = dialect.fill_request(tools, choice, dialect.quirks, warnings)
            assert request == {"tools": tools} | ({"toolConfig": {"functionCallingConfig": config}} if config else {})
            assert warnings == []
            if config:
                body, _ = send(config={"tools": tools, "tool_config": request["toolConfig"]})
                assert body["toolConfig"] == request["toolConfig"]


def test_the_older_form_differs_in_its_definitions_only() -> None:
    same = ("fill_request", "read_calls", "write_results", "quirks", "supports", "numbers_calls")
    assert [getattr(dialect, name) for name in same] == [getattr(openapi_dialect, name) for name in same]


def test_that_several_calls_cannot_be_forbidden_is_said_and_chosen_names_are_made_legal() -> None:
    warnings: list[str] = []
    request = dialect.fill_request([], Choice(mode="tool", name="a:b", parallel=False), dialect.quirks, warnings)
    assert warnings == ["Parallel calls cannot be disabled in this dialect."]
    assert request["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"][0].startswith("a_b_")


PARTS: list[dict[str, Any]] = [
    {"text": "thinking", "thought": True},
    {"text": "Let me "},
    {"text": "see."},
    {"functionCall": {"id": "fc-1", "name": "get_weather", "args": {"location": "Oslo"}}, "thoughtSignature": "YWJj"},
    {"functionCall": {"name": "ping"}},
]
CONTENT = {"role": "model", "parts": PARTS}
RESPONSE = {"candidates": [{"content": CONTENT, "finishReason": "STOP", "index": 0}], "responseId": "r-1"}
CALLS = (
    ModelCall(id="fc-1", name="get_weather", arguments={"location": "Oslo"}),
    ModelCall(id=None, name="ping", arguments={}),
)


def read(message: Any) -> Any:
    return dialect.read_calls(message, lambda name: None)


def test_a_response_a_content_and_parts_are_read_alike() -> None:
    whole = read(RESPONSE)
    assert (whole.calls, whole.text, whole.message_id, whole.is_response) == (CALLS, "Let me see.", "r-1", True)
    content = read(CONTENT)
    assert (content.calls, content.text, content.is_response) == (CALLS, "Let me see.", False)
    assert read(PARTS).calls == CALLS
    assert read(PARTS[3]).calls == CALLS[:1]
    assert read([part["functionCall"] for part in PARTS[3:]]).calls == CALLS


def test_what_the_package_reads_is_read_here_too_in_its_own_case() -> None:
    _, (response,) = send(RESPONSE)
    assert "function_call" in response["candidates"][0]["content"]["parts"][3]
    reading = read(response)
    assert (reading.calls, reading.text, reading.message_id) == (CALLS, "Let me see.", "r-1")
    assert read(response["candidates"][0]["content"]).calls == CALLS


def chunk(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}} | more], "responseId": "r-1"}


def test_the_chunks_of_a_stream_are_one_message() -> None:
    chunks = [chunk(*PARTS[:2]), chunk(PARTS[2]), chunk(PARTS[3]), chunk(PARTS[4], finishReason="STOP")]
    chunks.append({"usageMetadata": {"totalTokenCount": 9}})
    reading = read(chunks)
    assert (reading.calls, reading.text, reading.message_id) == (CALLS, "Let me see.", "r-1")
    _, responses = send(chunks)
    assert read(responses) == reading


def piece(path: str, goes_on: bool = False, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path} | value | ({"willContinue": True} if goes_on else {})


def streamed(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = [
        {"name": "t", "id": "fc-1", "willContinue": True},
        *({"partialArgs": [one], "willContinue": True} for one in pieces),
        {},
    ]
    return [chunk({"functionCall": call}) for call in calls]


def test_arguments_that_come_in_pieces_are_put_together() -> None:
    chunks = streamed(
        piece("$.city", goes_on=True, stringValue="New "),
        piece("$.city", goes_on=True, stringValue="Delhi"),
        piece("$.city", stringValue=""),
        piece("$.days", numberValue=2.0),
        piece("$.share", numberValue=0.5),
        piece("$.deep.list[0].is_on", boolValue=False),
        piece("$.deep.list[1]['odd name']", nullValue="NULL_VALUE"),
        piece("$.deep.list[0].name", stringValue="a"),
    )
    arguments = {
        "city": "New Delhi",
        "days": 2,
        "share": 0.5,
        "deep": {"list": [{"is_on": False, "name": "a"}, {"odd name": None}]},
    }
    assert read(chunks).calls == (ModelCall(id="fc-1", name="t", arguments=arguments),)
    _, responses = send(chunks)
    assert read(responses).calls == read(chunks).calls


def test_a_piece_without_a_value_only_ends_the_text_before_it() -> None:
    chunks = streamed(piece("$.a", goes_on=True, stringValue="x"), piece("$.a"))
    null = streamed(piece("$.a", goes_on=True, stringValue="x"), piece("$.a", nullValue="NULL_VALUE"))
    _, responses = send(chunks)

    assert [call.arguments for one in (chunks, responses, null) for call in read(one).calls] == [
        {"a": "x"},
        {"a": "x"},
        {"a": None},
    ]


def test_a_value_that_is_said_anew_replaces_the_one_before() -> None:
    (call,) = read(streamed(piece("$.a", stringValue="x"), piece("$.a", stringValue="y"))).calls
    assert call.arguments == {"a": "y"}


def test_a_call_after_one_in_pieces_is_another_one() -> None:
    chunks = [*streamed(piece("$.a", stringValue="x")), chunk(PARTS[3])]
    assert [call.name for call in read(chunks).calls] == ["t", "get_weather"]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("$.a[999999]", stringValue="x")],
        [piece("$.a", stringValue="x"), piece("$.a.b", stringValue="y")],
        [piece("$..a", stringValue="x")],
        [piece("$", stringValue="x")],
        [piece("a", stringValue="x")],
        [{"stringValue": "x"}],
        [piece("$.a", goes_on=True, stringValue="x")],
    ],
)
def test_pieces_that_do_not_fit_are_no_arguments(pieces: list[dict[str, Any]]) -> None:
    (call,) = read(streamed(*pieces)).calls
    assert call.arguments is None
    assert call.arguments_error.startswith("The pieces of the arguments do not fit together: ")
    assert json.loads(call.raw_arguments) == pieces


def test_a_call_whose_last_piece_never_came_is_not_run() -> None:
    (call,) = read(streamed(piece("$.a", stringValue="x"))[:-1]).calls
    assert "before the arguments were complete" in call.arguments_error
    assert json.loads(call.raw_arguments) == [piece("$.a", stringValue="x")]
    (call,) = read([{"functionCall": {"name": "t", "args": {"a": 1}, "willContinue": True}}]).calls
    assert json.loads(call.raw_arguments) == {"a": 1}


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_calls_that_the_provider_takes_back_are_not_run(reason: str) -> None:
    assert read([chunk(*PARTS, finishReason=reason)]).calls == ()
    assert read({"candidates": [{"finishReason": reason}]}).calls == ()


def test_only_the_first_candidate_is_the_answer() -> None:
    second = {"content": {"parts": [{"functionCall": {"name": "other"}}]}, "index": 1}
    assert read({"candidates": [*RESPONSE["candidates"], second]}).calls == CALLS
    assert read([chunk(PARTS[3]), {"candidates": [second]}]).calls == CALLS[:1]


def test_a_message_without_calls_has_none() -> None:
    assert read(SAID).text == "ok"
    assert read({"promptFeedback": {"blockReason": "SAFETY"}}).calls == ()
    assert read({"role": "model"}).calls == ()
    assert read([]).calls == ()


@pytest.mark.parametrize(
    "message",
    [
        None,
        "hello",
        {},
        {"error": {"code": 429, "message": "slow down"}},
        {"role": "user", "parts": [{"functionResponse": {"name": "t", "response": {}}}]},
        {"parts": ["x"]},
        [CONTENT],
        ["x"],
        [{"functionCall": {"args": {"a": 1}}}],
    ],
)
def test_what_is_no_message_is_refused_in_a_sentence(message: Any) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        read(message)


@UNHURRIED
@given(
    messages("candidates", "content", "parts", "functionCall", "name", "args", "id", "text", "finishReason", "role")
    | messages("functionCall", "partialArgs", "jsonPath", "$.a", "$.a[0].b", "stringValue", "willContinue", "name")
)
def test_whatever_comes_is_read_or_refused(message: Any) -> None:
    require_an_answer(dialect, message)


def test_all_results_are_parts_of_one_content_and_an_id_is_never_made_up() -> None:
    first, second = contents_of(
        reply(Text("12 C")), reply(error=Failure("ENOENT", "no such file"), id=None, name="read_file")
    )
    assert first == {"id": "fc-1", "name": "t", "response": {"output": "12 C"}}
    assert second == {"name": "read_file", "response": {"error": "[ERROR:ENOENT] no such file"}}
    assert dialect.write_results([]) == []


@pytest.mark.parametrize(
    ("parts", "response"),
    [
        ((), {"output": "(no output)"}),
        ((Text("a"), Json({"b": 1})), {"output": 'a\n{"b": 1}'}),
        ((Json({"degrees": 12}),), {"degrees": 12}),
        ((Json({"error": "none"}),), {"output": {"error": "none"}}),
        ((Json([1, 2]),), {"output": [1, 2]}),
        ((Media(mime="image/png", data=PIXEL, name="a.png"),), {"output": "[image a.png (image/png)]"}),
        ((Text("see"), Media(mime="image/gif", data=PIXEL)), {"output": "see\n[image (image/gif)]"}),
        ((Media(mime="image/png", url="https://x/a.png"),),
         {"output": "[image (image/png), available at https://x/a.png]"}),
    ],
)  # fmt: skip
def test_a_response_is_always_an_object(parts: tuple[Any, ...], response: dict[str, Any]) -> None:
    (written,) = contents_of(reply(*parts))
    assert written["response"] == response


def test_files_go_along_with_the_response_even_of_a_call_that_failed() -> None:
    note = base64.b64encode(b"# note").decode()
    (written,) = contents_of(
        reply(
            Text("half"),
            Media(mime="image/png", data=PIXEL, name="a"),
            Media(mime="text/markdown", data=note, name="a"),
            Media(mime="application/pdf", data=note),
            Media(mime="audio/wav", data=note),
            error=Failure("Timeout", "late"),
        )
    )
    assert written["response"] == {"error": "[ERROR:Timeout] late\nhalf\n[file (audio/wav)]"}
    assert written["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PIXEL, "displayName": "a"}},
        {"inlineData": {"mimeType": "text/plain", "data": note}},
        {"inlineData": {"mimeType": "application/pdf", "data": note}},
    ]
