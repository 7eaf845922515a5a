import json
import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.core.calls import Call
from app.core.results import Attachment, Result
from app.core.util.json_codec import Fragment, dumps

HUGE = 2**70

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


class Colour(StrEnum):
    RED = "red"


class Model(BaseModel):
    n: int


@given(values)
def test_every_json_value_can_be_read_back(value: Any) -> None:
    assert json.loads(dumps(value)) == value
    assert json.loads(dumps(value, sort=True)) == value


@pytest.mark.parametrize("n", [2**63, 2**64, -(2**63) - 1, 10**4000], ids=lambda n: f"{n.bit_length()} bits")
def test_integers_of_any_size_keep_every_digit(n: int) -> None:
    assert dumps({"n": n}) == b'{"n":%d}' % n


@pytest.mark.parametrize("beside", [1, HUGE], ids=["fast", "slow"])
def test_text_is_compact_utf8_whichever_way_it_took(beside: int) -> None:
    encoded = dumps(["é\u2028😀\x00/", {"a": [1.5, True, None]}, beside])

    assert encoded == f'["é\u2028😀\\u0000/",{{"a":[1.5,true,null]}},{beside}]'.encode()


@pytest.mark.parametrize("beside", [1, HUGE], ids=["fast", "slow"])
def test_keys_are_sorted_at_every_depth_when_asked(beside: int) -> None:
    value = {"b": beside, "a": {"z": 1, "y": 2}}

    assert dumps(value, sort=True) == b'{"a":{"y":2,"z":1},"b":%d}' % beside
    assert dumps(value) == b'{"b":%d,"a":{"z":1,"y":2}}' % beside


@pytest.mark.parametrize("beside", [1, HUGE], ids=["fast", "slow"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_in_json_is_null(number: float, beside: int) -> None:
    assert dumps([number, {"deep": number}, beside]) == b'[null,{"deep":null},%d]' % beside


def test_a_fragment_is_put_in_as_it_is() -> None:
    assert dumps({"call": Fragment('{"n" : 1E5}')}) == b'{"call":{"n" : 1E5}}'


@pytest.mark.parametrize("text", [f'{{"n":{HUGE}}}', b'{"n":[1,"\xc3\xa9"]}'], ids=["str", "bytes"])
def test_a_fragment_beside_a_huge_integer_keeps_its_value(text: str | bytes) -> None:
    encoded = dumps({"fragment": Fragment(text), "n": HUGE})

    assert json.loads(encoded) == {"fragment": json.loads(text), "n": HUGE}


@pytest.mark.parametrize("n", [1, HUGE], ids=["fast", "slow"])
def test_a_result_is_told_field_by_field(n: int) -> None:
    result = Result("out", "title", {"n": n}, (Attachment("text/plain", "data:,x"),), {"deep": [n]})

    assert json.loads(dumps(result)) == {
        "output": "out",
        "title": "title",
        "metadata": {"n": n},
        "attachments": [{"mime": "text/plain", "url": "data:,x", "filename": None, "type": "file"}],
        "structured": {"deep": [n]},
    }


@pytest.mark.parametrize("n", [1, HUGE], ids=["fast", "slow"])
def test_models_enums_and_times_are_told_on_both_ways(n: int) -> None:
    value = {Colour.RED: Colour.RED, "model": Model(n=n), "at": datetime(2026, 1, 1, tzinfo=UTC), "n": n}

    assert json.loads(dumps(value)) == {"red": "red", "model": {"n": n}, "at": "2026-01-01T00:00:00+00:00", "n": n}


@pytest.mark.parametrize("beside", [1, HUGE], ids=["fast", "slow"])
def test_a_lone_surrogate_becomes_the_replacement_character(beside: int) -> None:
    assert json.loads(dumps({"caf\udce9": ["\ud800x", beside]})) == {"caf\ufffd": ["\ufffdx", beside]}


@pytest.mark.parametrize("beside", [1, HUGE], ids=["fast", "slow"])
def test_what_is_no_json_is_refused(beside: int) -> None:
    with pytest.raises(TypeError, match="object"):
        dumps({"x": object(), "beside": beside})


def test_the_view_of_a_call_holds_its_stored_json_unchanged() -> None:
    call = Call("call_1", "ada", "toy", 0, arguments=f'{{"n":{HUGE}, "x": 1.50}}')

    assert f'"arguments":{{"n":{HUGE}, "x": 1.50}}'.encode() in dumps(call.view())
