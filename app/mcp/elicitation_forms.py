"""Forms: what a person fills in for an MCP server, against the flat schema that the server sent.

There are texts, numbers, yes and no, one of several, and several of several. What
is left empty gets its default; numbers, yes and no may be given as texts.
"""

import math
import re
from datetime import date, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.core.util.json_codec import Raw


class Field(NamedTuple):
    """One line of a form, for who shows it: `options` are values with what they are called."""

    name: str
    title: str
    description: str
    kind: str
    options: list[tuple[str, str]]
    default: Any
    is_required: bool


EMAIL = re.compile(r"[^@\s]{1,256}@[^@\s]{1,256}")
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MOMENT = re.compile(DAY.pattern + r"[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
EXAMPLES = {
    "email": "ada@example.com",
    "uri": "https://example.com/page",
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
}
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


class Unfit(ValueError):
    """What keeps this from being an answer, in a sentence."""


def filled(content: Raw, shows: Raw) -> Raw:
    """The answer to an elicitation of either mode, by what its ask shows. Raises `Unfit`."""
    if shows.get("mode") != "url":
        schema = shows.get("requested_schema")
        return read(content, schema if isinstance(schema, dict) else {})
    if content:
        raise Unfit("The server asks for this on a page of its own: `{}` agrees to open it.")
    return {}


def read(content: Raw, schema: Raw) -> Raw:
    """The form as the server gets it. Raises `Unfit`."""
    fields = _fields(schema)
    if unknown := sorted(content.keys() - fields.keys()):
        raise Unfit(f"There is no field {', '.join(unknown)}; asked for are {', '.join(fields) or 'none'}.")
    read = {}
    for name, field in fields.items():
        value = content.get(name)
        if value is None:
            value = field.get("default")
        if value is not None:
            read[name] = _read(name, value, field)
    required = schema.get("required")
    if missing := [name for name in required if name not in read] if isinstance(required, list) else []:
        raise Unfit(f"Not filled in: {', '.join(str(name) for name in missing)}.")
    return read


def lines(schema: Raw) -> list[Field]:
    """A form as a person reads it, line by line."""
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [
        Field(
            name,
            str(field.get("title") or name),
            str(field.get("description") or ""),
            str(field.get("type") or ""),
            _labelled(field),
            field.get("default"),
            name in needed,
        )
        for name, field in _fields(schema).items()
    ]


def typed(given: str, field: Field) -> str | list[str]:
    """What was typed into one; numbers stand for options, and several are separated by commas."""
    values = [value for value, _ in field.options]
    several = [one.strip() for one in given.split(",")] if field.kind == "array" else [given]
    is_number = [one.isdecimal() and 0 < int(one) <= len(values) for one in several]
    meant = [values[int(one) - 1] if is_one else one for one, is_one in zip(several, is_number, strict=True)]
    return meant if field.kind == "array" else meant[0]


def _labelled(field: Raw) -> list[tuple[str, str]]:
    holder = field.get("items") if field.get("type") == "array" else field
    if not isinstance(holder, dict):
        return []
    values, names = choices(holder), holder.get("enumNames")
    for keyword in ("oneOf", "anyOf"):
        if isinstance(titled := holder.get(keyword), list):
            names = [one.get("title") for one in titled if isinstance(one, dict) and "const" in one]
    if not isinstance(names, list) or len(names) != len(values):
        names = values
    return [(value, str(name or value)) for value, name in zip(values, names, strict=True)]


def _fields(schema: Raw) -> dict[str, Raw]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: field if isinstance(field, dict) else {} for name, field in properties.items()}


def _read(name: str, value: Any, field: Raw) -> Any:
    match field.get("type"):
        case "string":
            return _text(name, value, field)
        case "integer" | "number" as kind:
            return _number(name, value, field, kind)
        case "boolean":
            return _truth(name, value)
        case "array":
            return _several(name, value, field)
    return value


def _text(name: str, value: Any, field: Raw) -> str:
    if not isinstance(value, str):
        raise Unfit(f"{name} has to be a text.")
    if (options := choices(field)) and value not in options:
        raise Unfit(f"{name} has to be one of {', '.join(options)}.")
    least, most = field.get("minLength"), field.get("maxLength")
    if isinstance(least, int) and len(value) < least:
        raise Unfit(f"{name} has to have at least {least} characters.")
    if isinstance(most, int) and len(value) > most:
        raise Unfit(f"{name} has to have at most {most} characters.")
    if not _is_of(value, field.get("format")):
        raise Unfit(f"{name} has to be of the format {field['format']}, such as {EXAMPLES[field['format']]}.")
    return value


def _number(name: str, value: Any, field: Raw, kind: str) -> int | float:
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, float) and kind == "integer" and value.is_integer():
        value = int(value)
    wanted = int if kind == "integer" else int | float
    is_endless = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, wanted) or is_endless:
        raise Unfit(f"{name} has to be {'a whole number' if kind == 'integer' else 'a number'}.")
    least, most = field.get("minimum"), field.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise Unfit(f"{name} has to be at least {least}.")
    if isinstance(most, int | float) and value > most:
        raise Unfit(f"{name} has to be at most {most}.")
    return value


def _number_in(text: str) -> int | float | None:
    if re.fullmatch(r"\s*[+-]?[0-9]{1,300}\s*", text):
        return int(text)
    if re.fullmatch(r"\s*[+-]?[0-9]{1,300}(\.[0-9]{0,300})?([eE][+-]?[0-9]{1,3})?\s*", text):
        return float(text)
    return None


def _truth(name: str, value: Any) -> bool:
    if isinstance(value, str):
        value = TRUTHS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise Unfit(f"{name} has to be true or false.")
    return value


def _several(name: str, value: Any, field: Raw) -> list[Any]:
    chosen = [value] if isinstance(value, str) else value
    if not isinstance(chosen, list):
        raise Unfit(f"{name} has to be a list.")
    items = field.get("items")
    options = choices(items) if isinstance(items, dict) else []
    if options and (other := [one for one in chosen if one not in options]):
        raise Unfit(f"{name} cannot have {', '.join(map(str, other))}; there are {', '.join(options)}.")
    least, most = field.get("minItems"), field.get("maxItems")
    if isinstance(least, int) and len(chosen) < least:
        raise Unfit(f"{name} has to have at least {least} of them.")
    if isinstance(most, int) and len(chosen) > most:
        raise Unfit(f"{name} has to have at most {most} of them.")
    return chosen


def choices(field: Raw) -> list[str]:
    """What can be chosen, in either of the ways that schemas say it; none where anything goes."""
    if isinstance(listed := field.get("enum"), list):
        return [str(one) for one in listed]
    for keyword in ("oneOf", "anyOf"):
        if isinstance(titled := field.get(keyword), list):
            return [str(one["const"]) for one in titled if isinstance(one, dict) and "const" in one]
    return []


def _is_of(text: str, format: Any) -> bool:
    try:
        match format:
            case "email":
                return EMAIL.fullmatch(text) is not None
            case "uri":
                return bool(urlsplit(text).scheme)
            case "date":
                return DAY.fullmatch(text) is not None and bool(date.fromisoformat(text))
            case "date-time":
                return MOMENT.fullmatch(text) is not None and bool(datetime.fromisoformat(text.upper()))
    except ValueError:
        return False
    return True
