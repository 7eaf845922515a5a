"""Gemini's Interactions: definitions, calls and results, checked with the provider's own package."""

from typing import Any

import pytest
from google.genai.interactions import FunctionParam, FunctionResultStepParam
from hypothesis import given

from app.core.runs import Failure, Json, Media, ModelCall, ParsedMessage, Reply, Text, ToolOffer, Unreadable
from app.providers.dialects import Choice, ExportOptions
from app.providers.gemini.interactions import dialect
from tests.providers.arbitrary import UNHURRIED, messages, require_an_answer
from tests.providers.genai_wire import wired
from tests.providers.neutral import PIXEL, WEATHER
from tests.providers.typed_dicts import require

CALL = {"type": "function_call", "id": "fc_1", "name": "get_weather", "arguments": {"city": "Vienna"}}
DONE = {"id": "int_1", "status": "requires_action", "model": "gemini-x", "steps": [CALL]}


def offer(name: str) -> ToolOffer:
    return ToolOffer(name=name, description=f"Does {name}.", schema=WEATHER)


def options(**asked: Any) -> ExportOptions:
    return ExportOptions(quirks=dialect.quirks, **asked)


def reply(*parts: Any, error: Failure | None = None) -> Reply:
    return Reply(call=ModelCall(id="fc_1", name="get_weather"), parts=parts, error=error)


def read(message: Any) -> ParsedMessage:
    return dialect.read_calls(message, lambda name: None)


def send(answers: Any = DONE, **asked: Any) -> tuple[dict[str, Any], list[Any]]:
    """The body the package sends, and what it reads from what comes back: an interaction, or the events of one."""
    is_stream = isinstance(answers, list)
    with wired(answers) as (client, sent):
        interactions: Any = client.interactions
        got = interactions.create(**{"model": "gemini-x", "input": "x", "stream": is_stream} | asked)
        found = [one.model_dump(mode="json", exclude_none=True) for one in (got if is_stream else [got])]
    return sent[0], found


def results_of(*replies: Reply) -> list[dict[str, Any]]:
    """The steps, which the package must know and send as they are."""
    steps = dialect.write_results(replies)
    for step in steps:  # of an object the package does not say what is in it, and sends all of it
        is_object = isinstance(step["result"], dict)
        require(FunctionResultStepParam, step | {"result": ""} if is_object else step)
    body, _ = send(input=steps, previous_interaction_id="int_0")
    assert body["input"] == steps
    return steps


def test_definitions_are_flat_and_sent_as_they_are() -> None:
    made = dialect.export_tools([offer("get_weather"), offer("read_file")], options())

    assert made.tools[0] == {
        "type": "function",
        "name": "get_weather",
        "description": "Does get_weather.",
        "parameters": WEATHER,
    }
    for tool in made.tools:
        require(FunctionParam, tool)
    body, _ = send(tools=made.tools)
    assert (body["tools"], made.warnings) == (made.tools, [])


def test_wishes_that_cannot_be_met_are_said() -> None:
    asked = options(strict="on", cache="1h", defers=lambda name: True, namespace=("n", "d"), is_native=True)

    assert len(dialect.export_tools([offer("one")], asked).warnings) == 5


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(mode="auto"), "auto"),
        (Choice(mode="required"), "any"),
        (Choice(mode="none"), "none"),
        (Choice(mode="tool", name="one"), {"allowed_tools": {"mode": "any", "tools": ["one"]}}),
        (Choice(mode="required", allowed=("one",)), {"allowed_tools": {"mode": "any", "tools": ["one"]}}),
        (Choice(allowed=("one", "two")), {"allowed_tools": {"mode": "validated", "tools": ["one", "two"]}}),
    ],
)
def test_the_choice_stands_in_the_configuration(choice: Choice, said: Any) -> None:
    warnings: list[str] = []

    filled = dialect.fill_request([], choice, dialect.quirks, warnings)

    assert (filled["generation_config"], warnings) == ({"tool_choice": said}, [])
    body, _ = send(generation_config=filled["generation_config"])
    assert body["generation_config"] == filled["generation_config"]


def test_without_a_choice_nothing_is_said_of_it_and_what_cannot_be_is() -> None:
    warnings: list[str] = []

    assert dialect.fill_request([], Choice(parallel=False), dialect.quirks, warnings) == {"tools": []}
    assert warnings == ["Parallel calls cannot be disabled in this dialect."]


def test_calls_are_steps_of_an_interaction_as_it_comes_and_as_the_package_gives_it() -> None:
    thought = {"type": "thought", "signature": "c2lnbmVk"}
    output = {"type": "model_output", "content": [{"type": "text", "text": "Let me see."}]}
    second = CALL | {"id": "fc_2", "arguments": {}}
    whole = DONE | {"steps": [thought, output, CALL, second]}
    _, [typed] = send(whole)

    for message in (whole, typed):
        reading = read(message)
        assert [(call.id, call.name, call.arguments) for call in reading.calls] == [
            ("fc_1", "get_weather", {"city": "Vienna"}),
            ("fc_2", "get_weather", {}),
        ]
        assert (reading.text, reading.message_id, reading.is_response) == ("Let me see.", "int_1", True)
    assert read([CALL, second]).calls == read(whole).calls
    assert read(CALL).calls == read(whole).calls[:1]


