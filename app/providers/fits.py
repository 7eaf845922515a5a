"""Whether a value fits a schema, as far as that tells the arms of a union apart: types, values, bounds and lengths.

`pattern`, `format`, `multipleOf`, `uniqueItems`, `contains`, `not`, `if` and what depends on other properties are not
looked at.
"""

import operator
from collections.abc import Callable
from enum import IntEnum
from typing import Any

Bounds = tuple[tuple[str, Callable[[Any, Any], bool]], ...]

OF_NUMBERS: Bounds = (
    ("minimum", operator.ge),
    ("maximum", operator.le),
    ("exclusiveMinimum", operator.gt),
    ("exclusiveMaximum", operator.lt),
)
OF_TEXTS: Bounds = (("minLength", operator.ge), ("maxLength", operator.le))
OF_LISTS: Bounds = (("minItems", operator.ge), ("maxItems", operator.le))
OF_OBJECTS: Bounds = (("minProperties", operator.ge), ("maxProperties", operator.le))


class Fit(IntEnum):
    """How well a value fits: by its type alone, with names that are not known, with a part of the names, with all."""

    NO = 0
    IN_KIND = 1
    OPEN = 2
    CLOSED = 3
    STRICT = 4


def is_of_kind(value: Any, schema: Any) -> bool:
    """Whether the type of a value is right, and a scalar is one that is allowed."""
    if not isinstance(schema, dict):
        return schema is not False
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_a(value, name) for name in types):
            return False
    if isinstance(value, dict | list):
        return True
    if "const" in schema and not _is_same(value, schema["const"]):
        return False
    values = schema.get("enum")
    return not isinstance(values, list) or any(_is_same(value, one) for one in values)


def is_within(value: Any, schema: Any) -> bool:
    """Whether a value keeps to the bounds."""
    if not isinstance(schema, dict) or isinstance(value, bool | None):
        return True
    match value:
        case int() | float():
            return _keeps(value, schema, OF_NUMBERS)
        case str():
            return _keeps(len(value), schema, OF_TEXTS)
        case list():
            return _keeps(len(value), schema, OF_LISTS)
        case _:
            return _keeps(len(value), schema, OF_OBJECTS)


def _keeps(size: float, schema: dict[str, Any], bounds: Bounds) -> bool:
    return all(test(size, schema[word]) for word, test in bounds if _is_number(schema.get(word)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(value: Any, name: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case "number":
            return _is_number(value)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return False


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
