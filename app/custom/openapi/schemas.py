"""Schemas of an API description as self-contained JSON Schemas."""

import hashlib
import re
from typing import Any

from app.core.util.json_schema import MAPS, SINGLES, resolve

INLINE_NODES = 2_000
"""Schemas inlined in place of references; beyond that references stay, with their targets under `$defs`."""
DROPPED = frozenset(
    {"discriminator", "xml", "externalDocs", "example", "nullable", "readOnly", "writeOnly", "$schema", "$id", "id"}
    | {"$anchor", "$dynamicAnchor", "$comment", "collectionFormat", "allowEmptyValue", "$defs", "definitions"}
)
ANNOTATIONS = ("description", "title", "default")
DATA = frozenset({"enum", "const", "default", "examples", "required", "type"})


class TooLarge(Exception):
    """More than INLINE_NODES schemas would be inlined."""


class Components:
    """The reusable parts of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolve(self, part: Any) -> dict[str, Any]:
        """A part of the document, or the target of its reference. Raises `ValueError`."""
        seen = set()
        while isinstance(part, dict) and "$ref" in part:
            reference = part["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise ValueError(f"it refers to another document: {str(reference)[:80]}")
            if reference in seen:
                raise ValueError("its references lead in circles")
            seen.add(reference)
            _, part = resolve(self._document, reference) or ((), None)
        if not isinstance(part, dict):
            raise ValueError("a reference in it leads nowhere")
        return part

    def gather(self, properties: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Schemas by name, self-contained, and the `$defs` they need."""
        try:
            return self._gather(properties, inlines=True)
        except TooLarge:
            return self._gather(properties, inlines=False)

    def _gather(self, properties: dict[str, Any], *, inlines: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        conversion = _Conversion(self, inlines=inlines)
        converted = {name: conversion.convert(schema, ()) for name, schema in properties.items()}
        return converted, conversion.defs


class _Conversion:
    """Converts the schemas of one tool, which share their `$defs`."""

    def __init__(self, components: Components, *, inlines: bool) -> None:
        self._components = components
        self._inlines = inlines
        self._nodes = 0
        self._names: dict[str, str] = {}
        self.defs: dict[str, Any] = {}

    def convert(self, schema: Any, above: tuple[str, ...]) -> Any:
        """A schema in JSON Schema; `above` are the references it is inlined for."""
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._inlines and self._nodes > INLINE_NODES:
            raise TooLarge
        if isinstance(schema.get("$ref"), str):
            siblings = {name: schema[name] for name in ANNOTATIONS if name in schema}
            return _nullable(schema, siblings | self._follow(schema["$ref"], above, siblings))
        converted = {
            name: self._inner(name, value, above)
            for name, value in schema.items()
            if name not in DROPPED and not name.startswith("x-")
        }
        return _nullable(schema, _repair(schema, converted))

    def _inner(self, keyword: str, value: Any, above: tuple[str, ...]) -> Any:
        if keyword in DATA:
            return value
        if keyword in MAPS and isinstance(value, dict):
            return {name: self.convert(inner, above) for name, inner in value.items() if not _is_read_only(inner)}
        if isinstance(value, list):
            return [self.convert(inner, above) for inner in value]
        return self.convert(value, above) if keyword in SINGLES else value

    def _follow(self, reference: str, above: tuple[str, ...], siblings: dict[str, Any]) -> dict[str, Any]:
        """The target inlined; or, for a recursive one, a reference into `$defs`."""
        target = self._components.resolve({"$ref": reference})
        if self._inlines and reference not in above and reference not in self._names:
            inlined = self.convert(target, (*above, reference))
            if reference not in self._names:  # else it is recursive
                return inlined | siblings if isinstance(inlined, dict) else {}
        if reference not in self._names:
            short = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])[:64] or "part"
            if short in self._names.values():
                short = f"{short}_{hashlib.sha256(reference.encode()).hexdigest()[:8]}"
            self._names[reference] = short
        name = self._names[reference]
        if name not in self.defs:
            self.defs[name] = {}  # reserved, as the target may refer to itself
            self.defs[name] = self.convert(target, (reference,))
        return {"$ref": f"#/$defs/{name}"}


def _is_read_only(schema: Any) -> bool:
    """Such members occur in responses only."""
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _repair(original: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0 keywords as JSON Schema's, without patterns that Python cannot compile."""
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(is_exclusive := schema.get(exclusive), bool):
            del schema[exclusive]
            if is_exclusive and plain in schema:
                schema[exclusive] = schema.pop(plain)
    if schema.get("type") == "file":
        schema["type"] = "string"
    if isinstance(properties := schema.get("properties"), dict) and isinstance(schema.get("required"), list):
        known = original["properties"]
        schema["required"] = [name for name in schema["required"] if name in properties or name not in known]
    if not isinstance(schema.get("required", []), list) or not schema.get("required", True):
        del schema["required"]
    if "pattern" in schema and not _compiles(schema["pattern"]):
        del schema["pattern"]
    if "example" in original and "examples" not in schema:
        schema["examples"] = [original["example"]]
    if not isinstance(schema.get("examples", []), list):
        del schema["examples"]
    return schema


def _nullable(original: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if original.get("nullable") is not True:
        return schema
    if isinstance(kind := schema.get("type"), str) and "$ref" not in schema:
        enum = {"enum": [*schema["enum"], None]} if isinstance(schema.get("enum"), list) else {}
        if None in schema.get("enum", ()):
            enum = {}
        return schema | {"type": [kind, "null"]} | enum
    if "type" in schema:
        return schema
    annotations: dict[str, Any] = {name: schema.pop(name) for name in ANNOTATIONS if name in schema}
    return annotations | {"anyOf": [schema, {"type": "null"}]} if schema else annotations


def _compiles(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True
