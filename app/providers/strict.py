"""Strict schemas: every object closed, every property required, what may be left out nullable."""

from typing import Any

UNKNOWN = ("allOf", "not", "if", "then", "else", "patternProperties", "dependentSchemas", "dependentRequired")
MAPS = ("properties", "$defs")


class GivenUp(Exception):
    """Why a schema cannot be made strict, in a sentence."""


def rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in its strict form."""
    if schema.get("type") != "object":
        raise GivenUp("the root is no plain object")
    return _strict(schema)


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if unknown := next((name for name in UNKNOWN if name in schema), None):
        raise GivenUp(f"`{unknown}` has no strict form")
    made = {"anyOf" if name == "oneOf" else name: value for name, value in schema.items() if name != "default"}
    if isinstance(made.get("items"), dict):
        made["items"] = _strict(made["items"])
    if "anyOf" in made:
        made["anyOf"] = [_strict(arm) for arm in made["anyOf"]]
    for name in MAPS:
        if name in made:
            made[name] = {key: _strict(one) for key, one in made[name].items()}
    return _closed(made, schema.get("required", [])) if made.get("type") == "object" else made


def _closed(schema: dict[str, Any], required: list[str]) -> dict[str, Any]:
    if schema.get("additionalProperties") not in (None, False) or "properties" not in schema:
        raise GivenUp("an object takes any property")
    properties = {name: one if name in required else _nullable(one) for name, one in schema["properties"].items()}
    return schema | {"properties": properties, "required": list(properties), "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if not isinstance(schema.get("type"), str):
        return schema if "null" in schema.get("type", ()) else {"anyOf": [schema, {"type": "null"}]}
    made = schema | {"type": [schema["type"], "null"]}
    return made | {"enum": [*made["enum"], None]} if "enum" in made else made
