"""JSON Schemas of strangers: refused with a sentence, or a check whose answers a model can act on."""

from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.custom.json_schema import check_schema, make_parser

Schema = dict[str, Any]


def of(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


def told(schema: Schema, args: Any) -> tuple[str, list[str]]:
    """What a model is told about arguments that do not fit."""
    with pytest.raises(InvalidArgs) as refused:
        make_parser("tool", schema)(args)
    prefix = "tool cannot take these arguments: "
    assert refused.value.message.startswith(prefix)
    assert refused.value.details is not None
    return refused.value.message.removeprefix(prefix), refused.value.details["fields"]


def nested(levels: int) -> Schema:
    schema: Schema = {"type": "object"}
    for _ in range(levels):
        schema = of(inner=schema)
    return schema


CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(500)} | {"d500": {"type": "string"}}


def test_a_schema_that_cannot_describe_arguments_is_refused_with_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, str]] = [
        ({}, '"type": "object"'),
        ({"type": "array"}, '"type": "object"'),
        ({"type": "object", "properties": 3}, "not a JSON Schema at properties"),
        (of(a={"type": "strin"}), "not a JSON Schema at properties/a/type"),
        (of(a={"$ref": "https://example.com/schema.json"}), "leads out of the schema"),
        (of(a={"$ref": "other.json#/x"}), "leads out of the schema"),
        (of(a={"$ref": "#/$defs/missing"}), "leads to no schema"),
        (of(a={"$ref": "#/x-hidden"}) | {"x-hidden": {"type": "string"}}, "leads to no schema"),
        (of(a={"$ref": "#/properties/a"}), "in circles"),
        (of(a={"$ref": "#/$defs/a"}) | CIRCLE, "in circles"),
        (of(a={"$ref": "#/$defs/d0"}) | {"$defs": CHAIN}, "in circles"),
        (of(a={"pattern": "("}), "regex"),
        (of(a={"pattern": r"\p{L}"}), "regex"),
        ({"type": "object", "patternProperties": {"^(a+)+$": {}}}, "could take forever"),
        (of(a={"$dynamicRef": "#x"}), "not supported"),
        (of(a={"$id": "https://example.com/"}), "only the schema itself"),
        ({"$schema": "https://example.com/dialect"} | of(), "is not known"),
        (nested(60), "deep"),
        (of(**{f"p{i}": {"description": "x" * 1000} for i in range(300)}), "KiB"),
    ]
    for schema, sentence in cases:
        with subtests.test(schema=schema, sentence=sentence):
            with pytest.raises(ValueError, match=r"^parameters: ") as refused:
                check_schema(schema)

            assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        of(**{"$ref": {"type": "string"}, "enum": {"type": "integer"}, "default": {"pattern": "x"}}),
        of(a={"enum": [{"$ref": "https://example.com/"}], "default": {"$id": "x"}}),
        {"$schema": "http://json-schema.org/draft-07/schema#"} | of(a={"type": "string"}),
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/me"} | of(),
        of(tree={"$ref": "#"}),
    ],
)
def test_what_only_looks_odd_is_a_schema(schema: Schema) -> None:
    check_schema(schema)


def test_arguments_that_fit_come_back_as_they_are() -> None:
    args = {"a": 1, "b": [True, None], "more": {"x": 1.5}}

    assert make_parser("tool", of(a={"type": "integer"}, b={"type": "array"}))(args) is args


def test_what_was_sent_as_text_is_read_where_the_schema_wants_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Any, Any]] = [
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, " -3 ", -3),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "7", 7),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2, "3"], [1, 2, 3]),
        ({"type": "object", "properties": {"x": {"type": "boolean"}}}, {"x": "true"}, {"x": True}),
        ({"type": "string"}, "12", "12"),
        ({"type": ["string", "integer"]}, "12", "12"),
        ({}, "true", "true"),
    ]
    for schema, given, read in cases:
        with subtests.test(schema=schema, given=given, read=read):
            args = {"a": given}

            parsed = make_parser("tool", of(a=schema))(args)

            assert parsed == {"a": read}
            assert type(parsed["a"]) is type(read)
            assert args == {"a": given}


@pytest.mark.parametrize(
    ("type", "given"),
    [("integer", "1.5"), ("integer", "x"), ("number", "1e999"), ("number", "nan"), ("boolean", "yes"), ("integer", "")],
)
def test_text_that_says_something_else_is_not_read(type: str, given: str) -> None:
    assert told(of(a={"type": type}), {"a": given}) == (
        f"`a`: expected {type} (got {given!r}). It takes: a.",
        ["a"],
    )


