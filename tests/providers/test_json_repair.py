"""The ladder that reads what is nearly JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.text_calls.json_repair import MAX_DEPTH, Broken, Repaired, extent, loads, to_json

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(st.text(), values, min_size=1, max_size=4)

REPAIRED = {
    "a fence": ('```json\n{"a": 1}\n```', {"a": 1}),
    "a bare fence": ('\n```\n{"a": 1}\n```\n', {"a": 1}),
    "a raw line break": ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
    "a comma behind the last member": ('{"a": 1,}', {"a": 1}),
    "a comma behind the last item": ('{"a": [1, 2, ], }', {"a": [1, 2]}),
    "single quotes": ("{'a': 'x', 'b': 'it is \"so\"'}", {"a": "x", "b": 'it is "so"'}),
    "an escaped single quote": (r"{'a': 'it\'s'}", {"a": "it's"}),
    "an escaped single quote in double ones": (r'{"a": "it\'s"}', {"a": "it's"}),
    "words of Python": ("{'a': True, 'b': [False, None]}", {"a": True, "b": [False, None]}),
    "words of both": ('{"a": true, "b": None}', {"a": True, "b": None}),
    "escapes of Python": (r"{'a': '\x41\u0042\n'}", {"a": "AB\n"}),
    "all at once": ("```\n{'a': 'x\ny',}\n```", {"a": "x\ny"}),
}
BROKEN = {
    "an open string": ('{"a": "x', 6),
    "an open bracket": ('{"a": [1, 2', 11),
    "an open single quote": ("{'a': 'x", 1),
    "a comment": ('{"a": 1 // one\n}', 8),
    "a bare name": ("{a: 1}", 1),
    "a comma behind nothing": ('{"a": [,]}', 7),
    "two values": ('{"a": 1} {"b": 2}', 9),
    "one bracket too many": ('{"a": 1}}', 8),
    "the wrong bracket": ('{"a": 1]', 7),
    "an escape nobody knows": (r'{"a": "\d"}', 7),
    "a sum": ('{"a": 1+1}', 7),
    "a call": ('{"a": open("x")}', 6),
    "no number": ('{"a": NaN}', 6),
    "no number that there is": ('{"a": [1, 1e999]}', 10),
    "too long a number": ('{"a": ' + "9" * 5000 + "}", 6),
    "nothing": ("", 0),
    "an open fence": ('```json\n{"a": 1}\n', 0),
}


def test_what_can_be_read_in_one_way_only_is_read_and_said_to_be_repaired(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any]] = list(REPAIRED.values())
    for text, value in cases:
        with subtests.test(text=text, value=value):
            assert loads(text) == Repaired(value, is_repaired=True)


def test_what_stays_broken_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = list(BROKEN.values())
    for text, position in cases:
        with subtests.test(text=text, position=position):
            with pytest.raises(Broken) as caught:
                loads(text)

            assert caught.value.position == position


def test_what_is_nested_too_deep_is_broken_and_not_a_crash() -> None:
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000):
        with pytest.raises(Broken):
            loads(text)


@given(values)
def test_json_is_read_as_it_is(value: Any) -> None:
    assert loads(json.dumps(value)) == Repaired(value, is_repaired=False)
    assert loads(json.dumps(value, ensure_ascii=False)).value == value


@given(values)
def test_what_python_writes_is_read(value: Any) -> None:
    assert loads(repr(value)).value == value


@given(objects, st.data())
def test_a_cut_object_is_never_made_whole(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value) if data.draw(st.booleans()) else repr(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]

    with pytest.raises(Broken):
        loads(cut)


@given(values, st.text())
def test_a_value_reaches_as_far_as_its_brackets(value: Any, behind: str) -> None:
    text = json.dumps([value])

    assert extent(f"before {text}{behind}", 7).end == 7 + len(text)
    assert extent(f"before {text}{behind}", 7).is_whole


@given(objects, st.data())
def test_a_cut_value_has_no_end(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)

    assert not extent(text[: data.draw(st.integers(1, len(text) - 1))], 0).is_whole


def test_a_value_that_is_nested_too_deep_has_no_end() -> None:
    assert extent("[" * MAX_DEPTH + "]" * MAX_DEPTH, 0).is_whole
    assert not extent("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 0).is_whole


@given(st.text())
def test_any_text_is_either_a_value_or_broken(text: str) -> None:
    to_json(text)

    assert 0 <= broken_at(text) <= len(text)


def broken_at(text: str) -> int:
    try:
        loads(text)
    except Broken as broken:
        return broken.position
    return 0
