"""Elicitation forms: a person's answer, validated against the flat schema of the MCP server.

Fields are strings, numbers, booleans, enums and lists of enums. An empty field gets its default; numbers and booleans
may be given as strings.
"""

import math
import re
from datetime import date, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.core.util.json_codec import Raw


class Field(NamedTuple):
    """One field of a form. `options` are values with their labels."""

    name: str
    title: str
    description: str
    kind: str
    options: list[tuple[str, str]]
    default: Any
    is_required: bool


EMAIL = re.compile(r"[^@\s]{1,256}@[^@\s]{1,256}")
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
DATE_TIME = re.compile(DATE.pattern + r"[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
EXAMPLES = {
    "email": "ada@example.com",
    "uri": "https://example.com/page",
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
}
BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


class InvalidAnswer(ValueError):
    """The answer is invalid; the message says why."""


def read_answer(content: Raw, shown: Raw) -> Raw:
    """The answer to an elicitation of either mode, by what its ask showed. Raises `InvalidAnswer`."""
    if shown.get("mode") != "url":
        schema = shown.get("requested_schema")
        return read_form(content, schema if isinstance(schema, dict) else {})
    if content:
        raise InvalidAnswer("The server asks for this on a web page of its own: `{}` agrees to open it.")
    return {}


def read_form(content: Raw, schema: Raw) -> Raw:
    """The form as the server gets it. Raises `InvalidAnswer`."""
    fields = _fields(schema)
    if unknown := sorted(content.keys() - fields.keys()):
        raise InvalidAnswer(f"There is no field {', '.join(unknown)}; the fields are {', '.join(fields) or 'none'}.")
    answer = {}
    for name, field in fields.items():
        value = content.get(name)
        if value is None:
            value = field.get("default")
        if value is not None:
            answer[name] = _read_field(name, value, field)
    required = schema.get("required")
    if missing := [name for name in required if name not in answer] if isinstance(required, list) else []:
        raise InvalidAnswer(f"Required: {', '.join(str(name) for name in missing)}.")
    return answer


def form_fields(schema: Raw) -> list[Field]:
    """The fields of a form, for display."""
    required = schema.get("required")
    required_names = required if isinstance(required, list) else []
    return [
        Field(
            name=name,
            title=str(field.get("title") or name),
            description=str(field.get("description") or ""),
            kind=str(field.get("type") or ""),
            options=_options(field),
            default=field.get("default"),
            is_required=name in required_names,
        )
        for name, field in _fields(schema).items()
    ]


def parse_typed(text: str, field: Field) -> str | list[str]:
    """What a person typed: numbers stand for options, and several are separated by commas."""
    values = [value for value, _ in field.options]

    def option(word: str) -> str:
        is_number = word.isdecimal() and 0 < int(word) <= len(values)
        return values[int(word) - 1] if is_number else word

    if field.kind == "array":
        return [option(word.strip()) for word in text.split(",")]
    return option(text)


def _options(field: Raw) -> list[tuple[str, str]]:
    schema = field.get("items") if field.get("type") == "array" else field
    if not isinstance(schema, dict):
        return []
    values, labels = choices(schema), schema.get("enumNames")
    for keyword in ("oneOf", "anyOf"):
        if isinstance(titled := schema.get(keyword), list):
            labels = [one.get("title") for one in titled if isinstance(one, dict) and "const" in one]
    if not isinstance(labels, list) or len(labels) != len(values):
        labels = values
    return [(value, str(label or value)) for value, label in zip(values, labels, strict=True)]


def _fields(schema: Raw) -> dict[str, Raw]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: field if isinstance(field, dict) else {} for name, field in properties.items()}


def _read_field(name: str, value: Any, field: Raw) -> Any:
    match field.get("type"):
        case "string":
            return _text(name, value, field)
        case "integer" | "number" as kind:
            return _number(name, value, field, kind)
        case "boolean":
            return _boolean(name, value)
        case "array":
            return _list(name, value, field)
    return value


