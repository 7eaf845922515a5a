"""Strict schemas: what they become, when they are given up, and that nothing a tool takes is lost on the way."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents.strict_schema import ensure_strict_json_schema
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openai.lib._pydantic import _ensure_strict_json_schema

from app.providers.schema.document import NotExpressible
from app.providers.schema.openai_strict import rewrite
from app.providers.schema.strip_nulls import strip_nulls
from app.tools import BUILTINS
from tests.providers.schema_samples import (
    ANYTHING,
    Schema,
    arguments,
    calls_of,
    damaged_schemas,
    fillings,
    has_union,
    of,
    schemas,
    without_nulls,
)

CASES = json.loads((Path(__file__).parent.parent / "scenarios" / "providers.json").read_text())["cases"]
STRICT = [case for case in CASES if case["id"] in ("D02", "D04", "D05")]
GIVEN_UP: dict[str, str] = {}
"""The tools of the house that have no strict schema, and why."""
MOST_CALLS = 2_000_000
"""Functions that may be called for one schema, however it is made."""


def closed(**properties: Any) -> Schema:
    return of(*properties, **properties) | {"additionalProperties": False}


def rewrite_or_reason(schema: Schema) -> Schema | str:
    try:
        return rewrite(schema)
    except NotExpressible as given_up:
        return str(given_up)


@pytest.mark.parametrize("case", STRICT, ids=lambda case: case["id"])
def test_a_recorded_schema_becomes_what_was_recorded(case: dict[str, Any]) -> None:
    [tool], [expected] = case["input"]["tools"], case["expected"]

    assert rewrite(tool["input_schema"]) == expected["function"]["parameters"]


def test_what_may_be_left_out_may_be_null(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Schema]] = [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string"]}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"enum": ["x", 1]}, {"type": ["string", "integer", "null"], "enum": ["x", 1, None]}),
        ({"enum": [1, 1.5]}, {"type": ["number", "null"], "enum": [1, 1.5, None]}),
        ({"enum": ["x", None]}, {"type": ["string", "null"], "enum": ["x", None]}),
        ({"type": ["string", "null"], "enum": ["x"]}, {"type": ["string", "null"], "enum": ["x", None]}),
        ({"const": True}, {"anyOf": [{"type": "boolean", "const": True}, {"type": "null"}]}),
        ({"const": None}, {"type": "null", "const": None}),
        (
            {"const": "x", "description": "What."},
            {"anyOf": [{"type": "string", "const": "x"}, {"type": "null"}], "description": "What."},
        ),
        ({"type": "array", "items": {"type": "string"}}, {"type": ["array", "null"], "items": {"type": "string"}}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "Either."},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "Either."},
        ),
        ({"type": "object", "properties": {}}, closed() | {"type": ["object", "null"]}),
        ({"type": "object", "additionalProperties": False}, closed() | {"type": ["object", "null"]}),
    ]
    for given_, expected in cases:
        with subtests.test(given_=given_, expected=expected):
            assert rewrite(of(a=given_)) == closed(a=expected)


def test_what_a_strict_schema_does_not_know_is_told_or_means_nothing(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Schema]] = [
        ({"type": "string", "minLength": 1}, {"type": "string", "description": "{minLength: 1}"}),
        (
            {"type": "string", "minLength": 1, "description": "City", "default": 1},
            {"type": "string", "description": "City {minLength: 1, default: 1}"},
        ),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "uri"}, {"type": "string", "description": "{format: uri}"}),
        ({"type": "string", "default": "x"}, {"type": "string", "description": '{default: "x"}'}),
        ({"type": "boolean", "default": False}, {"type": "boolean", "description": "{default: false}"}),
        ({"type": "string", "default": None}, {"type": "string"}),
        ({"type": "string", "examples": ["é"]}, {"type": "string", "description": '{examples: ["é"]}'}),
        ({"type": "string", "deprecated": True}, {"type": "string", "description": "{deprecated: true}"}),
        ({"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "^[a-z]+$"}),
        ({"type": "string", "pattern": "^(?!x)"}, {"type": "string", "description": '{pattern: "^(?!x)"}'}),
        ({"type": "string", "pattern": "(a)\\1"}, {"type": "string", "description": '{pattern: "(a)\\\\1"}'}),
        ({"type": "string", "pattern": "\\p{L}"}, {"type": "string", "description": '{pattern: "\\\\p{L}"}'}),
        ({"type": "string", "pattern": "[[a]"}, {"type": "string", "pattern": "[[a]"}),
        ({"type": "integer", "minimum": 1, "maximum": 9}, {"type": "integer", "minimum": 1, "maximum": 9}),
        ({"type": "number", "multipleOf": 0.5}, {"type": "number", "multipleOf": 0.5}),
        ({"type": "number", "multipleOf": 0}, {"type": "number", "description": "{multipleOf: 0}"}),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            {"type": "number", "minimum": 1, "description": "{exclusiveMinimum: true}"},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "{uniqueItems: true}"},
        ),
        ({"type": "string", "minItems": 1, "uniqueItems": False, "properties": 3}, {"type": "string"}),
        ({"type": "string", "title": "T", "$comment": "c", "readOnly": True, "x-order": 3}, {"type": "string"}),
        (of(a={"type": "string"}) | {"minProperties": 1}, closed(a={"type": ["string", "null"]})),
    ]
    for given_, expected in cases:
        with subtests.test(given_=given_, expected=expected):
            told = {"description": "{minProperties: 1}"} if "minProperties" in given_ else {}

            assert rewrite(of("a", a=given_)) == closed(a=expected | told)


RANGE = of("start", start={"type": "integer"}, end={"type": "integer"})
STRICT_RANGE = closed(start={"type": "integer"}, end={"type": ["integer", "null"]})


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_a_lone_reference_stays_and_what_it_leads_to_is_a_definition(key: str) -> None:
    schema = of("a", a={"$ref": f"#/{key}/R", "title": "T", "default": None}) | {key: {"R": RANGE, "unused": {}}}

    assert rewrite(schema) == closed(a={"$ref": "#/$defs/R"}) | {"$defs": {"R": STRICT_RANGE}}


def test_a_reference_with_words_of_its_own_is_written_out() -> None:
    schema = of("a", a={"$ref": "#/$defs/R", "description": "Where."}) | {"$defs": {"R": RANGE | {"description": "R"}}}

    assert rewrite(schema) == closed(a=STRICT_RANGE | {"description": "Where."})


def test_a_reference_into_itself_keeps_its_words_beside_it() -> None:
    node = of("value", value={"type": "string"}, next={"$ref": "#/$defs/Node", "description": "The rest."})
    strict = closed(
        value={"type": "string"},
        next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "description": "The rest."},
    )

    assert rewrite(of("a", a={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": node}}) == closed(
        a={"$ref": "#/$defs/Node"}
    ) | {"$defs": {"Node": strict}}


def test_the_whole_can_be_referred_to_and_be_a_reference() -> None:
    args = of("name", name={"type": "string"}, rest={"type": "array", "items": {"$ref": "#"}})

    assert rewrite({"$ref": "#/$defs/Args", "$defs": {"Args": args}}) == closed(
        name={"type": "string"}, rest={"type": ["array", "null"], "items": {"$ref": "#"}}
    )


def test_a_reference_to_what_turns_nullable_leads_to_what_it_was() -> None:
    schema = of("b", "c", a={"type": "string"}, b={"$ref": "#/properties/a"}, c={"$ref": "#/$defs/a"})

    assert rewrite(schema | {"$defs": {"a": {"type": "integer"}}}) == closed(
        a={"type": ["string", "null"]}, b={"$ref": "#/$defs/a_0"}, c={"$ref": "#/$defs/a"}
    ) | {"$defs": {"a_0": {"type": "string"}, "a": {"type": "integer"}}}


def test_definitions_of_the_same_name_are_told_apart() -> None:
    schema = of("a", "b", a={"$ref": "#/definitions/x"}, b={"$ref": "#/$defs/x"})
    both = {"$defs": {"x": {"type": "string"}}, "definitions": {"x": {"type": "integer"}}}

    assert rewrite(schema | both) == closed(a={"$ref": "#/$defs/x_0"}, b={"$ref": "#/$defs/x"}) | {
        "$defs": {"x_0": {"type": "integer"}, "x": {"type": "string"}}
    }


def test_names_of_definitions_are_escaped_in_references() -> None:
    schema = of("a", a={"$ref": "#/$defs/x~1y~0%2541"}) | {"$defs": {"x/y~%41": {"type": "string"}}}

    assert rewrite(schema) == closed(a={"$ref": "#/$defs/x~1y~0%2541"}) | {"$defs": {"x/y~%41": {"type": "string"}}}


def test_before_2019_what_stands_beside_a_reference_does_not_count() -> None:
    schema = of("a", a={"$ref": "#/definitions/R", "type": "string", "minimum": 3, "description": "Where."})
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"R": RANGE}}

    assert rewrite(schema | old) == closed(a=STRICT_RANGE | {"description": "Where."})


def test_what_holds_at_the_same_time_is_said_in_one_place(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Schema]] = [
        ({"allOf": [{"type": "string"}], "description": "What."}, {"type": "string", "description": "What."}),
        ({"allOf": [{"$ref": "#/$defs/R"}], "title": "T"}, {"$ref": "#/$defs/R"}),
        ({"allOf": [{"$ref": "#/$defs/R"}], "description": "R"}, STRICT_RANGE | {"description": "R"}),
        ({"allOf": [True], "type": "string"}, {"type": "string"}),
        ({"allOf": [], "type": "string"}, {"type": "string"}),
        ({"allOf": [{"type": ["integer", "string"]}], "type": "number"}, {"type": "integer"}),
        (
            of("b", b={"type": "string"}) | {"allOf": [of(a={"type": "string"})]},
            closed(a={"type": ["string", "null"]}, b={"type": "string"}),
        ),
        (
            of("b", b={"type": "string"}) | {"allOf": [of("a", a={"type": "string"})]},
            closed(a={"type": "string"}, b={"type": "string"}),
        ),
        (
            {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6", "description": "Six."}]},
            {
                "anyOf": [
                    {"type": "string", "format": "ipv4"},
                    {"type": "string", "format": "ipv6", "description": "Six."},
                ]
            },
        ),
        (
            of(a={"type": "string"}, b={"type": "string"}) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {
                "anyOf": [
                    closed(a={"type": "string"}, b={"type": ["string", "null"]}),
                    closed(a={"type": ["string", "null"]}, b={"type": "string"}),
                ]
            },
        ),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 3, "maxLength": 4},
            {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}], "description": "{maxLength: 4}"},
        ),
    ]
    for given_, expected in cases:
        with subtests.test(given_=given_, expected=expected):
            definitions = {"R": RANGE}
            kept = {"$defs": {"R": STRICT_RANGE}} if "$ref" in expected else {}

            assert rewrite(of("a", a=given_) | {"$defs": definitions}) == closed(a=expected) | kept


def test_what_cannot_be_strict_is_given_up_with_the_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, str]] = [
        (of(filters={"type": "object"}), "`filters` is a free map"),
        (of(filters={"type": "object", "additionalProperties": {"type": "string"}}), "`filters` is a free map"),
        (of(a=of(b={"type": "array", "items": {"type": "object"}})), "`a.b[]` is a free map"),
        ({}, "the schema is a free map"),
        ({"type": "object"}, "the schema is a free map"),
        (of() | {"additionalProperties": True}, "the schema is a free map"),
        (of(a={"type": "string"}) | {"additionalProperties": {}}, "the schema takes properties that it does not name"),
        (
            of(a={"type": "string"}) | {"unevaluatedProperties": True},
            "the schema takes properties that it does not name",
        ),
        (of() | {"patternProperties": {"^x": {}}}, "the schema uses `patternProperties`"),
        (of() | {"propertyNames": {"maxLength": 3}}, "the schema uses `propertyNames`"),
        (of("b", a={"type": "string"}), "the schema requires `b`, which it does not describe"),
        (of(a={}), "`a` does not say its type"),
        (of(a=True), "`a` does not say its type"),
        (of(a={"description": "Anything."}), "`a` does not say its type"),
        (of(a={"properties": {"b": {"type": "string"}}}), "`a` does not say its type"),
        (of(a=False), "`a` can never be given"),
        (of(a=3), "`a` has no schema"),
        (of(a={"type": "strin"}), "`a` has a `type` that JSON Schema does not know"),
        (of(a={"type": []}), "`a` has a `type` that JSON Schema does not know"),
        (of(a={"type": "array"}), "`a` does not say what its items are"),
        (of(a={"type": "array", "items": {}}), "`a[]` does not say its type"),
        (of(a={"type": "array", "prefixItems": [{"type": "string"}]}), "`a` is a tuple"),
        (of(a={"type": "array", "items": [{"type": "string"}]}), "`a` is a tuple"),
        (of(a={"enum": []}), "`a` does not list scalars as its values"),
        (of(a={"enum": None}), "`a` does not list scalars as its values"),
        (of(a={"enum": [{"b": 1}]}), "`a` does not list scalars as its values"),
        (of(a={"const": [1]}), "`a` does not list scalars as its values"),
        (of(a={"allOf": [{"type": "string"}, {"minLength": 1}]}), "`a` joins several schemas with `allOf`"),
        (of(a={"type": "string", "not": {"const": "x"}}), "`a` uses `not`"),
        (of() | {"if": {}, "then": {}}, "the schema uses `if`"),
        (of() | {"dependentRequired": {"a": ["b"]}}, "the schema uses `dependentRequired`"),
        (of(a={"$dynamicRef": "#x"}), "`a` uses `$dynamicRef`"),
        (of(a={"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}), "`a` has both `anyOf` and `oneOf`"),
        (of(a={"anyOf": []}), "`a` is a union of nothing"),
        (of(a={"type": "string", "anyOf": [{"type": "null"}]}), "`a` can never be given"),
        (of(a={"anyOf": [{"type": "string"}], "allOf": [{"anyOf": [{}]}]}), "`a` has more than one `anyOf`"),
        (
            of(a=of(b={"type": "string"}) | {"allOf": [of() | {"additionalProperties": False}]}),
            "`a` has properties beside those that it is closed with",
        ),
        (of() | {"anyOf": [{"required": ["a"]}]}, "the schema is a union"),
        ({"type": "string"}, "the schema is no object"),
        ({"$ref": "#"}, "the schema refers to itself"),
        (of(a={"$ref": "https://x.org/y"}), "`a` refers to `https://x.org/y`, which is not in the schema"),
        (of(a={"$ref": "#/$defs/a"}), "`a` refers to `#/$defs/a`, which is not in the schema"),
        (of(a={"$ref": "#a"}) | {"$defs": {"a": {"$anchor": "a"}}}, "`a` refers to `#a`, which is not in the schema"),
        (of(a={"$ref": 3}), "`a` refers to `3`, which is not in the schema"),
        (of(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"$ref": "#/$defs/a"}}}, "`#/$defs/a` leads back to itself"),
        (
            of(a={"$ref": "#/$defs/a"})
            | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a", "description": "b"}}},
            "`#/$defs/b` leads back to itself",
        ),
        (
            of(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": of(b={"$ref": "#/$defs/a", "minItems": 1})}},
            "`a.b` refers to itself",
        ),
        (
            of(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"$id": "https://x.org/a", "type": "string"}}},
            "the schema has parts with an `$id`, which references would have to follow",
        ),
        (of(**{"x\n" * 100: {}}), f"`{'x?' * 40}…` does not say its type"),
    ]
    for schema, reason in cases:
        with subtests.test(schema=schema, reason=reason):
            before = copy.deepcopy(schema)

            with pytest.raises(NotExpressible) as given_up:
                rewrite(schema)

            assert str(given_up.value) == reason
            assert schema == before


def nested(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = of("a", a=schema)
    return schema


@pytest.mark.parametrize(
    ("make", "most", "reason"),
    [
        (lambda n: of(**{f"p{i}": {"type": "string"} for i in range(n)}), 5_000, "5,001 properties, more than 5,000"),
        (nested, 10, "11 levels, more than 10"),
        (lambda n: of(a={"enum": [*range(n - 1)]}), 1_000, "1,001 values to choose from, more than 1,000"),
        (lambda n: of("a" * n, **{"a" * n: {"type": "null"}}), 120_000, "120,001 characters in names and values"),
        (lambda n: of("a", a={"const": "x" * (n - 1)}), 120_000, "120,001 characters in names and values"),
        (
            lambda n: of("a", a={"enum": [*(f"{i:03}" for i in range(250)), "x" * (n - 750)]}),
            15_000,
            "15,001 characters in the values of one `enum`, more than 15,000",
        ),
    ],
)
def test_a_strict_schema_has_its_limits(make: Callable[[int], Schema], most: int, reason: str) -> None:
    rewrite(make(most))

    with pytest.raises(NotExpressible, match=f"^the schema has {reason}"):
        rewrite(make(most + 1))


def test_few_values_may_be_long() -> None:
    schema = of("a", a={"type": "string", "enum": ["x" * 20_000, "y"]})

    assert rewrite(schema) == schema | {"additionalProperties": False}


def fan(make: Callable[[Schema], Schema], width: int = 10, length: int = 30) -> Schema:
    """Definitions that each refer to the next one several times."""
    definitions: Schema = {f"d{length}": {"type": "string"}}
    for number in range(length):
        reference = {"$ref": f"#/$defs/d{number + 1}"}
        definitions[f"d{number}"] = of(**{f"p{i}": make(reference) for i in range(width)})
    return of(a=make({"$ref": "#/$defs/d0"})) | {"$defs": definitions}


def chain(length: int, make: Callable[[Schema], Schema], width: int = 1) -> Schema:
    definitions: Schema = {f"d{number}": make({"$ref": f"#/$defs/d{number + 1}"}) for number in range(length)}
    first = {f"p{number}": {"$ref": "#/$defs/d0"} for number in range(width)}
    return of(**first) | {"$defs": definitions | {f"d{length}": {"type": "string"}}}


DESCRIBED: Schema = {"description": "x"}
BOMBS: dict[str, Callable[[], Schema]] = {
    "described references": lambda: fan(lambda reference: reference | DESCRIBED),
    "joined references": lambda: fan(lambda reference: {"allOf": [reference], "default": 1}),
    "unions with a type": lambda: fan(lambda reference: {"anyOf": [reference, reference], "type": "object"}),
    "long texts": lambda: fan(lambda reference: reference | {"default": "x" * 50_000}, length=3),
    "wide objects": lambda: fan(lambda reference: reference | DESCRIBED, width=300, length=2),
    "long chain": lambda: chain(5_000, lambda reference: reference, width=5_000),
    "long chain of unions": lambda: chain(5_000, lambda reference: {"anyOf": [reference]}, width=5_000),
    "long chain of words": lambda: chain(5_000, lambda reference: reference | DESCRIBED),
    "long chain of objects": lambda: chain(
        5_000, lambda reference: of(**{str(reference): {"type": "null"}}) | reference
    ),
    "long chain that is needed": lambda: chain(20_000, lambda reference: reference | DESCRIBED) | {"required": ["p0"]},
    "deep": lambda: nested(3_000),
    "deep unions": lambda: chain(1, lambda reference: json.loads('{"anyOf": [' * 45 + '{"type": "null"}' + "]}" * 45)),
    "deep data": lambda: of(a={"const": json.loads("[" * 900 + "]" * 900)}),
    "many values": lambda: of(a={"enum": [*range(200_000)]}),
}


def test_what_would_grow_without_end_is_given_up_soon(subtests: pytest.Subtests) -> None:
    for name in BOMBS:
        with subtests.test(name=name):
            schema = BOMBS[name]()
            answers: list[Schema | str] = []

            assert calls_of(lambda: answers.append(rewrite_or_reason(schema))) < MOST_CALLS  # noqa: B023 - called at once
            assert isinstance(answers[0], str)


def test_references_that_stay_do_not_grow() -> None:
    schema = fan(lambda reference: {"anyOf": [reference, reference], "title": "x"})

    assert len(rewrite(schema)["$defs"]) == 31


def test_every_tool_of_the_house_has_a_strict_schema_or_is_known_not_to(subtests: pytest.Subtests) -> None:
    for tool in BUILTINS:
        with subtests.test(tool=tool):
            strict = rewrite_or_reason(tool.schema)

            if isinstance(strict, str):
                assert GIVEN_UP.get(tool.name) == strict
            else:
                assert tool.name not in GIVEN_UP
                _require_strict(strict)


def _require_strict(strict: Schema) -> None:
    """It is a schema, one that the provider's own helpers would not change, and so would we not."""
    Draft202012Validator.check_schema(strict)
    ours, theirs = copy.deepcopy(strict), copy.deepcopy(strict)
    assert _ensure_strict_json_schema(ours, path=(), root=ours) == strict
    assert ensure_strict_json_schema(theirs) == strict
    assert json.dumps(rewrite(strict)) == json.dumps(strict)


