"""Arguments that came as plain text, as the values that the tool's schema says they are.

What may be a string stays one. What cannot be converted stays one, too, for the schema to refuse.
"""

from collections.abc import Iterator
from typing import Any

from app.providers.text_calls.json_repair import Broken, Repaired, loads

Schema = dict[str, Any]

MOST_NODES = 1000
"""Looked at for one argument: references can lead in circles and multiply."""
WORDS = {"true": True, "false": False, "null": None, "none": None}
OPENS = {"{": "object", "[": "array"}
UNIONS = ("anyOf", "oneOf", "allOf")


def coerce(text: str, name: str, schema: Schema) -> Repaired:
    """The value of the argument `name`, for a tool that takes arguments by this schema."""
    nodes = [node for whole in _of_member(name, schema) for node in _nodes(whole, schema)]
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
    """One of the values that are no strings, where strings are allowed, too."""
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


def _of_member(name: str, schema: Schema) -> list[Any]:
    """What is said of a member, by its own name or else of all that are not named."""
    nodes = list(_nodes(schema, schema))
    named = [node["properties"][name] for node in nodes if name in _dict(node.get("properties"))]
    return named or [node["additionalProperties"] for node in nodes if "additionalProperties" in node]


def _nodes(schema: Any, root: Schema) -> Iterator[Schema]:
    """A schema and all that it is joined from: its alternatives, and what it refers to."""
    left, seen = [schema], set[str]()
    for _ in range(MOST_NODES):
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
            left.append(_referred(reference, root))


def _referred(reference: str, root: Schema) -> Any:
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, reference[1:].split("/")):
        found = _dict(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _options(node: Schema) -> list[Any]:
    return _list(node.get("enum")) + ([node["const"]] if "const" in node else [])


def _kinds(node: Schema) -> Iterator[str]:
    """The types that are allowed, also where only the members or the values tell them."""
    said = node.get("type")
    if isinstance(said, str):
        yield said
    elif isinstance(said, list):
        yield from (kind for kind in said if isinstance(kind, str))
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
