"""Two schemas that hold at the same time, as one. What comes out never takes less than both together."""

from typing import Any

from app.providers.schema.document import Schema
from app.providers.schema.openai_keywords import TYPES
from app.providers.schema.schema_path import SchemaPath

ONCE = ("allOf", "anyOf", "oneOf", "patternProperties", "propertyNames", "unevaluatedProperties", "prefixItems")
"""What cannot be said for both in one schema."""


def merge(inner: Schema, outer: Schema, place: SchemaPath) -> Schema:
    """What both say; where they differ on a bound, a value or a text, what `outer` says."""
    merged = inner | outer
    if again := next((word for word in ONCE if word in inner and word in outer and inner[word] != outer[word]), None):
        place.give_up(f"has more than one `{again}`")
    if "type" in inner and "type" in outer:
        merged["type"] = _common(listed(inner["type"], place), listed(outer["type"], place), place)
    if "properties" in inner and "properties" in outer:
        merged["properties"] = named(inner, place) | named(outer, place)
    if "required" in inner and "required" in outer:
        merged["required"] = list(dict.fromkeys([*needed(inner), *needed(outer)]))
    for one, other in ((inner, outer), (outer, inner)):
        _check_closed(one, other, place)
    return merged


def listed(given: Any, place: SchemaPath) -> list[str]:
    """The types that are named, each once."""
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        place.give_up("has a `type` that JSON Schema does not know")
    return list(dict.fromkeys(names))


def named(schema: Schema, place: SchemaPath) -> Schema:
    """The properties by name."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        place.give_up("has `properties` that are no object")
    return properties


def needed(schema: Schema) -> list[str]:
    """The names that must be there."""
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _common(ours: list[str], theirs: list[str], place: SchemaPath) -> list[str]:
    both = [name for name in ours if name in theirs or (name == "integer" and "number" in theirs)]
    both += [name for name in theirs if name == "integer" and "number" in ours and name not in both]
    if not both:
        place.give_up("can never be given")
    return both


def _check_closed(one: Schema, other: Schema, place: SchemaPath) -> None:
    """What one of them shuts out must not come in again by the other's properties."""
    if "additionalProperties" not in one:
        return
    if one["additionalProperties"] != other.get("additionalProperties", one["additionalProperties"]):
        place.give_up("has more than one `additionalProperties`")
    if named(other, place).keys() - named(one, place).keys():
        place.give_up("has properties beside those that it is closed with")
