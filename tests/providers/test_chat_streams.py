"""Streams of Chat Completions, by the book and as some write them."""

from typing import Any

import pytest

from app.core.runs import ModelCall, Unreadable
from app.providers.openai_chat import dialect
from tests.providers.chat_cases import OFFER, PATCH, QUIET, read

OSLO = ModelCall(id="call_a", name="get_weather", arguments={"location": "Oslo"})
ROME = ModelCall(id="call_b", name="get_weather", arguments={"location": "Rome"})


def chunk(*fragments: Any, finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    inner = delta | ({"tool_calls": list(fragments)} if fragments else {})
    return {"id": "chatcmpl-1", "choices": [{"index": index, "delta": inner, "finish_reason": finish}]}


def piece(arguments: Any = None, name: str | None = None, **keys: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return keys | {"function": {key: value for key, value in function.items() if value is not None}}


END = chunk(finish="tool_calls")
LAST = [{"choices": [{"index": 0, "delta": None}]}, {"choices": [], "usage": {}}, "[DONE]"]
FIRST = piece("", "get_weather", index=0, id="call_a", type="function")


def test_one_call_is_put_together_however_it_is_streamed(subtests: pytest.Subtests) -> None:
    cases: list[list[Any]] = [
        [chunk(FIRST), chunk(piece('{"location":', index=0)), chunk(piece('"Oslo"}', index=0)), END],  # by the book
        [
            chunk(piece("", "get_weather", id="call_a")),
            chunk(piece('{"location":')),
            chunk(piece('"Oslo"}')),
            END,
        ],  # no index
        [
            chunk(piece('{"location":', "get_weather", index=0, id="call_a")),
            chunk(piece('"Oslo"}', "get_weather", index=0, id="call_a")),
            END,
        ],  # id and name again and again
        [
            chunk(piece('{"location":', "get_weather", id="call_a")),
            chunk(piece('"Oslo"}', "get_weather", id="call_a")),
            END,
        ],  # id and name again and again, no index
        [chunk(FIRST), chunk(piece('{"location":"Oslo"}', "", index=0, id="")), END],  # empty id and name later
        [chunk(FIRST), chunk(piece('{"location":"Oslo"}', index=0, id="null")), END],  # id null as a word
        [
            chunk(piece('{"location":"Oslo"}', "get_weather", index=0, id="call_a"), finish="tool_calls")
        ],  # whole in one chunk
        [chunk(piece({"location": "Oslo"}, "get_weather", index=0, id="call_a"), finish="stop")],  # an object
        [chunk(piece('{"location":"Oslo"}', "get_weather", index=0, id="call_a"), finish="")],  # finish is empty
        [{"data": one} for one in [chunk(piece('{"location":"Oslo"}', "get_weather", id="call_a")), END]],  # in events
        [chunk(FIRST), chunk(piece('{"location":"Oslo"}', index=0)), END, *LAST],  # usage and end
        [chunk(FIRST, index=1), chunk(piece('{"location":"Oslo"}', index=0), index=1), END],  # another choice ends
        [chunk(FIRST), chunk(piece('{"location":"Oslo"}', index=0))],  # no end, but the call is whole
    ]
    for chunks in cases:
        with subtests.test(chunks=chunks):
            assert read(dialect, chunks, OFFER).calls == (OSLO,)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                chunk(piece('{"location":"Oslo"}', "get_weather", index=0, id="call_a")),
                chunk(piece('{"location":"Rome"}', "get_weather", index=0, id="call_b")),
                END,
            ],
            id="a new id under an old index",
        ),
        pytest.param(
            [
                chunk(piece('{"location":', "get_weather", index=0, id="call_a")),
                chunk(piece('"Oslo"}', index=0)),
                chunk(piece('{"location":', "get_weather", index=0, id="call_b")),
                chunk(piece('"Rome"}', index=0)),
                END,
            ],
            id="a new id under an old index, in pieces",
        ),
        pytest.param(
            [
                chunk(
                    piece('{"location":"Oslo"}', "get_weather", id="call_a"),
                    piece('{"location":"Rome"}', "get_weather", id="call_b"),
                    finish="tool_calls",
                )
            ],
            id="two in one chunk, no index",
        ),
        pytest.param(
            [
                chunk(piece('{"location":', "get_weather", id="call_a")),
                chunk(piece('{"location":', "get_weather", id="call_b")),
                chunk(piece('"Oslo"}', id="call_a"), piece('"Rome"}', id="call_b")),
                END,
            ],
            id="interleaved by id, no index",
        ),
        pytest.param(
            [
                chunk(piece('{"location":"Oslo"}', "get_weather", index=0, id="call_a")),
                chunk(piece('{"location":"Rome"}', "get_weather", index=0, id="call_b"), index=1),
                END,
            ],
            id="over two choices",
        ),
    ],
)
def test_two_calls_stay_two_however_they_are_streamed(chunks: list[Any]) -> None:
    assert read(dialect, chunks, OFFER).calls == (OSLO, ROME)


