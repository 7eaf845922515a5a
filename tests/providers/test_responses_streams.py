"""Streams of the Responses dialect: whatever of a response was told is put together."""

import copy
from typing import Any

import pytest

from app.core.runs import ModelCall, ParsedMessage
from app.providers.dialects import Wire
from app.providers.responses.dialect import dialect
from tests.providers.responses import nobody

BEGUN = {"type": "function_call", "id": "fc", "call_id": "c", "name": "a", "arguments": "", "status": "in_progress"}
WHOLE = BEGUN | {"arguments": '{"x":1}', "status": "completed"}
CUSTOM: Wire = {"type": "custom_tool_call", "id": "ct", "call_id": "d", "name": "note", "input": ""}
CREATED = {"type": "response.created", "response": {"id": "resp", "status": "in_progress", "output": []}}
CALL = ModelCall(id="c", name="a", arguments={"x": 1})


def added(item: Wire, index: Any = 0) -> Wire:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(item: Wire, index: Any = 0) -> Wire:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def arguments(delta: str, **where: Any) -> Wire:
    return {"type": "response.function_call_arguments.delta", "delta": delta} | where


def ended(kind: str = "completed", output: Any = ()) -> Wire:
    return {"type": f"response.{kind}", "response": {"id": "resp", "status": kind, "output": list(output)}}


def read(*events: Wire) -> ParsedMessage:
    before = copy.deepcopy(events)
    reading = dialect.read_calls(list(events), nobody)
    assert events == before
    return reading


def test_the_response_of_the_last_event_counts() -> None:
    reading = read(CREATED, added(BEGUN), ended(output=[{"type": "reasoning", "id": "rs"}, WHOLE]))

    assert reading == ParsedMessage(
        calls=(CALL,), message_id="resp", items=({"type": "reasoning", "id": "rs"}, WHOLE), is_response=True
    )


def test_the_last_event_alone_is_enough() -> None:
    assert dialect.read_calls(ended(output=[WHOLE]), nobody).calls == (CALL,)


def test_items_that_are_done_stand_for_a_response_that_tells_none() -> None:
    reading = read(CREATED, added(BEGUN, 1), done(WHOLE, 1), done({"type": "reasoning", "id": "rs"}, 0), ended())

    assert reading == ParsedMessage(
        calls=(CALL,), message_id="resp", items=({"type": "reasoning", "id": "rs"}, WHOLE), is_response=True
    )


def test_a_stream_without_its_end_has_the_items_that_are_done() -> None:
    reading = read(CREATED, done(WHOLE), done(CUSTOM | {"input": "hi"}, 1))

    assert reading.calls == (CALL, ModelCall(id="d", name="note", type="custom", input="hi"))
    assert (reading.message_id, reading.is_response) == ("resp", False)


@pytest.mark.parametrize("where", [{"output_index": 0}, {"item_id": "fc"}, {"item_id": "fc", "output_index": 0}])
def test_pieces_are_put_together_by_place_or_id(where: dict[str, Any]) -> None:
    other = added(BEGUN | {"id": "fd", "call_id": "d"}, 1)
    pieces = [arguments('{"x"', **where), arguments("{}", item_id="fd"), arguments(":1}", **where)]

    reading = read(added(BEGUN), other, *pieces, ended())

    assert reading.calls == (CALL, ModelCall(id="d", name="a", arguments={}))


def test_a_part_that_is_told_whole_counts_more_than_its_pieces() -> None:
    told = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"x":1}'}
    text = {"type": "response.custom_tool_call_input.done", "item_id": "ct", "input": "hi"}

    reading = read(added(BEGUN), arguments('{"x', output_index=0), told, added(CUSTOM, 1), text)

    assert reading.calls == (CALL, ModelCall(id="d", name="note", type="custom", input="hi"))


@pytest.mark.parametrize("end", [[], [ended("incomplete")], [ended("failed")]])
def test_what_was_begun_and_not_finished_is_not_run(end: list[Wire]) -> None:
    half = {"type": "response.custom_tool_call_input.delta", "output_index": 1, "delta": "ha"}

    reading = read(added(BEGUN), arguments('{"x":1', output_index=0), added(CUSTOM, 1), half, *end)

    assert [(call.id, call.arguments, call.input, call.raw_arguments) for call in reading.calls] == [
        ("c", None, None, '{"x":1'),
        ("d", None, None, "ha"),
    ]
    assert all("ended before" in (call.arguments_error or "") for call in reading.calls)


def test_what_was_whole_when_the_response_was_cut_is_run() -> None:
    cut = BEGUN | {"call_id": "d", "arguments": '{"x', "status": "incomplete"}

    reading = read(done(WHOLE), done(cut, 1), ended("incomplete", [WHOLE, cut]))

    assert reading.calls[0] == CALL
    assert reading.calls[1].raw_arguments == '{"x'


def test_calls_that_share_a_place_are_told_apart_and_ids_may_change_on_the_way() -> None:
    reading = read(added(BEGUN), done(WHOLE | {"id": "other"}), done(WHOLE | {"call_id": "d"}), ended())

    assert [call.id for call in reading.calls] == ["c", "d"]


def test_late_pieces_do_not_change_what_is_done() -> None:
    assert read(done(WHOLE), added(BEGUN), arguments("more", output_index=0), ended()).calls == (CALL,)


def test_what_the_model_said_is_put_together_too() -> None:
    message = {"type": "message", "id": "msg", "role": "assistant", "content": []}
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": text} for text in ("Let me ", "see.")]

    assert read(added(message), *deltas, ended()).text == "Let me see."
