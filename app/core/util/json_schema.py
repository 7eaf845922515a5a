"""References and subschemas of JSON Schema documents, for all code that checks or rewrites schemas."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]
Pointer = tuple[str, ...]
"""The names and indexes that lead to a part of a document."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLES = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
)
"""Keywords whose values are schemas by name, lists of schemas, and single schemas."""
MAX_INDEX_DIGITS = 6


def resolve(document: Any, reference: str) -> tuple[Pointer, Any] | None:
    """The pointer of a local `$ref` and its target; None when it leads out of the document or nowhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    pointer = tuple(unquote(part).replace("~1", "/").replace("~0", "~") for part in reference.split("/")[1:])
    target = document
    for name in pointer:
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and _is_index(name) and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return pointer, target


def escape(name: str) -> str:
    """A name as it is written in a `$ref`."""
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def subschemas(schema: Any) -> Iterator[Schema]:
    """A schema and every schema inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in MAPS:
        if isinstance(inner := schema.get(keyword), dict):
            for subschema in inner.values():
                yield from subschemas(subschema)
    for keyword in LISTS:
        if isinstance(inner := schema.get(keyword), list):
            for subschema in inner:
                yield from subschemas(subschema)
    for keyword in SINGLES:
        yield from subschemas(schema.get(keyword))


def map_subschemas(schema: Schema, convert: Callable[[Schema], Schema]) -> Schema:
    """A copy with each schema directly inside converted."""

    def converted(value: Any) -> Any:
        return convert(value) if isinstance(value, dict) else value

    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, dict):
            copy[keyword] = {name: converted(inner) for name, inner in value.items()}
        elif keyword in LISTS and isinstance(value, list):
            copy[keyword] = [converted(inner) for inner in value]
        elif keyword in SINGLES:
            copy[keyword] = converted(value)
    return copy


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= MAX_INDEX_DIGITS
