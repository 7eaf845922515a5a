"""Schemas for strict tools, compared with what the provider's own package makes of them."""

import copy
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.runs import ToolOffer
from app.providers.dialects import Quirks
from app.providers.schema.anthropic_strict import GrammarBudget, close
from app.providers.schema.document import NotExpressible
from app.providers.schema.simplify import simplify
from app.providers.tool_limits import FittedTool, fit
from tests.providers.arbitrary import UNHURRIED

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
ABOUT = st.fixed_dictionaries({}, optional={"description": st.text(max_size=5), "title": st.text(max_size=5)})
STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 9),
        "pattern": st.just("^a"),
        "format": st.sampled_from(["date", "uri", "regex", "password"]),
        "default": st.text(max_size=3),
    },
)
NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={"minimum": st.integers(), "exclusiveMaximum": st.integers(), "multipleOf": st.integers(1, 5)},
)
OTHERS = st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"$ref": "#/$defs/Part"}])
LITERALS = st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}) | st.fixed_dictionaries(
    {"const": VALUES, "type": st.just("string")}
)
LEAVES = st.builds(lambda schema, about: schema | about, STRINGS | NUMBERS | LITERALS, ABOUT) | OTHERS


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    extras: list[dict[str, Any]] = [{}, {"additionalProperties": False}, {"minProperties": 1}]
    extra = draw(st.sampled_from(extras))
    about: dict[str, Any] = draw(ABOUT)
    return {"type": "object", "properties": properties, "required": required, **extra, **about}


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bounds = {"minItems": st.integers(0, 3), "maxItems": st.integers(0, 9), "uniqueItems": st.booleans()}
    return st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner, **bounds})


def unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arms = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries({"anyOf": arms}, optional={"description": st.text(max_size=5)}) | (
        st.fixed_dictionaries({"oneOf": arms}, optional={"default": VALUES})
    )


SCHEMAS = st.recursive(LEAVES, lambda inner: objects(inner) | arrays(inner) | unions(inner), max_leaves=8)
PART = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 3}}, "required": ["x"]}


@UNHURRIED
@given(objects(SCHEMAS))
def test_a_schema_is_closed_as_the_providers_own_package_does_it(schema: dict[str, Any]) -> None:
    schema["$defs"] = {"Part": PART}
    before = copy.deepcopy(schema)
    closed = close(schema)
    assert schema == before
    expected = anthropic.transform_schema(schema)
    if "$defs" not in closed:  # nothing refers to it
        del expected["$defs"]
    assert closed == expected


@UNHURRIED
@given(objects(SCHEMAS))
def test_what_is_closed_is_still_closed_when_it_is_closed_again(schema: dict[str, Any]) -> None:
    closed = close(schema | {"$defs": {"Part": PART}})
    assert close(closed) == closed


@pytest.mark.parametrize(
    ("given_schema", "simpler"),
    [
        (
            {"type": ["integer", "null"], "maximum": 9, "description": "d"},
            {"description": "d", "anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}]},
        ),
        ({"type": ["string"], "minLength": 1}, {"type": "string", "minLength": 1}),
        ({"type": ["string", "null"], "enum": ["a", None]}, {"enum": ["a", None]}),
        ({"allOf": [{"type": "string"}], "description": "d"}, {"type": "string", "description": "d"}),
        (
            {"type": "string", "anyOf": [{"minLength": 2}, {"const": ""}]},
            {"anyOf": [{"type": "string", "minLength": 2}, {"const": ""}]},
        ),
        ({"$ref": "#/definitions/N", "description": "d"}, {"type": "integer", "description": "d"}),
        ({"$ref": "#/properties/n"}, {"type": "number"}),
    ],
)
def test_words_the_package_does_not_know_are_said_in_simpler_ones(
    given_schema: dict[str, Any], simpler: dict[str, Any]
) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "definitions": {"N": {"type": "integer"}},
        "properties": {"n": {"type": "number"}, "place": given_schema},
    }
    made = simplify(schema)
    assert made == {"type": "object", "properties": {"n": {"type": "number"}, "place": simpler}}
    assert close(schema) == anthropic.transform_schema(made)


def test_references_that_stand_alone_stay_and_older_places_become_new_ones() -> None:
    schema = {
        "type": "object",
        "definitions": {"N": {"type": ["integer", "null"]}},
        "properties": {"a": {"$ref": "#/definitions/N"}, "b": {"$ref": "#/definitions/N"}},
    }
    closed = close(schema)
    assert closed["properties"] == {"a": {"$ref": "#/$defs/N"}, "b": {"$ref": "#/$defs/N"}}
    assert closed["$defs"] == {"N": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}


MAP = "an object in it takes properties of any name"
MANY = "it asks for several things of one value"
ANYTHING = "a place in it takes anything"
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}


