import json
from typing import Any

import pytest

from app.core.calls import Call, Status
from app.core.events import FINAL, VIEWS, Event, EventType, encode, encode_passing
from app.core.util.json_codec import dumps

WHO = {"tool": "toy", "call_id": "c1", "message_id": "m1"}
END = {"result": {"output": "out"}, "error": {"code": "Timeout"}, "duration_ms": 1.5}
SHOWN: dict[EventType, dict[str, Any] | None] = {
    EventType.CALL_PENDING: WHO | {"parent": "call_0", "arguments": {"n": 2**70}, "input": "text"},
    EventType.CALL_RUNNING: WHO,
    EventType.CALL_COMPLETED: WHO | END,
    EventType.CALL_ERROR: WHO | END,
}
OWN = {"title": "half"}


@pytest.fixture
def call() -> Call:
    return Call(
        id="call_1",
        principal="ada",
        tool="toy",
        created_at=0,
        session="blue",
        arguments=json.dumps({"n": 2**70}),
        input="text",
        call_id="c1",
        message_id="m1",
        parent="call_0",
        status=Status.ERROR,
        result='{"output":"out"}',
        error='{"code":"Timeout"}',
        duration_us=1500,
    )


@pytest.mark.parametrize("type", EventType)
def test_an_event_shows_its_own_data_or_its_part_of_the_call(type: EventType, call: Call) -> None:
    event = Event(7, type, "call_1", "ada", "blue", 1_000_000, json.dumps(OWN))

    assert json.loads(dumps(event.view(call))) == {
        "seq": 7,
        "type": type.value,
        "call": "call_1",
        "session": "blue",
        "at": "1970-01-01T00:00:01.000000Z",
        "data": SHOWN.get(type, OWN),
    }


def test_an_event_that_belongs_to_no_call_has_only_its_own_data() -> None:
    event = Event(1, EventType.PLAN_UPDATED, None, "ada", "blue", 0)

    assert event.view(None) == {
        "seq": 1,
        "type": "plan.updated",
        "call": None,
        "session": "blue",
        "at": "1970-01-01T00:00:00.000000Z",
        "data": None,
    }


def test_exactly_the_status_events_are_views_and_the_ends_are_final() -> None:
    assert set(SHOWN) == VIEWS
    assert {EventType(f"call.{status}") for status in Status if status.is_final} == FINAL


def test_a_stored_event_is_a_frame_with_its_sequence_as_id(call: Call) -> None:
    view = Event(7, EventType.CALL_RUNNING, "call_1", "ada", "blue", 0).view(call)

    assert encode(view) == b"id: 7\nevent: call.running\ndata: " + dumps(view) + b"\n\n"


def test_text_with_line_breaks_stays_one_data_line() -> None:
    view = Event(7, EventType.CALL_PROGRESS, "call_1", "ada", "blue", 0, dumps({"title": "a\nb\r\nc"}).decode())

    frame = encode(view.view(None))

    assert frame.count(b"\n") == 4
    assert b"\r" not in frame


def test_a_passing_frame_has_no_id_so_that_a_client_resumes_from_before_it() -> None:
    frame = encode_passing(EventType.CALL_OUTPUT, {"offset": 0, "text": "a\nb"})

    assert frame == b'event: call.output\ndata: {"offset":0,"text":"a\\nb"}\n\n'
