"""Schemas in the older subset of OpenAPI, which the provider's package must know."""

import copy
from typing import Any

import pytest
from google.genai import types
from hypothesis import given

from app.providers.gemini.schema import to_openapi
from tests.providers.arbitrary import UNHURRIED, messages

DEFS: dict[str, Any] = {
    "Name": {"type": "string", "description": "A name."},
    "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
    "Limits": {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]},
}


def converted(place: Any) -> tuple[Any, list[str]]:
    """What becomes of a property, and what was lost of it."""
    schema = {"type": "object", "properties": {"place": place}, "$defs": DEFS}
    before = copy.deepcopy(schema)
    made, lost = to_openapi(schema)
    assert schema == before
    types.Schema.model_validate(made)
    return made["properties"]["place"], lost


def test_a_schema_is_said_in_the_words_of_the_subset(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        ({"type": "string"}, {"type": "STRING"}),
        ({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
        ({"type": ["null"]}, {"type": "NULL", "nullable": True}),
        (
            {"type": ["string", "integer"], "minLength": 1, "minimum": 2, "description": "d"},
            {
                "anyOf": [
                    {"description": "d", "type": "STRING", "minLength": 1},
                    {"description": "d", "type": "INTEGER", "minimum": 2},
                ]
            },
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"},
            {"type": "STRING", "nullable": True, "description": "d"},
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
            {"anyOf": [{"type": "STRING", "nullable": True}, {"type": "NUMBER", "nullable": True}]},
        ),
        (
            {"anyOf": [{"anyOf": [{"type": "string"}, {"type": "number"}]}, {"type": "boolean"}]},
            {"anyOf": [{"type": "STRING"}, {"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}]},
            {
                "type": "OBJECT",
                "properties": {"a": {"type": "STRING"}},
                "description": '{anyOf: [{"required": ["a"]}]}',
            },
        ),
        ({"enum": ["a", "b"]}, {"type": "STRING", "enum": ["a", "b"]}),
        ({"enum": ["a", None]}, {"type": "STRING", "enum": ["a"], "nullable": True}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "INTEGER", "description": "{enum: [1, 2]}"}),
        ({"type": "string", "enum": ["", "a"]}, {"type": "STRING", "description": '{enum: ["", "a"]}'}),
        ({"const": "a"}, {"type": "STRING", "enum": ["a"]}),
        ({"const": 5, "description": "d"}, {"type": "INTEGER", "description": "d\n\n{const: 5}"}),
        ({"const": True}, {"type": "BOOLEAN", "description": "{const: true}"}),
        ({"const": 0.5}, {"type": "NUMBER", "description": "{const: 0.5}"}),
        ({"type": "string", "format": "date-time"}, {"type": "STRING", "format": "date-time"}),
        ({"type": "string", "format": "email"}, {"type": "STRING", "description": "{format: email}"}),
        ({"type": "array"}, {"type": "ARRAY", "items": {}}),
        ({"items": {"type": "string"}}, {"type": "ARRAY", "items": {"type": "STRING"}}),
        (
            {"prefixItems": [{"type": "string"}]},
            {"type": "ARRAY", "items": {"type": "STRING"}, "description": '{prefixItems: [{"type": "string"}]}'},
        ),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True},
            {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": 1, "description": "{uniqueItems: true}"},
        ),
        (
            {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
            {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}, {"type": "STRING"}]}},
        ),
        (
            {"properties": {"a": {"type": "string"}}, "required": ["a", "b"], "additionalProperties": False},
            {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}, "required": ["a"]},
        ),
        ({"type": "object"}, {"type": "OBJECT"}),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "OBJECT", "description": '{additionalProperties: {"type": "string"}}'},
        ),
        ({"$ref": "#/$defs/Name"}, {"type": "STRING", "description": "A name."}),
        ({"$ref": "#/$defs/Name", "description": "Yours."}, {"type": "STRING", "description": "Yours."}),
        (
            {"allOf": [{"$ref": "#/$defs/Limits"}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}]},
            {
                "type": "OBJECT",
                "properties": {"limit": {"type": "INTEGER"}, "a": {"type": "STRING"}},
                "required": ["limit", "a"],
            },
        ),
        ({"allOf": [{"$ref": "#/$defs/Name"}], "description": "Yours."}, {"type": "STRING", "description": "Yours."}),
        (True, {}),
        ({"type": "string", "x-order": 1, "$comment": "c", "deprecated": True}, {"type": "STRING"}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "INTEGER", "description": "{exclusiveMinimum: 0}"}),
    ]
    for place, expected in cases:
        with subtests.test(place=place, expected=expected):
            assert converted(place) == (expected, [])


@pytest.mark.parametrize(
    ("place", "expected", "lost"),
    [
        ({"$ref": "#/$defs/Node"}, {"type": "OBJECT", "properties": {"next": {"type": "OBJECT"}}}, "it holds itself"),
        ({"$ref": "https://x/y.json", "description": "d"}, {"type": "OBJECT", "description": "d"},
         "it refers to another document"),
        ({"$ref": "#/$defs/Nowhere"}, {"type": "OBJECT"}, "a reference in it leads nowhere"),
        ({"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"description": "d"}]}, {"description": "d"},
         "alternatives stand beside something else in it"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_at_all_is_left_open_and_told(place: Any, expected: Any, lost: str) -> None:
    assert converted(place) == (expected, [lost])


def test_a_schema_that_multiplies_or_is_too_deep_is_left_open() -> None:
    doubling = {
        f"D{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/D{n + 1}"} for side in "ab"}}
        for n in range(30)
    }
    many = {"type": "object", "properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": doubling | {"D30": {}}}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    for hostile in (many, {"type": "object", "properties": {"a": deep}}):
        assert to_openapi(hostile) == ({"type": "OBJECT"}, ["it is too large"])


def test_what_is_not_the_schema_of_an_object_is_left_open() -> None:
    assert to_openapi({"type": "string"}) == ({"type": "OBJECT"}, ["it is not that of an object"])


@UNHURRIED
@given(
    messages("type", "object", "string", "properties", "items", "anyOf", "$ref", "#/properties/a", "a", "enum", "allOf")
)
def test_whatever_is_given_becomes_the_schema_of_an_object(place: Any) -> None:
    made, _ = to_openapi({"type": "object", "properties": {"a": place}})
    assert made["type"] == "OBJECT"
