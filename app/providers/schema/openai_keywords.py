"""The keywords of a strict schema: which of them are kept, which are only told in the description, which mean nothing.

A keyword that is in none of these tables and that no other rule knows is dropped without a word, such as `title`,
`$comment`, `readOnly` or `x-order`.
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
LONGEST_PATTERN = 1_000
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P=|\\k<")
"""What looks ahead, behind or back. An escaped backslash or bracket before it is taken for it, too."""


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_plain_pattern(value: Any) -> bool:
    """Whether a pattern is one that the provider compiles: with Python's rules, and without looking around."""
    if not isinstance(value, str) or len(value) > LONGEST_PATTERN or _LOOKS_AROUND.search(value):
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
"""For values of which types a keyword means something, and whether it can be kept as it is."""
TOLD: dict[str, tuple[frozenset[str], Callable[[Any], bool]]] = {
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
"""For values of which types a keyword means something, and whether it is worth telling."""
STRUCTURE = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const", "properties", "required", "additionalProperties"}
    | {"patternProperties", "propertyNames", "unevaluatedProperties", "items", "prefixItems", "unevaluatedItems"}
    | {*FORBIDDEN}
)
SHARED = STRUCTURE - {"$ref", "allOf", "anyOf", "oneOf"} | KEPT.keys()
"""What holds for every arm of the union it stands beside."""


def is_meaningful(keyword: str, value: Any) -> bool:
    """Whether something is lost when a keyword is."""
    if keyword in TOLD:
        return TOLD[keyword][1](value)
    return keyword in STRUCTURE or keyword in KEPT or keyword == "description"


def is_constraining(keyword: str) -> bool:
    return keyword in STRUCTURE or keyword in KEPT


def kept_words(schema: Schema, types: Iterable[str]) -> Schema:
    """The keywords besides the structure that a strict schema of these types can have."""
    return {keyword: value for keyword, value in schema.items() if _is_kept(keyword, value, types)}


def description(schema: Schema, types: Iterable[str]) -> str | None:
    """The description, with what cannot be kept told at its end; None when there is nothing to say."""
    said = schema.get("description")
    told = [f"{name}: {_text(name, value)}" for name, value in schema.items() if _is_told(name, value, types)]
    parts = [*([said] if isinstance(said, str) and said else []), *([f"{{{', '.join(told)}}}"] if told else [])]
    return " ".join(parts) or None


def types_of(values: Any) -> list[str] | None:
    """The types of the values that are allowed; None when they are no list, or one of them is no scalar."""
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


def _is_told(keyword: str, value: Any, types: Iterable[str]) -> bool:
    if keyword in KEPT:
        applies, is_fit = KEPT[keyword]
        return not applies.isdisjoint(types) and not is_fit(value)
    return keyword in TOLD and not TOLD[keyword][0].isdisjoint(types) and TOLD[keyword][1](value)


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