def test_a_mistake_is_told_with_its_field_and_what_is_expected(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Schema, Any, str, list[str]]] = [
        (of(a={}) | {"required": ["a", "b"]}, {}, "`a` is required; `b` is required. It takes: a.", ["a", "b"]),
        (
            of(a={}) | {"additionalProperties": False},
            {"x": 1, "y": 2},
            "`x` is not a parameter of this tool, leave it out; `y` is not a parameter of this tool, leave it out. "
            "It takes: a.",
            ["x", "y"],
        ),
        (of(a={"type": "integer"}), [], "`arguments`: expected object (got []). It takes: a.", ["arguments"]),
        (of(a={"enum": ["x", 2]}), {"a": "z"}, "`a`: must be one of 'x', 2 (got 'z'). It takes: a.", ["a"]),
        (of(a={"type": "integer", "minimum": 3}), {"a": "2"}, "`a`: must be at least 3 (got 2). It takes: a.", ["a"]),
        (of(a={"pattern": "^x"}), {"a": "y"}, "`a`: must match the pattern '^x' (got 'y'). It takes: a.", ["a"]),
        (
            of(a={"maxLength": 2}),
            {"a": "long"},
            "`a`: must have at most 2 characters (got 'long'). It takes: a.",
            ["a"],
        ),
        (
            of(a={"type": "array", "items": {"type": "object", "required": ["id"]}}),
            {"a": [{"id": 1}, {}]},
            "`a.1.id` is required. It takes: a.",
            ["a.1.id"],
        ),
        (
            of(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
            {"a": []},
            "`a`: expected integer or null (got []). It takes: a.",
            ["a"],
        ),
        (
            of(a={"oneOf": [{"type": "object", "required": ["x"]}, {"type": "string"}]}),
            {"a": {}},
            "`a.x` is required. It takes: a.",
            ["a.x"],
        ),
        (of(a={"not": {}}), {"a": 1}, "`a`: does not fit `not` of its schema (got 1). It takes: a.", ["a"]),
    ]
    for schema, args, sentence, fields in cases:
        with subtests.test(schema=schema, args=args, sentence=sentence, fields=fields):
            assert told(schema, args) == (sentence, fields)


def test_at_most_five_mistakes_are_told() -> None:
    schema = of(**{f"p{i}": {"type": "integer"} for i in range(8)})

    sentence, fields = told(schema, {f"p{i}": "x" for i in range(8)})

    assert sentence.count("expected integer") == 5
    assert "; and 3 more." in sentence
    assert len(fields) == 8


def test_local_references_work_also_where_a_schema_holds_itself() -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["v"],
    }
    schema = of(list={"$ref": "#/$defs/node"}) | {"$defs": {"node": node}}

    assert make_parser("tool", schema)({"list": {"v": "1", "next": {"v": 2}}}) == {"list": {"v": 1, "next": {"v": 2}}}
    assert told(schema, {"list": {"v": 1, "next": {}}})[1] == ["list.next.v"]


def test_a_reference_of_draft_7_takes_the_place_of_what_stands_beside_it() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"n": {"type": "integer"}}}
    schema |= of(a={"$ref": "#/definitions/n", "type": "string"})

    assert make_parser("tool", schema)({"a": 3}) == {"a": 3}


def test_a_long_text_is_not_matched_with_a_pattern_that_could_take_forever() -> None:
    parse = make_parser("tool", of(a={"pattern": "^(a+)+$"}))

    assert parse({"a": "a" * 100 + "!"}) == {"a": "a" * 100 + "!"}
    with pytest.raises(InvalidArgs):
        parse({"a": "a!"})


def test_a_check_that_would_multiply_is_given_up() -> None:
    defs: Schema = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(20)} | {
        "d20": {"type": "null"}
    }
    parse = make_parser("tool", of(a={"$ref": "#/$defs/d0"}) | {"$defs": defs})

    assert parse({"a": None}) == {"a": None}
    with pytest.raises(InvalidArgs, match="too long or too deep"):
        parse({"a": 1})


def test_arguments_too_deep_to_check_are_refused() -> None:
    args: dict[str, Any] = {}
    for _ in range(5000):
        args = {"tree": args}

    with pytest.raises(InvalidArgs, match="too long or too deep"):
        make_parser("tool", of(tree={"$ref": "#"}))(args)


def test_names_are_matched_with_patterns_only_as_far_as_that_is_quick() -> None:
    parse = make_parser("tool", {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}})

    assert parse({"x-a": "1", "b": "c"}) == {"x-a": 1, "b": "c"}
    with pytest.raises(InvalidArgs, match="too long"):
        parse({"n" * 200: 1})
