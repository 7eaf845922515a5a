"""Arguments in plain text, converted to the types of the tool's schema.

A value that may be a string stays one, and so does one that cannot be converted: the schema then rejects it.
"""

from collections.abc import Iterator
from typing import Any

from app.core.util.json_schema import Schema, resolve
from app.providers.text_calls.json_repair import Broken, Repaired, loads

MAX_NODES = 1000
"""Schemas looked at for one argument: references can multiply them."""
WORDS = {"true": True, "false": False, "null": None, "none": None}
OPENS = {"{": "object", "[": "array"}
UNIONS = ("anyOf", "oneOf", "allOf")


def coerce(text: str, name: str, schema: Schema) -> Repaired:
    """The value of the argument `name`, for a tool that takes arguments by this schema."""
    nodes = [node for whole in _member_schemas(name, schema) for node in _nodes(whole, schema)]
    options = [option for node in nodes for option in _options(node)]
    if options and text in options:
        return Repaired(text, is_repaired=False)
    kinds = {kind for node in nodes for kind in _kinds(node)}
    bare = text.strip()
    if kinds & {"object", "array"} and OPENS.get(bare[:1]) in kinds:
        return _converted(bare, text)
    if not kinds or "string" in kinds:
        return Repaired(_option(bare, options, text), is_repaired=False)
    return Repaired(_scalar(bare, kinds, text), is_repaired=False)


def _converted(bare: str, text: str) -> Repaired:
    try:
        return loads(bare)
    except Broken:
        return Repaired(text, is_repaired=False)


def _option(bare: str, options: list[Any], text: str) -> Any:
    """One of the non-string options, where strings are allowed too."""
    value = _converted(bare, text).value
    return next((option for option in options if type(option) is type(value) and option == value), text)


def _scalar(bare: str, kinds: set[str], text: str) -> Any:
    if bare.lower() in WORDS:
        word = WORDS[bare.lower()]
        return word if word is None or "boolean" in kinds else text
    value = _converted(bare, text).value
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        value = int(value)
    match value:
        case int() if kinds & {"integer", "number"}:
            return value
        case float() if "number" in kinds:
            return value
        case _:
            return text


def _member_schemas(name: str, schema: Schema) -> list[Any]:
    """The schemas of a member: by its name, else of additional ones."""
    nodes = list(_nodes(schema, schema))
    named = [node["properties"][name] for node in nodes if name in _dict(node.get("properties"))]
    return named or [node["additionalProperties"] for node in nodes if "additionalProperties" in node]


def _nodes(schema: Any, root: Schema) -> Iterator[Schema]:
    """A schema with its alternatives and the targets of its references."""
    left, seen = [schema], set[str]()
    for _ in range(MAX_NODES):
        if not left:
            return
        node = left.pop()
        if not isinstance(node, dict):
            continue
        yield node
        for union in UNIONS:
            left.extend(_list(node.get(union)))
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            left += [target[1] for target in [resolve(root, reference)] if target]


def _options(node: Schema) -> list[Any]:
    return _list(node.get("enum")) + ([node["const"]] if "const" in node else [])


def _kinds(node: Schema) -> Iterator[str]:
    """The allowed types, declared or inferred from other keywords."""
    types = node.get("type")
    if isinstance(types, str):
        yield types
    elif isinstance(types, list):
        yield from (kind for kind in types if isinstance(kind, str))
    elif "properties" in node:
        yield "object"
    elif "items" in node or "prefixItems" in node:
        yield "array"
    else:
        yield from (_kind(option) for option in _options(node))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "array"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
