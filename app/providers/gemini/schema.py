"""JSON Schema as Gemini's older `parameters` take it: a subset of OpenAPI 3.0, without references.

What the subset cannot say is text in the description, where a model may heed it; arguments are checked with the whole
schema anyway.
"""

import json
from typing import Any

from app.providers.schema.document import look_up, split_by_type

MAX_NODES = 2_000
MAX_DEPTH = 40
KEPT = frozenset(
    {"title", "description", "default", "minItems", "maxItems", "minProperties", "maxProperties", "minimum"}
    | {"maximum", "minLength", "maxLength", "pattern", "example", "nullable", "propertyOrdering"}
)
SILENT = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}
    | {"type", "properties", "required", "items", "discriminator", "unevaluatedProperties"}
)
"""Keywords that are converted elsewhere, or do not constrain values."""
FORMATS = {"STRING": ("date-time", "enum"), "NUMBER": ("float", "double"), "INTEGER": ("int32", "int64")}
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
SHARED = ("type", "description", "nullable")
"""Copied into each alternative: `anyOf` may have no siblings."""

Schema = dict[str, Any]


def to_openapi(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema in the OpenAPI subset, and clauses about what was lost."""
    conversion = _Conversion(schema)
    converted = conversion.convert(schema, ())
    if conversion.is_full:
        return {"type": "OBJECT"}, ["it is too large"]
    if converted.get("type") != "OBJECT":
        return {"type": "OBJECT"}, ["it is not that of an object"]
    return converted, sorted(conversion.lost)


class _Conversion:
    """Converts one schema. `above` are the references being inlined."""

    def __init__(self, root: Schema) -> None:
        self.lost: set[str] = set()
        self.is_full = False
        self._root = root
        self._nodes = 0
        self._depth = 0

    def convert(self, schema: Any, above: tuple[str, ...]) -> Schema:
        self._nodes += 1
        self.is_full = self.is_full or self._nodes > MAX_NODES or self._depth > MAX_DEPTH
        if not isinstance(schema, dict) or self.is_full:
            return {}
        self._depth += 1
        converted = self._converted(schema, above)
        self._depth -= 1
        return converted

    def _converted(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        if "$ref" in schema:
            return self._follow(schema, above)
        if isinstance(schema.get("allOf"), list):
            return self._merge_all_of(schema, above)
        arms = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(arms, list) and arms and _kind(schema) != "OBJECT":
            outer = {word: value for word, value in schema.items() if word not in ("anyOf", "oneOf")}
            return self._union(outer, arms, above)
        if isinstance(schema.get("type"), list):
            outer, typed = split_by_type(schema, map(str, schema["type"]))
            return self._union(outer, typed, above)
        return self._plain(schema, above)

    def _follow(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        reference = schema["$ref"]
        rest = {word: value for word, value in schema.items() if word != "$ref"}
        try:
            target = look_up(self._root, reference)
        except LookupError as error:
            self.lost.add(str(error))
            return {"type": "OBJECT"} | self._plain(rest, above)
        if reference in above:
            self.lost.add("it holds itself")
            return {"type": "OBJECT"} | self._plain(rest, above)
        return self.convert(target | rest, (*above, reference))

    def _merge_all_of(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        """`allOf` as one schema: all properties; of other keywords the last wins."""
        parts = schema["allOf"]
        rest = {word: value for word, value in schema.items() if word != "allOf"}
        if len(parts) == 1 and isinstance(parts[0], dict):
            return self.convert(parts[0] | rest, above)
        converted: Schema = {}
        for part in [*(self.convert(one, above) for one in parts), self._converted(rest, above)]:
            properties = converted.get("properties", {}) | part.get("properties", {})
            required = [*converted.get("required", []), *part.get("required", [])]
            converted |= part
            converted |= {"properties": properties} if properties else {}
            converted |= {"required": list(dict.fromkeys(required))} if required else {}
        if "anyOf" in converted and len(converted) > 1:
            self.lost.add("alternatives stand beside something else in it")
            del converted["anyOf"]
        return converted

    def _union(self, schema: Schema, arms: list[Any], above: tuple[str, ...]) -> Schema:
        """Alternatives. Null becomes `nullable`, and a single one is inlined."""
        real = [arm for arm in arms if arm != {"type": "null"}]
        outer = self._plain(schema, above) | ({"nullable": True} if len(real) < len(arms) else {})
        wholes = [self.convert(arm, above) for arm in real]
        converted: list[Schema] = [one for whole in wholes for one in whole.get("anyOf") or [whole]]
        if not converted:
            return outer | {"type": "NULL"}
        if len(converted) == 1:
            return converted[0] | outer
        shared = {word: outer[word] for word in SHARED if word in outer}
        return {"anyOf": [shared | arm for arm in converted]}

    def _plain(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        kind = _kind(schema)
        converted: Schema = {"type": kind} if kind else {}
        converted |= {word: value for word, value in schema.items() if word in KEPT}
        if kind == "ARRAY":
            converted["items"] = self._items(schema, above)
        if kind == "OBJECT":
            converted |= self._properties(schema, above)
        converted |= _values(schema, kind)
        if schema.get("format") in FORMATS.get(kind, ()):
            converted["format"] = schema["format"]
        return _describe_rest(schema, converted)

    def _items(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        """An array must declare `items`, even if they are anything."""
        items = schema.get("items", schema.get("prefixItems"))
        return self._union({}, items, above) if isinstance(items, list) and items else self.convert(items, above)

    def _properties(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not properties:
            return {}
        converted: Schema = {"properties": {name: self.convert(inner, above) for name, inner in properties.items()}}
        known = [name for name in required if name in list(properties)] if isinstance(required, list) else []
        return converted | ({"required": known} if known else {})


def _kind(schema: Schema) -> str:
    """The type in upper case, declared or inferred; empty when unknown."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind.upper() if kind.lower() in TYPES else ""
    if kind is not None:
        return ""
    if "properties" in schema:
        return "OBJECT"
    if "items" in schema or "prefixItems" in schema:
        return "ARRAY"
    kinds = {_kind_of(value) for value in _literals(schema)} - {"NULL"}
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "BOOLEAN"
        case int():
            return "INTEGER"
        case float():
            return "NUMBER"
        case str():
            return "STRING"
    return "OBJECT" if isinstance(value, dict) else "ARRAY"


def _values(schema: Schema, kind: str) -> Schema:
    """An `enum` of non-empty strings; others cannot be expressed."""
    values = _literals(schema)
    real = [value for value in values if value is not None]
    converted: Schema = {"nullable": True} if len(real) < len(values) else {}
    is_supported = kind == "STRING" and bool(real) and all(isinstance(value, str) and value for value in real)
    return converted | ({"enum": real} if is_supported else {})


def _literals(schema: Schema) -> list[Any]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []


def _describe_rest(schema: Schema, converted: Schema) -> Schema:
    """Other keywords are appended to the description."""
    handled = KEPT | SILENT | converted.keys() | ({"const"} if "enum" in converted else set())
    rest = {word: value for word, value in schema.items() if word not in handled and not word.startswith("x-")}
    if not isinstance(rest.get("additionalProperties"), dict):
        rest.pop("additionalProperties", None)
    if not rest:
        return converted
    text = "{" + ", ".join(f"{word}: {_to_text(value)}" for word, value in rest.items()) + "}"
    before = f"{converted['description']}\n\n" if converted.get("description") else ""
    return converted | {"description": before + text}


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
