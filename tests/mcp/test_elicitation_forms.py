"""Forms: what a person filled in, against the flat schemas that MCP servers send."""

from typing import Any

import pytest

from app.mcp import elicitation_forms

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 2, "maxLength": 5},
        "mail": {"type": "string", "format": "email"},
        "page": {"type": "string", "format": "uri"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "age": {"type": "integer", "minimum": 1, "maximum": 120, "default": 30},
        "share": {"type": "number", "minimum": 0.5},
        "sure": {"type": "boolean", "description": "Really?"},
        "colour": {"type": "string", "enum": ["red", "blue"], "enumNames": ["Red", "Blue"]},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 2},
        "kinds": {"type": "array", "items": {"anyOf": [{"const": "k", "title": "Kind"}]}, "default": ["k"]},
    },
    "required": ["name"],
}


def test_what_fits_is_given_on_with_its_defaults() -> None:
    assert elicitation_forms.read_form({"name": "Ada", "sure": True, "tags": ["a", "b"]}, SCHEMA) == {
        "name": "Ada",
        "age": 30,
        "sure": True,
        "tags": ["a", "b"],
        "kinds": ["k"],
    }


def test_texts_are_read_as_what_they_should_be() -> None:
    given = {"name": "Ada", "age": " 41 ", "share": "1.5", "sure": "yes", "tags": "c", "kinds": None}

    assert elicitation_forms.read_form(given, SCHEMA) == {
        "name": "Ada",
        "age": 41,
        "share": 1.5,
        "sure": True,
        "tags": ["c"],
        "kinds": ["k"],
    }


def test_what_does_not_fit_is_said_in_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "Required: name."),
        ({"name": None}, "Required: name."),
        ({"name": "Ada", "nme": 1}, "There is no field nme; the fields are name, mail, "),
        ({"name": 5}, "name must be a string."),
        ({"name": "A"}, "name must have at least 2 characters."),
        ({"name": "Augusta"}, "name must have at most 5 characters."),
        ({"name": "Ada", "mail": "nobody"}, "mail must have the format email, such as ada@example.com."),
        ({"name": "Ada", "page": "nowhere"}, "page must have the format uri, such as https://example.com/page."),
        ({"name": "Ada", "day": "tomorrow"}, "day must have the format date, such as 2026-01-31."),
        ({"name": "Ada", "day": "20260131"}, "day must have the format date, such as 2026-01-31."),
        ({"name": "Ada", "day": "2026-02-30"}, "day must have the format date, such as 2026-01-31."),
        ({"name": "Ada", "at": "noon"}, "at must have the format date-time, such as 2026-01-31T12:00:00Z."),
        ({"name": "Ada", "at": "2026-01-31"}, "at must have the format date-time, such as 2026-01-31T12:00:00Z."),
        ({"name": "Ada", "at": "2026-01-31T12:00"}, "at must have the format date-time, such as "),
        ({"name": "Ada", "at": "2026-01-31T25:00:00Z"}, "at must have the format date-time, such as "),
        ({"name": "Ada", "age": "old"}, "age must be a whole number."),
        ({"name": "Ada", "age": 1.5}, "age must be a whole number."),
        ({"name": "Ada", "age": True}, "age must be a whole number."),
        ({"name": "Ada", "age": 0}, "age must be at least 1."),
        ({"name": "Ada", "age": 121}, "age must be at most 120."),
        ({"name": "Ada", "share": "much"}, "share must be a number."),
        ({"name": "Ada", "share": float("inf")}, "share must be a number."),
        ({"name": "Ada", "share": float("nan")}, "share must be a number."),
        ({"name": "Ada", "age": 10**400}, "age must be at most 120."),
        ({"name": "Ada", "sure": "perhaps"}, "sure must be true or false."),
        ({"name": "Ada", "colour": "Red"}, "colour must be one of red, blue."),
        ({"name": "Ada", "size": "m"}, "size must be one of s, l."),
        ({"name": "Ada", "tags": ["a", "x"]}, "tags cannot have x; the options are a, b, c."),
        ({"name": "Ada", "tags": []}, "tags must have at least 1 items."),
        ({"name": "Ada", "tags": ["a", "b", "c"]}, "tags must have at most 2 items."),
        ({"name": "Ada", "tags": 3}, "tags must be a list."),
    ]
    for content, sentence in cases:
        with subtests.test(content=content, sentence=sentence):
            with pytest.raises(elicitation_forms.InvalidAnswer) as refused:
                elicitation_forms.read_form(content, SCHEMA)

            assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("at", ["2026-01-31T12:00:00Z", "2026-01-31t12:00:00.25z", "2026-01-31 12:00:00+05:30"])
def test_a_moment_is_written_as_the_standard_has_it(at: str) -> None:
    given = {"name": "Ada", "day": "2024-02-29", "at": at}

    assert given.items() <= elicitation_forms.read_form(given, SCHEMA).items()


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"required": "name"}, {"properties": {"x": 3}}])
def test_a_schema_that_is_none_asks_for_nothing(schema: dict[str, Any]) -> None:
    assert elicitation_forms.read_form({}, schema) == {}


def test_a_page_is_agreed_to_or_not_and_nothing_is_filled_in() -> None:
    shows = {"mode": "url", "url": "https://example.com/pay"}

    assert elicitation_forms.read_answer({}, shows) == {}
    with pytest.raises(elicitation_forms.InvalidAnswer, match="on a web page of its own"):
        elicitation_forms.read_answer({"card": "4242"}, shows)


def test_a_form_is_read_line_by_line_and_numbers_stand_for_options() -> None:
    lines = {line.name: line for line in elicitation_forms.form_fields(SCHEMA)}

    assert [lines["name"].title, lines["name"].is_required, lines["age"].default] == ["Name", True, 30]
    assert lines["colour"].options == [("red", "Red"), ("blue", "Blue")]
    assert lines["size"].options == [("s", "Small"), ("l", "Large")]
    assert lines["kinds"].options == [("k", "Kind")]
    assert elicitation_forms.parse_typed("2", lines["colour"]) == "blue"
    assert elicitation_forms.parse_typed("3", lines["colour"]) == "3"
    assert elicitation_forms.parse_typed("1, c", lines["tags"]) == ["a", "c"]
    assert elicitation_forms.parse_typed("2", lines["age"]) == "2"
