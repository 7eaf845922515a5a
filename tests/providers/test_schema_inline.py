"""Schemas made a little different: opened, or without references."""

from copy import deepcopy
from typing import Any

import pytest

from app.providers.schema.document import MAX_INLINED_NODES, inline_references, without_closed_objects

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
}


def test_no_object_says_any_more_that_it_is_closed() -> None:
    closed = {"type": "object", "additionalProperties": False}
    schema = {
        **closed,
        "properties": {"additionalProperties": {"anyOf": [closed, {"type": "array", "items": closed}]}},
        "$defs": {"x": closed},
    }
    before = deepcopy(schema)

    made = without_closed_objects(schema)

    bare = {"type": "object"}
    assert made == {
        **bare,
        "properties": {"additionalProperties": {"anyOf": [bare, {"type": "array", "items": bare}]}},
        "$defs": {"x": bare},
    }
    assert schema == before


def test_an_object_that_takes_more_still_says_of_what_kind() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": False}}

    assert without_closed_objects(schema) == {"type": "object", "additionalProperties": {"type": "object"}}


def test_values_are_no_schemas() -> None:
    schema = {"const": {"additionalProperties": False, "$ref": "#/x"}, "enum": [{"$id": "a"}], "default": {"$ref": "b"}}

    assert without_closed_objects(schema) == schema
    assert inline_references(schema) == schema


def test_references_are_replaced_by_what_they_mean() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://x/y",
        "type": "object",
        "properties": {
            "one": {"$ref": "#/$defs/a~1b", "description": "The first."},
            "many": {"type": "array", "items": {"$ref": "#/definitions/Outer"}},
            "$ref": {"type": "string"},
        },
        "$defs": {"a/b": {"type": "integer", "description": "A number."}},
        "definitions": {"Outer": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/a~1b"}}}},
    }
    before = deepcopy(schema)

    made = inline_references(schema)

    assert made == {
        "type": "object",
        "properties": {
            "one": {"type": "integer", "description": "The first."},
            "many": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"inner": {"type": "integer", "description": "A number."}},
                },
            },
            "$ref": {"type": "string"},
        },
    }
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(TREE, id="to the whole"),
        pytest.param({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, id="to itself"),
        pytest.param({"properties": {"a": {"$ref": "https://x/schema.json"}}}, id="to elsewhere"),
        pytest.param({"properties": {"a": {"$ref": "#/$defs/nope"}}}, id="to nothing"),
        pytest.param({"properties": {"a": {"$ref": "#/title/x"}}, "title": "T"}, id="through a text"),
    ],
)
def test_a_schema_that_cannot_do_without_references_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert inline_references(schema) == schema


def test_a_schema_that_would_grow_beyond_reason_stays_as_it_is() -> None:
    doubles = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(MAX_INLINED_NODES.bit_length())}
    schema = {"$ref": "#/$defs/d0", "$defs": doubles | {f"d{len(doubles)}": {"type": "string"}}}

    assert inline_references(schema) == schema


def test_what_is_made_shares_nothing_with_what_it_was_made_of() -> None:
    schema = {"properties": {"a": {"enum": [["x"]]}}}

    without_closed_objects(schema)["properties"]["a"]["enum"][0].append("y")
    inline_references(schema)["properties"]["a"]["enum"][0].append("z")

    assert schema == {"properties": {"a": {"enum": [["x"]]}}}
