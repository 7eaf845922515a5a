"""OpenAI's strict schemas: a subset of JSON Schema in which objects are closed and every property has to be there.

A property that may be left out becomes one that may be null; `nulls.strip_nulls` takes those nulls away again. What the
subset does not know is told in the description, or the whole schema is given up: what comes out never shuts out
arguments that the schema describes.

Where in a schema the rewrite stands, and giving up there.
"""

import re
from typing import Any

from app.providers.schema.document import Document, NotExpressible, Pointer, Schema, TooComplex, escape
from app.providers.schema.merge import listed, merge, named, needed
from app.providers.schema.openai_keywords import (
    FORBIDDEN,
    SHARED,
    TYPES,
    description,
    is_constraining,
    is_meaningful,
    kept_words,
    types_of,
)
from app.providers.schema.openai_limits import circle, excess
from app.providers.schema.schema_path import SchemaPath, measure, quoted

MAX_WORK = 30_000
"""Schemas, properties, values and hundreds of characters that are written: references can multiply them."""
CHARACTERS = 100
LONGEST_NAME = 64
DEFINITIONS = ("$defs", "definitions")
NULL: Schema = {"type": "null"}


def rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    """The strict schema of a tool's arguments, a new one. Raises `NotExpressible`; never changes what it is given."""
    measure(schema)
    try:
        strict = _Rewriting(schema).whole()
    except TooComplex:
        raise NotExpressible("the references of the schema lead too far") from None
    if name := circle(strict):
        raise NotExpressible(f"{quoted(name)} leads back to itself")
    if reason := excess(strict):
        raise NotExpressible(reason)
    measure(strict)
    return strict


