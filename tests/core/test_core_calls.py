import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.core.calls import Call, CallRequest, Status, Waiting
from app.core.util.json_codec import dumps

EMPTY = "call_id message_id parent waiting arguments input result error metadata sandbox"
NOTHING: dict[str, Any] = dict.fromkeys([*EMPTY.split(), "started_at", "ended_at", "duration_ms"])


def seen(call: Call) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(dumps(call.view()))
    return view


def test_a_fresh_call_is_pending_in_the_default_session() -> None:
    assert seen(Call("call_1", "ada", "toy", 0)) == NOTHING | {
        "id": "call_1",
        "principal": "ada",
        "tool": "toy",
        "session": "default",
        "status": "pending",
        "created_at": "1970-01-01T00:00:00.000000Z",
    }


def test_a_call_shows_all_but_what_is_for_its_own_service() -> None:
    call = Call(
        id="call_1",
        principal="ada",
        tool="toy",
        created_at=1,
        session="blue",
        arguments='{"a":1}',
        input="text",
        call_id="c1",
        message_id="m1",
        parent="call_0",
        metadata='{"b":2}',
        options='{"timeout":5}',
        status=Status.ERROR,
        waiting=Waiting.GATE,
        result='{"output":"out"}',
        error='{"code":"Timeout"}',
        sandbox='{"walls":true}',
        effective='{"a":2}',
        attempt=3,
        started_at=2,
        ended_at=3,
        duration_us=1500,
        output_dropped=4,
    )

    assert seen(call) == {
        "id": "call_1",
        "tool": "toy",
        "session": "blue",
        "call_id": "c1",
        "message_id": "m1",
        "parent": "call_0",
        "status": "error",
        "waiting": "gate",
        "arguments": {"a": 1},
        "input": "text",
        "result": {"output": "out"},
        "error": {"code": "Timeout"},
        "metadata": {"b": 2},
        "principal": "ada",
        "sandbox": {"walls": True},
        "created_at": "1970-01-01T00:00:00.000001Z",
        "started_at": "1970-01-01T00:00:00.000002Z",
        "ended_at": "1970-01-01T00:00:00.000003Z",
        "duration_ms": 1.5,
    }


def test_only_completed_and_error_are_ends() -> None:
    assert [status for status in Status if status.is_final] == [Status.COMPLETED, Status.ERROR]
    assert [Call("call_1", "ada", "toy", 0, status=status).is_final for status in Status] == [False, False, True, True]


def test_a_bad_envelope_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"tool": ""},
        {"tool": "x" * 257},
        {"tool": "toy", "colour": "red"},
        {"tool": "toy", "arguments": [1]},
        {"tool": "toy", "session": ""},
        {"tool": "toy", "timeout": 0},
        {"tool": "toy", "timeout": 86_401},
        {"tool": "toy", "ask_timeout": 604_801},
        {"tool": "toy", "on_ask": "shout"},
    ]
    for body in cases:
        with subtests.test(body=body), pytest.raises(ValidationError):
            CallRequest.model_validate(body)


def test_a_request_needs_only_a_tool() -> None:
    asked = CallRequest(tool="toy")

    assert asked.model_dump(exclude_defaults=True) == {"tool": "toy"}
