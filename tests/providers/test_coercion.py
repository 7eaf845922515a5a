"""Plain text as the values that a schema says it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.text_calls.coercion import coerce
from app.providers.text_calls.json_repair import Repaired

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
OBJECT = {"type": "object"}
ARRAY = {"type": "array", "items": INTEGER}

CASES: dict[str, tuple[Any, str, Any]] = {
    "a string": (STRING, "5", "5"),
    "a string that is a word": (STRING, "null", "null"),
    "a string with its spaces": (STRING, "\n  x \n", "\n  x \n"),
    "a string that is JSON": (STRING, '{"a": 1}', '{"a": 1}'),
    "an integer": (INTEGER, " 5\n", 5),
    "an integer with a point": (INTEGER, "5.0", 5),
    "a fraction is no integer": (INTEGER, "5.5", "5.5"),
    "a word is no integer": (INTEGER, "five", "five"),
    "truth is no integer": (INTEGER, "true", "true"),
    "nothing is no integer": (INTEGER, "", ""),
    "an integer that is too long": (INTEGER, "9" * 5000, "9" * 5000),
    "a number": (NUMBER, "-1.5e3", -1500.0),
    "a number without a point": (NUMBER, "5", 5),
    "no number": (NUMBER, "NaN", "NaN"),
    "truth": (BOOLEAN, "true", True),
    "truth as Python writes it": (BOOLEAN, "False", False),
    "a number is no truth": (BOOLEAN, "1", "1"),
    "null where no string may be": (INTEGER, "null", None),
    "null as Python writes it": ({"type": ["integer", "null"]}, "None", None),
    "null where a string may be": ({"type": ["string", "null"]}, "null", "null"),
    "an object": (OBJECT, '\n{"a": [1]}\n', {"a": [1]}),
    "a list": (ARRAY, "[1, 2]", [1, 2]),
    "a list is no object": (OBJECT, "[1, 2]", "[1, 2]"),
    "a cut object": (OBJECT, '{"a": "x', '{"a": "x'),
    "a list or a string": ({"type": ["string", "array"]}, '["a"]', ["a"]),
    "a string or a list": ({"type": ["string", "array"]}, "a", "a"),
    "a number or a string": ({"type": ["integer", "string"]}, "5", "5"),
    "one of alternatives": ({"anyOf": [INTEGER, {"type": "null"}]}, "5", 5),
    "one of other alternatives": ({"oneOf": [BOOLEAN, ARRAY]}, "[1]", [1]),
    "all of them": ({"allOf": [{"minimum": 1}, INTEGER]}, "5", 5),
    "a reference": ({"$ref": "#/$defs/count"}, "5", 5),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "5", "5"),
    "a reference to elsewhere": ({"$ref": "https://example.com/s.json"}, "5", "5"),
    "a reference in a circle": ({"$ref": "#/$defs/circle"}, "5", 5),
    "a choice of strings": ({"enum": ["1", "2"]}, "1", "1"),
    "a choice of numbers": ({"enum": [1, 2]}, "2", 2),
    "a mixed choice": ({"enum": ["auto", 3, True]}, "3", 3),
    "a mixed choice's string": ({"enum": ["auto", "3", 3]}, "3", "3"),
    "what is not in the choice": ({"enum": ["auto", 3]}, "4", "4"),
    "one value": ({"const": 7}, "7", 7),
    "an object by its members": ({"properties": {}}, "{}", {}),
    "a list by its items": ({"items": INTEGER}, "[]", []),
    "nothing said": ({}, "5", "5"),
    "anything": (True, "[5]", "[5]"),
    "nonsense": ({"type": 5, "anyOf": 3, "enum": {}, "$ref": 1}, "5", "5"),
}


def test_a_text_becomes_what_the_schema_says(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str, Any]] = list(CASES.values())
    for member, text, value in cases:
        with subtests.test(member=member, text=text, value=value):
            defs = {"count": INTEGER, "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, INTEGER]}}
            found = coerce(text, "x", {"type": "object", "properties": {"x": member}, "$defs": defs})

            assert json.dumps(found.value) == json.dumps(value)
            assert not found.is_repaired


def test_what_had_to_be_repaired_is_said() -> None:
    assert coerce("{'a': 1,}", "x", {"properties": {"x": OBJECT}}) == Repaired({"a": 1}, is_repaired=True)


def test_a_member_without_a_name_of_its_own_is_what_all_others_are() -> None:
    schema = {"properties": {"x": STRING}, "additionalProperties": INTEGER}

    assert coerce("5", "x", schema).value == "5"
    assert coerce("5", "y", schema).value == 5
    assert coerce("5", "y", {"properties": {}, "additionalProperties": False}).value == "5"


def test_members_are_found_where_the_whole_schema_is_a_reference() -> None:
    schema = {"$ref": "#/$defs/all", "$defs": {"all": {"allOf": [{"properties": {"x": INTEGER}}]}}}

    assert coerce("5", "x", schema).value == 5


def test_references_that_multiply_come_to_an_end() -> None:
    many = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 4} for n in range(40)}

    assert coerce("5", "x", {"properties": {"x": {"$ref": "#/$defs/s0"}}, "$defs": many}).value == "5"


@given(st.text() | st.sampled_from(["[", "{}", "null", "1e5", "-0", "Infinity"]), st.sampled_from(list(CASES.values())))
def test_any_text_is_converted_or_stays(text: str, case: tuple[Any, str, Any]) -> None:
    value = coerce(text, "x", {"properties": {"x": case[0]}}).value

    assert value == text or not isinstance(value, str)