class _Rewriting:
    """One walk over a schema. What references that stay lead to is written after the rest, under `$defs`."""

    def __init__(self, schema: Schema) -> None:
        self._document = Document(schema)
        self._names: dict[Pointer, str] = {}
        self._taken = {name for key in DEFINITIONS for name in self._defined(key)}
        self._queue: list[tuple[Pointer, Any]] = []
        self._work = 0

    def whole(self) -> Schema:
        place = SchemaPath()
        schema, place = self._flatten(self._plain(self._document.root, place), place, stays=False)
        if "anyOf" in schema:
            place.give_up("is a union")
        if "object" not in listed(schema.get("type", "object"), place):
            place.give_up("is no object")
        strict = self._typed(schema | {"type": "object"}, place)
        definitions: Schema = {}
        for pointer, target in self._queue:  # which grows meanwhile
            name = self._names[pointer]
            definitions[name] = self._convert(target, SchemaPath((name,), frozenset({(), pointer}), depth=1))
        return strict | ({"$defs": definitions} if definitions else {})

    def _convert(self, schema: Any, place: SchemaPath) -> Schema:
        return self._write(self._plain(schema, place), place)

    def _plain(self, schema: Any, place: SchemaPath) -> Schema:
        """A schema as an object of keywords that can be worked with, `oneOf` said as `anyOf`."""
        schema = self._document.plain({} if schema is True else schema)
        if not isinstance(schema, dict):
            place.give_up("can never be given" if schema is False else "has no schema")
        if word := next((word for word in FORBIDDEN if word in schema), None):
            place.give_up(f"uses `{word}`")
        if "oneOf" not in schema:
            return schema
        if "anyOf" in schema:
            place.give_up("has both `anyOf` and `oneOf`")
        return {"anyOf" if word == "oneOf" else word: value for word, value in schema.items()}

    def _write(self, schema: Schema, place: SchemaPath) -> Schema:
        schema, place = self._flatten(schema, place)
        if "$ref" in schema:
            return {"$ref": self._keep(schema["$ref"], place)}
        return self._union(schema, place) if "anyOf" in schema else self._typed(schema, place)

    def _flatten(self, schema: Schema, place: SchemaPath, *, stays: bool = True) -> tuple[Schema, SchemaPath]:
        """Put together what is said in several places, until it is a lone reference, a union or a type."""
        while True:
            properties = schema.get("properties")
            self._spend(1 + (len(properties) if isinstance(properties, dict) else 0))
            if "$ref" in schema:
                beside = {
                    word: value for word, value in schema.items() if word != "$ref" and is_meaningful(word, value)
                }
                if stays and not beside:
                    return {"$ref": schema["$ref"]}, place
                pointer, target = self._find(schema["$ref"], place)
                if pointer in place.inlined:
                    return self._wrap(schema["$ref"], beside, place, stays=stays), place
                place = place.inlining(pointer)
                schema = merge(self._plain(target, place), beside, place)
            elif "allOf" in schema:
                schema = self._join(schema, place)
            else:
                return schema, place

    def _wrap(self, reference: str, beside: Schema, place: SchemaPath, *, stays: bool) -> Schema:
        """A reference to what holds it cannot stand here in full, but words of its own it can have."""
        if not stays or any(is_constraining(word) for word in beside):
            place.give_up("refers to itself")
        return {"anyOf": [{"$ref": reference}]} | beside

    def _join(self, schema: Schema, place: SchemaPath) -> Schema:
        parts = schema["allOf"]
        if not isinstance(parts, list) or len(parts) > 1:
            place.give_up("joins several schemas with `allOf`")
        beside = {word: value for word, value in schema.items() if word != "allOf"}
        return merge(self._plain(parts[0], place), beside, place) if parts else beside

    def _union(self, schema: Schema, place: SchemaPath) -> Schema:
        arms = schema["anyOf"]
        if not isinstance(arms, list) or not arms:
            place.give_up("is a union of nothing")
        shared = {word: value for word, value in schema.items() if word in SHARED}
        inside = place.inside()
        plain = [self._plain(arm, inside) for arm in arms]
        strict = {"anyOf": [self._write(merge(arm, shared, inside) if shared else arm, inside) for arm in plain]}
        return strict | self._about({word: value for word, value in schema.items() if word not in SHARED}, [*TYPES])

    def _typed(self, schema: Schema, place: SchemaPath) -> Schema:
        types = self._types(schema, place)
        strict: Schema = {"type": types[0] if len(types) == 1 else types}
        if "enum" in schema:
            self._spend(len(schema["enum"]))
            strict["enum"] = [*schema["enum"]]
        if "const" in schema:
            strict["const"] = schema["const"]
        if "object" in types:
            strict |= self._object(schema, place)
        if "array" in types:
            strict["items"] = self._convert(_items(schema, place), place.inside("[]"))
        return strict | kept_words(schema, types) | self._about(schema, types)

    def _types(self, schema: Schema, place: SchemaPath) -> list[str]:
        found = [types_of(values) for values in _values(schema)]
        if not all(found):
            place.give_up("does not list scalars as its values")
        if "type" in schema:
            return listed(schema["type"], place)
        return (found[0] if found else None) or place.give_up("does not say its type")

    def _object(self, schema: Schema, place: SchemaPath) -> Schema:
        if word := next((word for word in ("patternProperties", "propertyNames") if word in schema), None):
            place.give_up(f"uses `{word}`")
        properties = named(schema, place)
        more = [schema[word] for word in ("additionalProperties", "unevaluatedProperties") if word in schema]
        if any(one is not False for one in more) or ("properties" not in schema and not more):
            place.give_up("takes properties that it does not name" if properties else "is a free map")
        names = needed(schema)
        if unknown := next((name for name in names if name not in properties), None):
            place.give_up(f"requires {quoted(unknown)}, which it does not describe")
        required = {*names}
        strict = {name: self._property(properties[name], place.inside(name), name in required) for name in properties}
        return {"properties": strict, "required": [*properties], "additionalProperties": False}

    def _property(self, schema: Any, place: SchemaPath, is_required: bool) -> Schema:
        strict = self._convert(schema, place)
        return strict if is_required or self._document.allows_null(schema) else _nullable(strict)

    def _about(self, schema: Schema, types: list[str]) -> Schema:
        said = description(schema, types)
        self._spend(len(said or "") // CHARACTERS)
        return {"description": said} if said else {}

    def _find(self, reference: Any, place: SchemaPath) -> tuple[Pointer, Any]:
        found = self._document.find(reference)
        return found or place.give_up(f"refers to {quoted(str(reference))}, which is not in the schema")

    def _keep(self, reference: Any, place: SchemaPath) -> str:
        """The reference to where the same thing stands in the strict schema."""
        pointer, target = self._find(reference, place)
        if not pointer:
            return "#"
        if pointer not in self._names:
            self._names[pointer] = self._name(pointer)
            self._taken.add(self._names[pointer])
            self._queue.append((pointer, target))
        return f"#/$defs/{escape(self._names[pointer])}"

    def _name(self, pointer: Pointer) -> str:
        """A definition keeps its name; what was no definition becomes one, as what it was might turn nullable."""
        where, last = pointer[0], pointer[-1]
        if len(pointer) == 2 and (where == "$defs" or (where == "definitions" and last not in self._defined("$defs"))):
            return last
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", last)[:LONGEST_NAME] or "part"
        number = len(self._names)
        while stem in self._taken:
            stem, number = f"{stem}_{number}", number + 1
        return stem

    def _defined(self, key: str) -> Schema:
        found = self._document.root.get(key)
        return found if isinstance(found, dict) else {}

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > MAX_WORK:
            raise NotExpressible("the schema is too large, or becomes so where its references are written out")


def _values(schema: Schema) -> list[Any]:
    """The lists of values that are allowed."""
    return [*([schema["enum"]] if "enum" in schema else []), *([[schema["const"]]] if "const" in schema else [])]


def _items(schema: Schema, place: SchemaPath) -> Any:
    if "prefixItems" in schema or isinstance(schema.get("items"), list):
        place.give_up("is a tuple")
    return schema["items"] if "items" in schema else place.give_up("does not say what its items are")


def _nullable(strict: Schema) -> Schema:
    """A schema that takes null, too."""
    if "$ref" in strict or "const" in strict:
        about = {word: value for word, value in strict.items() if word == "description"}
        return {"anyOf": [{word: value for word, value in strict.items() if word not in about}, NULL.copy()]} | about
    if "anyOf" in strict:
        return strict | {"anyOf": [*strict["anyOf"], *([] if NULL in strict["anyOf"] else [NULL.copy()])]}
    types = strict["type"] if isinstance(strict["type"], list) else [strict["type"]]
    nullable = strict | {"type": [*types, *([] if "null" in types else ["null"])]}
    if "enum" in strict and None not in strict["enum"]:
        nullable["enum"] = [*strict["enum"], None]
    return nullable
