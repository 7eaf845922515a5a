"""Nulls that stand for nothing go, and nothing else does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from app.providers.schema.strip_nulls import strip_nulls
from tests.providers.schema_samples import (
    ANYTHING,
    JUNK,
    NAMES,
    Schema,
    arguments,
    calls_of,
    damaged_schemas,
    of,
    schemas,
    without_nulls,
)

MOST_CALLS = 1_000_000
TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def test_a_null_goes_where_the_property_may_be_left_out_and_not_be_null(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Schema, Schema]] = [
        (of(a=TEXT), {"a": None}, {}),
        (of(a=TEXT | {"default": "x"}), {"a": None}, {}),
        (of("a", a=TEXT), {"a": None}, {"a": None}),
        (of(a=TEXT_OR_NULL), {"a": None}, {"a": None}),
        (of(a=TEXT), {"a": None, "b": None}, {"b": None}),
        (of(a={}), {"a": None}, {"a": None}),
        (of(a=True, b=False), {"a": None, "b": None}, {"a": None}),
        (of(a={"enum": ["x", None]}, b={"enum": ["x"]}), {"a": None, "b": None}, {"a": None}),
        (of(a={"const": None}, b={"const": 0}), {"a": None, "b": None}, {"a": None}),
        (of(a=TEXT_OR_NULL | {"enum": ["x"]}), {"a": None}, {}),
        (of(a={"anyOf": [TEXT, {"type": "null"}]}, b={"oneOf": [TEXT]}), {"a": None, "b": None}, {"a": None}),
        (
            of(a={"allOf": [TEXT_OR_NULL, {"minLength": 1}]}, b={"allOf": [{}, TEXT]}),
            {"a": None, "b": None},
            {"a": None},
        ),
        (of(a=of(b=TEXT, c=of(d=TEXT))), {"a": {"b": None, "c": {"d": None}}}, {"a": {"c": {}}}),
        (
            of(a={"type": "array", "items": of(b=TEXT)}),
            {"a": [{"b": None}, None, {"b": "x"}]},
            {"a": [{}, None, {"b": "x"}]},
        ),
        (of(a={"prefixItems": [of(b=TEXT)], "items": of(c=TEXT)}), {"a": [{"b": None}, {"c": None}]}, {"a": [{}, {}]}),
        (
            of(a={"items": [of(b=TEXT)], "additionalItems": of(c=TEXT)}),
            {"a": [{"b": None}, {"c": None}]},
            {"a": [{}, {}]},
        ),
        (of(a={"type": "object", "additionalProperties": of(b=TEXT)}), {"a": {"x": {"b": None}}}, {"a": {"x": {}}}),
        (of(a={"additionalProperties": TEXT}), {"a": {"x": None}}, {"a": {"x": None}}),
        (of(a={"patternProperties": {"^x": of(b=TEXT)}}), {"a": {"x": {"b": None}}}, {"a": {"x": {"b": None}}}),
        ({"allOf": [of(a=TEXT), of("b", a=TEXT, b=TEXT)]}, {"a": None, "b": None}, {"b": None}),
        ({"allOf": [of(a=TEXT), {"required": ["a"]}]}, {"a": None}, {"a": None}),
        ({"properties": {"a": TEXT}}, {"a": None}, {}),
    ]
    for schema, given_, expected in cases:
        with subtests.test(schema=schema, given_=given_, expected=expected):
            before = copy.deepcopy((schema, given_))

            assert strip_nulls(schema, given_) == expected
            assert (schema, given_) == before


NODE = of("value", value=TEXT, next={"$ref": "#/$defs/Node"}, all={"type": "array", "items": {"$ref": "#/$defs/Node"}})


def test_references_are_followed_as_deep_as_the_value_goes() -> None:
    schema = of(first={"$ref": "#/$defs/Node"}, other={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": NODE}}
    inner: Schema = {"value": "c", "next": None, "all": []}

    assert strip_nulls(schema, {"first": {"value": None, "next": None, "all": [inner, inner]}, "other": None}) == {
        "first": {"value": None, "all": [{"value": "c", "all": []}, {"value": "c", "all": []}]}
    }


def test_before_2019_what_stands_beside_a_reference_does_not_count() -> None:
    schema = of(a={"$ref": "#/definitions/T", "type": "null"}, b={"$ref": "#/definitions/N", "type": "string"})
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"T": TEXT, "N": TEXT_OR_NULL}}

    assert strip_nulls(schema | old, {"a": None, "b": None}) == {"b": None}


CAT = of("kind", kind={"const": "cat"}, name=TEXT)
DOG = of("kind", kind={"const": "dog"}, name=TEXT_OR_NULL, age={"type": "integer"})


def test_in_a_union_nulls_go_by_the_arm_that_fits(subtests: pytest.Subtests) -> None:
    unions: list[str] = ["anyOf", "oneOf"]
    given__cases: list[tuple[Any, Any]] = [
        ({"kind": "cat", "name": None}, {"kind": "cat"}),
        ({"kind": "dog", "name": None, "age": None}, {"kind": "dog", "name": None}),
        ({"kind": "dog", "age": None}, {"kind": "dog"}),
        ({"kind": "bird", "name": None}, {"kind": "bird", "name": None}),
        ({"kind": "cat", "name": None, "age": None}, {"kind": "cat", "age": None}),
        ("cat", "cat"),
        (None, None),
    ]
    for union in unions:
        for given_, expected in given__cases:
            with subtests.test(union=union, given_=given_, expected=expected):
                schema = of("pet", pet={union: [CAT, DOG, {"type": "null"}]})

                assert strip_nulls(schema, {"pet": given_, "x": None}) == {"pet": expected, "x": None}


def test_of_several_arms_it_is_the_one_that_fits_best(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Schema], Schema, Schema]] = [
        # as a strict schema would have made it
        ([of(a=TEXT), of(a=TEXT_OR_NULL, b=TEXT)], {"a": None}, {}),
        ([of(a=TEXT), of(a=TEXT_OR_NULL, b=TEXT)], {"a": None, "b": None}, {"a": None}),
        # with no name that the arm does not know
        ([of(a=TEXT), of(a=TEXT, b=TEXT, c=TEXT)], {"a": None, "b": None}, {}),
        # with all that the arm needs
        ([of("c", a=TEXT_OR_NULL, c=TEXT), of(a=TEXT, b=TEXT)], {"a": None}, {}),
        # fewer nulls go
        ([of(a=TEXT), of(a=TEXT_OR_NULL)], {"a": None}, {"a": None}),
        # the first
        ([of("a", a=TEXT_OR_NULL, b=TEXT), of("b", a=TEXT, b=TEXT_OR_NULL)], {"a": None, "b": None}, {"a": None}),
        # told apart by bounds and lengths
        ([of(a={"minimum": 5}, b=TEXT), of(a={"maximum": 4}, b=TEXT_OR_NULL)], {"a": 7, "b": None}, {"a": 7}),
        ([of(a={"minLength": 2}, b=TEXT), of(a={"maxLength": 1}, b=TEXT_OR_NULL)], {"a": "xx", "b": None}, {"a": "xx"}),
        ([of(a={"minItems": 1}, b=TEXT), of(a={"maxItems": 0}, b=TEXT_OR_NULL)], {"a": [1], "b": None}, {"a": [1]}),
        # what fits no arm, but is of the type of only one
        ([of("k", k={"const": 1}, a=TEXT), {"type": "null"}], {"k": 2, "a": None}, {"k": 2}),
        # arms that only say what is needed
        ([{"required": ["a"]}, {"required": ["b"]}], {"a": "x", "b": None}, {"a": "x"}),
        ([], {"a": None}, {}),
    ]
    for arms, given_, expected in cases:
        with subtests.test(arms=arms, given_=given_, expected=expected):
            shared = of(a=TEXT, b=TEXT) if not arms or "type" not in arms[0] else {}

            assert strip_nulls(of("x", x=shared | {"anyOf": arms}), {"x": given_}) == {"x": expected}


def test_an_arm_of_an_arm_is_an_arm() -> None:
    schema = of("x", x={"anyOf": [{"oneOf": [CAT, {"$ref": "#/$defs/Dog"}]}, TEXT]}) | {"$defs": {"Dog": DOG}}

    assert strip_nulls(schema, {"x": {"kind": "dog", "name": None, "age": None}}) == {
        "x": {"kind": "dog", "name": None}
    }


def test_what_has_no_null_is_given_back_as_it_is() -> None:
    given_ = {"a": [{"b": 1}]}

    assert strip_nulls(of(a={}), given_) is given_


def test_what_stays_is_shared_and_what_changes_is_new() -> None:
    given_ = {"a": {"b": [1, None]}, "c": None}

    stripped = strip_nulls(of(a={}, c=TEXT), given_)

    assert stripped == {"a": {"b": [1, None]}}
    assert stripped["a"] is given_["a"]
    assert given_ == {"a": {"b": [1, None]}, "c": None}


def tree(depth: int) -> Any:
    value: Any = {"x": None}
    for _ in range(depth):
        value = {"x": value, "y": copy.deepcopy(value)}
    return value


def nest(depth: int) -> Any:
    value: Any = {"x": None}
    for _ in range(depth):
        value = {"x": value}
    return value


CIRCLE = {"$ref": "#/$defs/A"}
BOMBS: dict[str, Callable[[], tuple[Schema, Any]]] = {
    "unions beside each other": lambda: (
        {"allOf": [{"anyOf": [of(**{f"a{i}": TEXT}), of(**{f"b{i}": TEXT})]} for i in range(40)]},
        {"a0": None},
    ),
    "unions inside each other": lambda: (
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [of(x=CIRCLE, y=CIRCLE, **{f"k{i}": TEXT}) for i in range(4)]}}},
        tree(9),
    ),
    "circles": lambda: (
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [CIRCLE, {"allOf": [CIRCLE]}], "oneOf": [CIRCLE]}}},
        {"a": None},
    ),
    "long chain": lambda: (
        {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(10_000)}},
        {"a": None},
    ),
    "long chain of unions": lambda: (
        of(a={"$ref": "#/$defs/0"})
        | {"$defs": {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(9_000)}},
        {"a": None},
    ),
    "deep": lambda: ({"$ref": "#/$defs/A", "$defs": {"A": of(x=CIRCLE, y=CIRCLE)}}, nest(5_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_whatever_the_schema_it_does_not_take_long(name: str) -> None:
    schema, given_ = BOMBS[name]()
    answers: list[Any] = []

    assert calls_of(lambda: answers.append(strip_nulls(schema, given_))) < MOST_CALLS
    assert isinstance(answers[0], dict)


def test_many_values_are_not_too_much() -> None:
    schema = of(all={"type": "array", "items": {"anyOf": [CAT, DOG, {"type": "null"}]}})
    cat = {"kind": "cat", "name": None}

    assert strip_nulls(schema, {"all": [dict(cat) for _ in range(5_000)]}) == {"all": [{"kind": "cat"}] * 5_000}


VALUES = st.recursive(
    st.none() | st.sampled_from(["x", 1, 0, True, 2.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "kind"]), inner, max_size=4),
    max_leaves=12,
)


def _is_less(stripped: Any, given_: Any) -> bool:
    """Whether nothing is there that was not given."""
    if isinstance(stripped, dict):
        return all(name in given_ and _is_less(inner, given_[name]) for name, inner in stripped.items())
    if isinstance(stripped, list):
        return all(map(_is_less, stripped, given_))
    return bool(stripped == given_)


ARGUMENTS = st.dictionaries(st.sampled_from([*NAMES, "kind"]), VALUES, max_size=5)


@pytest.mark.sampled
@given(schemas() | damaged_schemas() | ANYTHING, ARGUMENTS | st.dictionaries(st.text(), JUNK))
def test_whatever_comes_only_nulls_go(schema: Schema, given_: Any) -> None:
    before = copy.deepcopy((schema, given_))

    stripped = strip_nulls(schema, given_)

    assert (schema, given_) == before
    assert without_nulls(stripped) == without_nulls(given_)
    assert _is_less(stripped, given_)


@pytest.mark.sampled
@given(st.data())
def test_what_is_right_stays_right(data: st.DataObject) -> None:
    """Arguments that no strict schema has been at, from a model that says null where it may."""
    schema = data.draw(schemas())
    given_ = data.draw(arguments(schema))

    assert Draft202012Validator(schema).is_valid(strip_nulls(schema, given_))
