"""JSON Schema as Gemini's older `parameters` take it: a subset of OpenAPI 3.0, without references.

What the subset cannot say is text in the description, where a model may heed it; arguments are checked with the whole
schema anyway.
"""

import json
from typing import Any

from app.providers.schema.document import look_up, split_by_type

MOST_NODES = 2_000
MOST_DEEP = 40
KEPT = frozenset(
    {"title", "description", "default", "minItems", "maxItems", "minProperties", "maxProperties", "minimum"}
    | {"maximum", "minLength", "maxLength", "pattern", "example", "nullable", "propertyOrdering"}
)
SILENT = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}
    | {"type", "properties", "required", "items", "discriminator", "unevaluatedProperties"}
)
"""What needs no words: it is said otherwise, or says nothing about values."""
FORMATS = {"STRING": ("date-time", "enum"), "NUMBER": ("float", "double"), "INTEGER": ("int32", "int64")}
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
SHARED = ("type", "description", "nullable")
"""What alternatives take over from around them: beside `anyOf` nothing may stand."""

Schema = dict[str, Any]


def to_openapi(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema in the subset, and what of it was lost, in clauses."""
    work = _Conversion(schema)
    made = work.convert(schema, ())
    if work.is_full:
        return {"type": "OBJECT"}, ["it is too large"]
    if made.get("type") != "OBJECT":
        return {"type": "OBJECT"}, ["it is not that of an object"]
    return made, sorted(work.lost)


class _Conversion:
    """One walk. `above` are the references that lead to where it stands."""

    def __init__(self, root: Schema) -> None:
        self.lost: set[str] = set()
        self.is_full = False
        self._root = root
        self._nodes = 0
        self._depth = 0

    def convert(self, given: Any, above: tuple[str, ...]) -> Schema:
        self._nodes += 1
        self.is_full = self.is_full or self._nodes > MOST_NODES or self._depth > MOST_DEEP
        if not isinstance(given, dict) or self.is_full:
            return {}
        self._depth += 1
        made = self._converted(given, above)
        self._depth -= 1
        return made

    def _converted(self, given: Schema, above: tuple[str, ...]) -> Schema:
        if "$ref" in given:
            return self._follow(given, above)
        if isinstance(given.get("allOf"), list):
            return self._together(given, above)
        arms = given.get("anyOf", given.get("oneOf"))
        if isinstance(arms, list) and arms and _kind(given) != "OBJECT":
            outer = {word: value for word, value in given.items() if word not in ("anyOf", "oneOf")}
            return self._union(outer, arms, above)
        if isinstance(given.get("type"), list):
            outer, typed = split_by_type(given, map(str, given["type"]))
            return self._union(outer, typed, above)
        return self._plain(given, above)

    def _follow(self, given: Schema, above: tuple[str, ...]) -> Schema:
        reference = given["$ref"]
        rest = {word: value for word, value in given.items() if word != "$ref"}
        try:
            target = look_up(self._root, reference)
        except LookupError as error:
            self.lost.add(str(error))
            return {"type": "OBJECT"} | self._plain(rest, above)
        if reference in above:
            self.lost.add("it holds itself")
            return {"type": "OBJECT"} | self._plain(rest, above)
        return self.convert(target | rest, (*above, reference))

    def _together(self, given: Schema, above: tuple[str, ...]) -> Schema:
        """What must hold at once, as one: all properties, and of the rest the last word."""
        parts = given["allOf"]
        rest = {word: value for word, value in given.items() if word != "allOf"}
        if len(parts) == 1 and isinstance(parts[0], dict):
            return self.convert(parts[0] | rest, above)
        made: Schema = {}
        for part in [*(self.convert(one, above) for one in parts), self._converted(rest, above)]:
            properties = made.get("properties", {}) | part.get("properties", {})
            required = [*made.get("required", []), *part.get("required", [])]
            made |= part
            made |= {"properties": properties} if properties else {}
            made |= {"required": list(dict.fromkeys(required))} if required else {}
        if "anyOf" in made and len(made) > 1:
            self.lost.add("alternatives stand beside something else in it")
            del made["anyOf"]
        return made

    def _union(self, given: Schema, arms: list[Any], above: tuple[str, ...]) -> Schema:
        """Alternatives. That one of them is null is said apart, and one that is left alone needs no list."""
        real = [arm for arm in arms if arm != {"type": "null"}]
        outer = self._plain(given, above) | ({"nullable": True} if len(real) < len(arms) else {})
        made = [one for arm in real for one in _arms(self.convert(arm, above))]
        if not made:
            return outer | {"type": "NULL"}
        if len(made) == 1:
            return made[0] | outer
        shared = {word: outer[word] for word in SHARED if word in outer}
        return {"anyOf": [shared | arm for arm in made]}

    def _plain(self, given: Schema, above: tuple[str, ...]) -> Schema:
        kind = _kind(given)
        made: Schema = {"type": kind} if kind else {}
        made |= {word: value for word, value in given.items() if word in KEPT}
        if kind == "ARRAY":
            made["items"] = self._items(given, above)
        if kind == "OBJECT":
            made |= self._properties(given, above)
        made |= _values(given, kind)
        if given.get("format") in FORMATS.get(kind, ()):
            made["format"] = given["format"]
        return _explained(given, made)

    def _items(self, given: Schema, above: tuple[str, ...]) -> Schema:
        """A list must say what it holds, even if that is anything."""
        items = given.get("items", given.get("prefixItems"))
        return self._union({}, items, above) if isinstance(items, list) and items else self.convert(items, above)

    def _properties(self, given: Schema, above: tuple[str, ...]) -> Schema:
        properties, required = given.get("properties"), given.get("required")
        if not isinstance(properties, dict) or not properties:
            return {}
        made: Schema = {"properties": {name: self.convert(inner, above) for name, inner in properties.items()}}
        known = [name for name in required if name in list(properties)] if isinstance(required, list) else []
        return made | ({"required": known} if known else {})


def _kind(given: Schema) -> str:
    """The type in upper case, or what it must be by what is said of it; empty when nothing tells."""
    kind = given.get("type")
    if isinstance(kind, str):
        return kind.upper() if kind.lower() in TYPES else ""
    if kind is not None:
        return ""
    if "properties" in given:
        return "OBJECT"
    if "items" in given or "prefixItems" in given:
        return "ARRAY"
    kinds = {_kind_of(value) for value in _literals(given)} - {"NULL"}
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


def _values(given: Schema, kind: str) -> Schema:
    """Values that are counted up, if they are texts; none of them may be empty."""
    values = _literals(given)
    real = [value for value in values if value is not None]
    made: Schema = {"nullable": True} if len(real) < len(values) else {}
    is_sayable = kind == "STRING" and bool(real) and all(isinstance(value, str) and value for value in real)
    return made | ({"enum": real} if is_sayable else {})


def _literals(given: Schema) -> list[Any]:
    values = [given["const"]] if "const" in given else given.get("enum")
    return values if isinstance(values, list) else []


def _explained(given: Schema, made: Schema) -> Schema:
    """With the words that have no other place in the description."""
    said = KEPT | SILENT | made.keys() | ({"const"} if "enum" in made else set())
    rest = {word: value for word, value in given.items() if word not in said and not word.startswith("x-")}
    if not isinstance(rest.get("additionalProperties"), dict):
        rest.pop("additionalProperties", None)
    if not rest:
        return made
    text = "{" + ", ".join(f"{word}: {_written(value)}" for word, value in rest.items()) + "}"
    before = f"{made['description']}\n\n" if made.get("description") else ""
    return made | {"description": before + text}


def _arms(made: Schema) -> list[Schema]:
    arms: list[Schema] = made.get("anyOf") or [made]
    return arms


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