def test_what_has_its_result_already_is_not_called_again() -> None:
    earlier = [CALL, {"type": "function_result", "call_id": "fc_1", "result": "rain"}]

    assert [call.id for call in read(DONE | {"steps": [*earlier, CALL | {"id": "fc_2"}]}).calls] == ["fc_2"]
    assert read(DONE | {"steps": earlier}).calls == ()


def test_a_kind_of_step_that_is_not_known_is_left_alone() -> None:
    assert [call.id for call in read([{"type": "hologram"}, CALL]).calls] == ["fc_1"]
    assert read(DONE | {"steps": [{"type": "hologram"}]}).calls == read([]).calls == ()


def test_an_interaction_that_did_not_finish_runs_nothing() -> None:
    [call] = read(DONE | {"status": "incomplete"}).calls

    assert call.arguments is None
    assert "nothing was run" in str(call.arguments_error)
    assert read({"id": "int_1", "status": "completed"}) == ParsedMessage(message_id="int_1", is_response=True)


def streamed(*pieces: str, is_stopped: bool = True) -> list[dict[str, Any]]:
    bare = CALL | {"arguments": {}}
    deltas = [{"type": "arguments_delta", "arguments": piece} for piece in pieces]
    events: list[dict[str, Any]] = [
        {"event_type": "interaction.created", "interaction": {"id": "int_1", "status": "in_progress"}},
        {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "Let me "}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "see."}},
        {"event_type": "step.stop", "index": 0},
        {"event_type": "step.start", "index": 1, "step": bare},
        *({"event_type": "step.delta", "index": 1, "delta": delta} for delta in deltas),
    ]
    stop = {"event_type": "step.stop", "index": 1}
    end = {"event_type": "interaction.completed", "interaction": {"id": "int_1", "status": "requires_action"}}
    return [*events, *([stop] if is_stopped else []), end]


def test_a_stream_is_put_together_also_as_the_package_gives_it() -> None:
    events = streamed('{"city": "Vi', 'enna"}')
    _, typed = send(events)

    for message in (events, typed):
        reading = read(message)
        assert [(call.id, call.arguments) for call in reading.calls] == [("fc_1", {"city": "Vienna"})]
        assert (reading.text, reading.message_id) == ("Let me see.", "int_1")
    assert [call.arguments for call in read(streamed()).calls] == [{}]


def test_a_stream_of_very_many_pieces_and_steps_is_read_in_one_go() -> None:
    """Were each piece to cost all before it, this would take minutes."""
    letters = "x" * 300_000
    pieces = ['{"city": "', *letters, '"}']
    starts = [{"event_type": "step.start", "index": number, "step": CALL} for number in range(2, 100_000)]

    reading = read([*streamed(*pieces), *starts])

    assert reading.calls[0].arguments == {"city": letters}
    assert len(reading.calls) == 99_999
    assert all(call.arguments is None for call in reading.calls[1:])


def test_a_call_that_was_not_finished_is_told_and_not_run() -> None:
    [cut] = read(streamed('{"city": "Vi', is_stopped=False)).calls
    [broken] = read(streamed('{"city": "Vi')).calls

    assert (cut.arguments, cut.raw_arguments) == (None, '{"city": "Vi')
    assert "before the arguments were complete" in str(cut.arguments_error)
    assert "not JSON" in str(broken.arguments_error)


def test_anything_else_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        *("text", 5, None, {}, {"steps": [5]}, [{"name": "x"}], {"type": "function_call", "id": "a"}, [DONE, 5]),
        *({"type": "message", "content": []}, [{"type": "tool_use", "id": "a", "name": "x", "input": {}}]),
    ]
    for message in cases:
        with subtests.test(message=message), pytest.raises(Unreadable):
            read(message)


def test_results_are_steps_of_their_own() -> None:
    text, thing, failed, nothing = results_of(
        reply(Text("rain")),
        reply(Json({"sky": "grey"})),
        reply(error=Failure(code="ENOENT", message="There is no such file.")),
        reply(),
    )

    assert text == {"type": "function_result", "call_id": "fc_1", "name": "get_weather", "result": "rain"}
    assert thing["result"] == {"sky": "grey"}
    assert (failed["is_error"], failed["result"]) == (True, "[ERROR:ENOENT] There is no such file.")
    assert nothing["result"] == "(no output)"


def test_files_go_along_where_they_can_and_are_named_where_not() -> None:
    picture = Media(mime="image/png", data=PIXEL, name="a.png")
    paper = Media(mime="application/pdf", data=PIXEL, name="a.pdf")
    sound = Media(mime="audio/flac", data=PIXEL, name="a.flac")

    [step] = results_of(reply(Text("seen"), picture, paper, sound))

    assert step["result"] == [
        {"type": "text", "text": "seen\n[file a.flac (audio/flac)]"},
        {"type": "image", "data": PIXEL, "mime_type": "image/png"},
        {"type": "document", "data": PIXEL, "mime_type": "application/pdf"},
    ]


@given(messages("steps", "type", "function_call", "arguments", "id", "name", "event_type", "step.start", "step.delta"))
@UNHURRIED
def test_whatever_comes_is_read_or_refused(message: Any) -> None:
    require_an_answer(dialect, message)