def test_what_cannot_be_closed_without_narrowing_it_is_given_up(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        ({"$ref": "#/$defs/Node"}, "it holds itself"),
        ({"$ref": "#"}, "it holds itself"),
        ({"$ref": "#/$defs/Node", "description": "d"}, "it holds itself"),
        ({"$ref": "https://example.com/schema.json"}, "it refers to another document"),
        ({"$ref": "#/$defs/Nowhere"}, "a reference in it leads nowhere"),
        ({"$ref": 5}, "it refers to another document"),
        ({"type": "object", "enum": [{"a": 1}]}, MAP),
        ({"type": "object"}, MAP),
        ({"type": "object", "additionalProperties": {"type": "string"}}, MAP),
        ({"type": "object", "properties": {}, "additionalProperties": True}, MAP),
        ({"type": "object", "properties": {}, "patternProperties": {"^x": {}}}, MAP),
        (
            {"type": "object", "properties": {}, "required": ["a"]},
            "an object in it requires a property that it does not describe",
        ),
        ({"allOf": [{"type": "object", "properties": {}}, {"type": "object", "properties": {}}]}, MANY),
        ({"type": "object", "properties": {}, "anyOf": [{"required": []}]}, MANY),
        ({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}, MANY),
        ({"$ref": "#/$defs/Leaf", "type": "string"}, MANY),
        ({}, ANYTHING),
        (True, ANYTHING),
        ({"type": {"odd": 1}}, ANYTHING),
        ({"enum": [{"a": 1}]}, ANYTHING),
        ({"type": []}, "its types cannot be read"),
        ({"type": "object", "properties": ["a"]}, "its properties cannot be read"),
        ({"type": "object", "properties": {}, "required": "a"}, "its properties cannot be read"),
        ({"anyOf": []}, "its alternatives cannot be read"),
        ({"type": "array", "items": [{"type": "string"}]}, ANYTHING),
    ]
    for place, reason in cases:
        with subtests.test(place=place, reason=reason):
            schema = {
                "type": "object",
                "properties": {"place": place},
                "$defs": {"Node": NODE, "Leaf": {"type": "integer"}},
            }
            with pytest.raises(NotExpressible, match=f"^{reason}$"):
                close(schema)


def test_references_that_multiply_and_schemas_that_are_too_deep_are_given_up() -> None:
    doubling = {
        f"D{n}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/D{n + 1}", "title": side} for side in "ab"},
        }
        for n in range(30)
    }
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/D0"}},
        "$defs": doubling | {"D30": {"type": "string"}},
    }
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    for hostile in (schema, {"type": "object", "properties": {"a": deep}}):
        with pytest.raises(NotExpressible, match=r"^it is too large$"):
            close(hostile)


def test_only_the_schema_of_an_object_can_be_that_of_a_tool() -> None:
    with pytest.raises(NotExpressible, match=r"^it is not that of an object$"):
        close({"anyOf": [{"type": "string"}]})


def fitted(name: str, properties: dict[str, Any], required: list[str] | None = None) -> FittedTool:
    schema = {"type": "object", "properties": properties, "required": required or []}
    return fit([ToolOffer(name=name, description="d", schema=schema)], Quirks(), [])[0]


@pytest.mark.parametrize(
    ("properties", "required", "most", "what"),
    [
        ({"a": {"type": "string"}}, ["a"], 20, "20 strict tools"),
        ({name: {"type": "string"} for name in "abc"}, ["a"], 12, "24 optional parameters"),
        ({"a": {"type": ["string", "null"]}}, ["a"], 16, "16 parameters with alternatives"),
        ({"a": {"type": "object", "properties": {"b": {"type": "string"}}}}, ["a"], 20, "20 strict tools"),
    ],
)
def test_the_strict_tools_of_a_request_share_their_limits(
    properties: dict[str, Any], required: list[str], most: int, what: str
) -> None:
    allowance, warnings = GrammarBudget(), list[str]()
    closed = [allowance.close(fitted(f"t{n}", properties, required), warnings) for n in range(most + 1)]
    assert [schema is not None for schema in closed] == [True] * most + [False]
    assert warnings == [f"t{most} is not strict: the strict tools of one request have at most {what}."]


def test_a_tool_that_does_not_fit_takes_nothing_from_the_next() -> None:
    allowance, warnings = GrammarBudget(), list[str]()
    many = {f"p{n}": {"type": "string"} for n in range(20)}
    assert allowance.close(fitted("first", many), warnings) is not None
    assert allowance.close(fitted("second", many), warnings) is None
    assert allowance.close(fitted("third", {"a": {"type": "string"}}), warnings) is not None
    assert [warning.split()[0] for warning in warnings] == ["second"]