def _text(name: str, value: Any, field: Raw) -> str:
    if not isinstance(value, str):
        raise InvalidAnswer(f"{name} must be a string.")
    if (options := choices(field)) and value not in options:
        raise InvalidAnswer(f"{name} must be one of {', '.join(options)}.")
    minimum, maximum = field.get("minLength"), field.get("maxLength")
    if isinstance(minimum, int) and len(value) < minimum:
        raise InvalidAnswer(f"{name} must have at least {minimum} characters.")
    if isinstance(maximum, int) and len(value) > maximum:
        raise InvalidAnswer(f"{name} must have at most {maximum} characters.")
    if not _has_format(value, field.get("format")):
        raise InvalidAnswer(f"{name} must have the format {field['format']}, such as {EXAMPLES[field['format']]}.")
    return value


def _number(name: str, value: Any, field: Raw, kind: str) -> int | float:
    if isinstance(value, str):
        value = _parse_number(value)
    if isinstance(value, float) and kind == "integer" and value.is_integer():
        value = int(value)
    type_ = int if kind == "integer" else int | float
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, type_) or is_infinite:
        raise InvalidAnswer(f"{name} must be {'a whole number' if kind == 'integer' else 'a number'}.")
    minimum, maximum = field.get("minimum"), field.get("maximum")
    if isinstance(minimum, int | float) and value < minimum:
        raise InvalidAnswer(f"{name} must be at least {minimum}.")
    if isinstance(maximum, int | float) and value > maximum:
        raise InvalidAnswer(f"{name} must be at most {maximum}.")
    return value


def _parse_number(text: str) -> int | float | None:
    if re.fullmatch(r"\s*[+-]?[0-9]{1,300}\s*", text):
        return int(text)
    if re.fullmatch(r"\s*[+-]?[0-9]{1,300}(\.[0-9]{0,300})?([eE][+-]?[0-9]{1,3})?\s*", text):
        return float(text)
    return None


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, str):
        value = BOOLEANS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise InvalidAnswer(f"{name} must be true or false.")
    return value


def _list(name: str, value: Any, field: Raw) -> list[Any]:
    chosen = [value] if isinstance(value, str) else value
    if not isinstance(chosen, list):
        raise InvalidAnswer(f"{name} must be a list.")
    items = field.get("items")
    options = choices(items) if isinstance(items, dict) else []
    if options and (other := [one for one in chosen if one not in options]):
        raise InvalidAnswer(f"{name} cannot have {', '.join(map(str, other))}; the options are {', '.join(options)}.")
    minimum, maximum = field.get("minItems"), field.get("maxItems")
    if isinstance(minimum, int) and len(chosen) < minimum:
        raise InvalidAnswer(f"{name} must have at least {minimum} items.")
    if isinstance(maximum, int) and len(chosen) > maximum:
        raise InvalidAnswer(f"{name} must have at most {maximum} items.")
    return chosen


def choices(field: Raw) -> list[str]:
    """The values of an enum, in any of the forms that schemas use; empty where any value is allowed."""
    if isinstance(listed := field.get("enum"), list):
        return [str(one) for one in listed]
    for keyword in ("oneOf", "anyOf"):
        if isinstance(titled := field.get(keyword), list):
            return [str(one["const"]) for one in titled if isinstance(one, dict) and "const" in one]
    return []


def _has_format(text: str, format: Any) -> bool:
    try:
        match format:
            case "email":
                return EMAIL.fullmatch(text) is not None
            case "uri":
                return bool(urlsplit(text).scheme)
            case "date":
                return DATE.fullmatch(text) is not None and bool(date.fromisoformat(text))
            case "date-time":
                return DATE_TIME.fullmatch(text) is not None and bool(datetime.fromisoformat(text.upper()))
    except ValueError:
        return False
    return True
