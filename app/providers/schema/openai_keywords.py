"""Keywords of OpenAI's strict schemas: which are kept, which go into the description.

Any other keyword is dropped, such as `title`, `$comment`, `readOnly` or `x-order`.
"""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from app.core.util.json_schema import Schema

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
NUMBERS = frozenset({"number", "integer"})
FORBIDDEN = (
    *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
    *("$dynamicRef", "$recursiveRef"),
)
MAX_PATTERN_LENGTH = 1_000
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P=|\\k<")
"""Lookarounds and backreferences, also after an escaped backslash or bracket."""


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_plain_pattern(value: Any) -> bool:
    """Whether OpenAI compiles a pattern: Python's syntax, without lookarounds."""
    if not isinstance(value, str) or len(value) > MAX_PATTERN_LENGTH or _LOOKS_AROUND.search(value):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


KEPT: dict[str, tuple[frozenset[str], Callable[[Any], bool]]] = {
    "minimum": (NUMBERS, _is_number),
    "maximum": (NUMBERS, _is_number),
    "exclusiveMinimum": (NUMBERS, _is_number),
    "exclusiveMaximum": (NUMBERS, _is_number),
    "multipleOf": (NUMBERS, lambda value: _is_number(value) and value > 0),
    "minItems": (frozenset({"array"}), _is_count),
    "maxItems": (frozenset({"array"}), _is_count),
    "pattern": (frozenset({"string"}), _is_plain_pattern),
    "format": (frozenset({"string"}), lambda value: isinstance(value, str) and value in FORMATS),
}
"""The types that a keyword applies to, and whether its value can be kept."""
DESCRIBED: dict[str, tuple[frozenset[str], Callable[[Any], bool]]] = {
    **{keyword: (frozenset({"string"}), lambda value: True) for keyword in ("minLength", "maxLength")},
    **{keyword: (frozenset({"string"}), lambda value: True) for keyword in ("contentEncoding", "contentMediaType")},
    **{keyword: (frozenset({"array"}), lambda value: True) for keyword in ("contains", "minContains", "maxContains")},
    **{keyword: (frozenset({"object"}), lambda value: True) for keyword in ("minProperties", "maxProperties")},
    "uniqueItems": (frozenset({"array"}), bool),
    "default": (frozenset(TYPES), lambda value: value is not None),
    "examples": (frozenset(TYPES), bool),
    "example": (frozenset(TYPES), lambda value: value is not None),
    "deprecated": (frozenset(TYPES), bool),
}
"""The types that a keyword applies to, and whether its value is worth describing."""
STRUCTURE = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const", "properties", "required", "additionalProperties"}
    | {"patternProperties", "propertyNames", "unevaluatedProperties", "items", "prefixItems", "unevaluatedItems"}
    | {*FORBIDDEN}
)
SHARED = STRUCTURE - {"$ref", "allOf", "anyOf", "oneOf"} | KEPT.keys()
"""Keywords beside a union that apply to each of its arms."""


def is_meaningful(keyword: str, value: Any) -> bool:
    """Whether dropping a keyword loses something."""
    if keyword in DESCRIBED:
        return DESCRIBED[keyword][1](value)
    return keyword in STRUCTURE or keyword in KEPT or keyword == "description"


def is_constraining(keyword: str) -> bool:
    return keyword in STRUCTURE or keyword in KEPT


def kept_words(schema: Schema, types: Iterable[str]) -> Schema:
    """The non-structural keywords that a strict schema of these types can have."""
    return {keyword: value for keyword, value in schema.items() if _is_kept(keyword, value, types)}


def description(schema: Schema, types: Iterable[str]) -> str | None:
    """The description, with the keywords that cannot be kept at its end; None when empty."""
    text = schema.get("description")
    described = [f"{name}: {_text(name, value)}" for name, value in schema.items() if _is_described(name, value, types)]
    parts = [
        *([text] if isinstance(text, str) and text else []),
        *([f"{{{', '.join(described)}}}"] if described else []),
    ]
    return " ".join(parts) or None


def types_of(values: Any) -> list[str] | None:
    """The types of the allowed values; None when they are not a list of scalars."""
    if not isinstance(values, list):
        return None
    found = [_type_of(value) for value in values]
    if any(name is None for name in found):
        return None
    names = list(dict.fromkeys(name for name in found if name))
    return [name for name in names if name != "integer"] if "number" in names else names


def _is_kept(keyword: str, value: Any, types: Iterable[str]) -> bool:
    if keyword not in KEPT:
        return False
    applies, is_fit = KEPT[keyword]
    return not applies.isdisjoint(types) and is_fit(value)


def _is_described(keyword: str, value: Any, types: Iterable[str]) -> bool:
    if keyword in KEPT:
        applies, is_fit = KEPT[keyword]
        return not applies.isdisjoint(types) and not is_fit(value)
    return keyword in DESCRIBED and not DESCRIBED[keyword][0].isdisjoint(types) and DESCRIBED[keyword][1](value)


def _text(keyword: str, value: Any) -> str:
    return value if keyword == "format" and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _type_of(value: Any) -> str | None:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case _:
            return None
