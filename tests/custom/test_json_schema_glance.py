"""What is seen at a glance is what the validator says, too."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from app.custom.json_schema import fast_check

NAMES = st.sampled_from(["a", "b", "c", "d"])
MEMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "number", "boolean"])}, optional={"description": st.text()}
)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(NAMES, MEMBERS),
        "required": st.lists(NAMES, unique=True),
        "additionalProperties": st.booleans(),
        "title": st.text(),
    },
)
VALUES = st.one_of(
    st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.lists(st.integers())
)
ARGUMENTS = st.one_of(VALUES, st.dictionaries(NAMES, VALUES))


@given(SCHEMAS, ARGUMENTS)
def test_what_fits_at_a_glance_fits(schema: dict[str, Any], arguments: Any) -> None:
    looks = fast_check(schema)

    assert looks is not None
    assert not looks(arguments) or Draft202012Validator(schema).is_valid(arguments)


def test_ordinary_arguments_need_no_closer_look() -> None:
    members = {"text": {"type": "string"}, "count": {"type": "integer", "default": 1}, "ratio": {"type": "number"}}
    looks = fast_check({"type": "object", "properties": members, "required": ["text"]})

    assert looks is not None
    assert looks({"text": "x", "count": 3, "ratio": 0.5, "more": [1, 2]})
    assert not looks({"count": 3})
    assert not looks({"text": "x", "count": True})


@pytest.mark.parametrize(
    "more",
    [
        {"properties": {"a": {"type": "string", "pattern": "x"}}},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": False}},
        {"properties": {"a": {}}},
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^x": False}},
        {"anyOf": [{"required": ["a"]}]},
        {"minProperties": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_whatever_says_more_is_looked_at_closely(more: dict[str, Any]) -> None:
    assert fast_check({"type": "object"} | more) is None
