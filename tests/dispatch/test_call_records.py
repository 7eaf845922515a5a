"""A request becomes a call, a call can become its request again, and an end can be read as an outcome."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.calls import Call, CallRequest, Status
from app.core.errors import CallError
from app.core.results import Attachment, Result
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch import call_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.builds(
    CallRequest,
    tool=TEXT,
    arguments=st.none() | st.dictionaries(TEXT, VALUES, max_size=4),
    input=st.none() | TEXT,
    call_id=st.none() | TEXT,
    message_id=st.none() | TEXT,
    timeout=st.none() | st.floats(0.001, 86_400),
    ask_timeout=st.none() | st.floats(0.001, 604_800),
    on_ask=st.sampled_from(["wait", "deny"]),
    metadata=st.none() | st.dictionaries(TEXT, VALUES, max_size=2),
)


@given(REQUESTS)
def test_a_resumed_call_knows_all_it_needs_of_its_request(request: CallRequest) -> None:
    call = call_records.of_request("call_1", 5, request, Session("ann", "s1"), "call_0", None)

    assert call_records.to_request(call, call_records.originals_of(request)) == request.model_copy(
        update={"metadata": None}
    )
    assert (call.principal, call.session, call.parent, call.created_at) == ("ann", "s1", "call_0", 5)
    assert call.metadata is None or json.loads(call.metadata) == request.metadata


def test_a_plain_request_costs_no_options() -> None:
    call = call_records.of_request("call_1", 5, CallRequest(tool="echo"), Session("ann", "s1"), None, None)

    assert (call.options, call.arguments, call.metadata, call.status) == (None, None, None, Status.PENDING)


def ended(result: Result | None, error: dict[str, Any] | None) -> Call:
    call = Call("call_1", "ann", "echo", 5)
    call.result = None if result is None else dumps(result).decode()
    call.error = None if error is None else dumps(error).decode()
    return call


def test_the_outcome_of_a_completed_call_is_its_result() -> None:
    result = Result("out", "title", {"a": 1}, (Attachment("image/png", "data:,", "a.png"),), [1, {"b": None}])

    assert call_records.outcome(ended(result, None)) == result
    assert call_records.outcome(ended(None, None)) == Result()


def test_the_outcome_of_a_failed_call_is_its_error_with_what_output_there_was() -> None:
    error = {"code": "ExitCode:3", "message": "It failed.", "retryable": False, "details": {"exit": 3}}

    with pytest.raises(CallError) as failed:
        call_records.outcome(ended(Result("printed"), error))

    assert failed.value.as_dict() == error
    assert failed.value.result == Result("printed")
