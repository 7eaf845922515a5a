"""Schemas of an API description as schemas of a tool: self-contained, in one dialect."""

import hashlib
import re
from typing import Any

from app.custom.json_schema import MAPS, SINGLES, look_up

INLINE_NODES = 2_000
"""Schemas that may be put in place of references to them; beyond that they stay apart, under `$defs`."""
DROPPED = frozenset(
    {"discriminator", "xml", "externalDocs", "example", "nullable", "readOnly", "writeOnly", "$schema", "$id", "id"}
    | {"$anchor", "$dynamicAnchor", "$comment", "collectionFormat", "allowEmptyValue", "$defs", "definitions"}
)
ABOUT = ("description", "title", "default")
DATA = frozenset({"enum", "const", "default", "examples", "required", "type"})


class TooLarge(Exception):
    """More would have to be put in place than is good for a reader."""


class Components:
    """The reusable parts of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolve(self, given: Any) -> dict[str, Any]:
        """A part of the document, or the one a reference names. Raises `ValueError`."""
        seen = set()
        while isinstance(given, dict) and "$ref" in given:
            reference = given["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise ValueError(f"it refers to another document: {str(reference)[:80]}")
            if reference in seen:
                raise ValueError("its references lead in circles")
            seen.add(reference)
            given = look_up(self._document, reference)
        if not isinstance(given, dict):
            raise ValueError("a reference in it leads nowhere")
        return given

    def gather(self, properties: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Schemas by name, self-contained, and the `$defs` they need."""
        try:
            return self._gather(properties, inlines=True)
        except TooLarge:
            return self._gather(properties, inlines=False)

    def _gather(self, properties: dict[str, Any], *, inlines: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        work = _Conversion(self, inlines=inlines)
        converted = {name: work.convert(schema, ()) for name, schema in properties.items()}
        return converted, work.defs


class _Conversion:
    """One walk over schemas that belong together."""

    def __init__(self, components: Components, *, inlines: bool) -> None:
        self._components = components
        self._inlines = inlines
        self._nodes = 0
        self._names: dict[str, str] = {}
        self.defs: dict[str, Any] = {}

    def convert(self, schema: Any, above: tuple[str, ...]) -> Any:
        """A schema in the tool's dialect; `above` are the references this place stands in."""
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._inlines and self._nodes > INLINE_NODES:
            raise TooLarge
        if isinstance(schema.get("$ref"), str):
            beside = {name: schema[name] for name in ABOUT if name in schema}
            return _nullable(schema, beside | self._follow(schema["$ref"], above, beside))
        kept = {name: value for name, value in schema.items() if name not in DROPPED and not name.startswith("x-")}
        return _nullable(schema, _repair(schema, {name: self._inner(name, kept[name], above) for name in kept}))

    def _inner(self, keyword: str, value: Any, above: tuple[str, ...]) -> Any:
        if keyword in DATA:
            return value
        if keyword in MAPS and isinstance(value, dict):
            return {name: self.convert(inner, above) for name, inner in value.items() if not _is_read_only(inner)}
        if isinstance(value, list):
            return [self.convert(inner, above) for inner in value]
        return self.convert(value, above) if keyword in SINGLES else value

    def _follow(self, reference: str, above: tuple[str, ...], beside: dict[str, Any]) -> dict[str, Any]:
        """What is referred to, in place; or, where it holds itself, a reference into `$defs`."""
        target = self._components.resolve({"$ref": reference})
        if self._inlines and reference not in above and reference not in self._names:
            found = self.convert(target, (*above, reference))
            if reference not in self._names:  # else it turned out to hold itself
                return found | beside if isinstance(found, dict) else {}
        name = self._name(reference)
        if name not in self.defs:
            self.defs[name] = {}  # taken, before what is inside refers to it again
            self.defs[name] = self.convert(target, (reference,))
        return {"$ref": f"#/$defs/{name}"}

    def _name(self, reference: str) -> str:
        if reference not in self._names:
            short = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])[:64] or "part"
            if short in self._names.values():
                short = f"{short}_{hashlib.sha256(reference.encode()).hexdigest()[:8]}"
            self._names[reference] = short
        return self._names[reference]


def _is_read_only(schema: Any) -> bool:
    """What only ever comes in an answer has no place in a request."""
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _repair(given: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 says in its own words, said in JSON Schema's; what no engine here can read, left out."""
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(is_exclusive := schema.get(exclusive), bool):
            del schema[exclusive]
            if is_exclusive and plain in schema:
                schema[exclusive] = schema.pop(plain)
    if schema.get("type") == "file":
        schema["type"] = "string"
    if isinstance(properties := schema.get("properties"), dict) and isinstance(schema.get("required"), list):
        known = given["properties"]
        schema["required"] = [name for name in schema["required"] if name in properties or name not in known]
    if not isinstance(schema.get("required", []), list) or not schema.get("required", True):
        del schema["required"]
    if "pattern" in schema and not _compiles(schema["pattern"]):
        del schema["pattern"]
    if "example" in given and "examples" not in schema:
        schema["examples"] = [given["example"]]
    if not isinstance(schema.get("examples", []), list):
        del schema["examples"]
    return schema


def _nullable(given: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if given.get("nullable") is not True:
        return schema
    if isinstance(kind := schema.get("type"), str) and "$ref" not in schema:
        enum = {"enum": [*schema["enum"], None]} if isinstance(schema.get("enum"), list) else {}
        if None in schema.get("enum", ()):
            enum = {}
        return schema | {"type": [kind, "null"]} | enum
    if "type" in schema:
        return schema
    about: dict[str, Any] = {name: schema.pop(name) for name in ABOUT if name in schema}
    return about | {"anyOf": [schema, {"type": "null"}]} if schema else about


def _compiles(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True