@pytest.mark.parametrize("keys", [{}, {"index": 0}])
def test_calls_with_no_ids_at_all_are_told_apart_where_one_has_said_all(keys: dict[str, Any]) -> None:
    chunks = [
        chunk(piece('{"location":{"x":"}"},', "get_weather", **keys)),
        chunk(piece('"a":{}}', "get_weather", **keys)),
        chunk(piece('{"location":"Rome"}', "get_weather", **keys)),
        chunk(piece({}, "list_sessions", **keys)),
        END,
    ]

    assert read(dialect, chunks, OFFER, QUIET).calls == (
        ModelCall(id=None, name="get_weather", arguments={"location": {"x": "}"}, "a": {}}),
        ModelCall(id=None, name="get_weather", arguments={"location": "Rome"}),
        ModelCall(id=None, name="list_sessions", arguments={}),
    )


def test_a_brace_in_a_text_does_not_end_a_call() -> None:
    text = '{"code": "a \\"}\\" {", "more": [1]}'
    chunks = [chunk(piece(letter, "get_weather", index=0)) for letter in text]

    calls = read(dialect, [*chunks, END], OFFER).calls

    assert calls == (ModelCall(id=None, name="get_weather", arguments={"code": 'a "}" {', "more": [1]}),)


def test_the_fragments_of_a_custom_call_are_joined() -> None:
    chunks = [
        chunk({"index": 0, "id": "call_p", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH[:9]}}),
        chunk({"index": 0, "custom": {"input": PATCH[9:]}}),
        END,
    ]

    assert read(dialect, chunks).calls == (ModelCall(id="call_p", name="apply_patch", type="custom", input=PATCH),)


def test_the_old_way_to_call_a_function_is_streamed_too() -> None:
    chunks = [
        chunk(function_call={"name": "get_weather", "arguments": ""}),
        chunk(function_call={"arguments": '{"location":'}),
        chunk(function_call={"arguments": '"Oslo"}'}),
        chunk(finish="function_call"),
    ]

    assert read(dialect, chunks).calls == (ModelCall(id=None, name="get_weather", arguments={"location": "Oslo"}),)


def test_text_and_id_are_those_of_the_whole() -> None:
    chunks = [chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo."), chunk(finish="stop")]

    reading = read(dialect, chunks)

    assert (reading.text, reading.message_id, reading.is_response) == ("Hello.", "chatcmpl-1", True)
    assert reading.calls == ()


@pytest.mark.parametrize("end", [[chunk(finish="length")], [chunk(finish="error")], []])
def test_a_call_is_not_run_when_the_stream_ended_in_the_middle_of_it(end: list[Any]) -> None:
    chunks = [
        chunk(piece('{"location":"Oslo"}', "get_weather", index=0, id="call_a")),
        chunk(piece('{"location":"R', "get_weather", index=1, id="call_b")),
    ]

    calls = read(dialect, chunks + end, OFFER).calls

    assert calls[0] == OSLO
    assert (calls[1].id, calls[1].arguments, calls[1].raw_arguments) == ("call_b", None, '{"location":"R')
    assert "ended before" in str(calls[1].arguments_error)


def test_broken_arguments_of_a_finished_stream_are_the_models_mistake() -> None:
    call = read(dialect, [chunk(piece("{oops}", "get_weather", index=0, id="call_a")), END]).calls[0]

    assert "not JSON" in str(call.arguments_error)


def test_one_chunk_alone_is_a_stream() -> None:
    assert read(dialect, chunk(piece("{}", "list_sessions", id="a"), finish="stop")).calls[0].name == "list_sessions"


@pytest.mark.parametrize("chunks", [[{"choices": [{"delta": {"tool_calls": [1]}}]}], [{"choices": [{"delta": {}}, 1]}]])
def test_fragments_that_are_none_are_refused(chunks: list[Any]) -> None:
    with pytest.raises(Unreadable):
        read(dialect, chunks)