@pytest.mark.sampled
@given(ANYTHING | damaged_schemas())
def test_anything_becomes_strict_or_is_given_up_and_stays_what_it_was(schema: Schema) -> None:
    before = copy.deepcopy(schema)
    strict = rewrite_or_reason(schema)
    assert strict
    assert schema == before
    if isinstance(strict, dict):
        _require_strict(strict)


@pytest.mark.sampled
@given(st.data())
def test_arguments_go_there_and_come_back(data: st.DataObject) -> None:
    """A null that the schema allows cannot be told from what was left out; all else comes back as it was.

    In a union, what one arm allows to be null another may not, so there only what is not null is compared, and that
    the arguments are right.
    """
    schema = data.draw(schemas())
    strict = rewrite_or_reason(schema)
    if isinstance(strict, str):
        assert " levels, " in strict
        return
    _require_strict(strict)
    given_ = data.draw(arguments(schema))
    filled = fillings(strict, given_)
    assert filled
    for one in filled:
        back = strip_nulls(schema, one)
        assert Draft202012Validator(schema).is_valid(back)
        assert without_nulls(back) == without_nulls(given_)
        assert has_union(schema) or _is_more_by_nulls(back, given_)


def _is_more_by_nulls(back: Any, given_: Any) -> bool:
    """Whether all of what was given is there, and besides only members that are null."""
    if isinstance(back, dict) and isinstance(given_, dict):
        return given_.keys() <= back.keys() and all(
            _is_more_by_nulls(inner, given_[name]) if name in given_ else inner is None for name, inner in back.items()
        )
    if isinstance(back, list) and isinstance(given_, list):
        return len(back) == len(given_) and all(map(_is_more_by_nulls, back, given_))
    return bool(back == given_)
