"""OpenAI's strict schemas: a subset of JSON Schema in which objects are closed and every property has to be there.

An optional property becomes nullable; `strip_nulls` removes those nulls again. What the subset cannot express goes into
the description, or the whole schema is refused: a strict schema never excludes arguments that the original allows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

from app.core.util.json_schema import Pointer, Schema, escape
from app.providers.schema.document import Document, NotExpressible, TooComplex
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

MAX_DEPTH = 60
"""Schemas inside each other, unions included. OpenAI's limit is far below; this one guards the stack."""
MAX_NESTED = 100
MAX_VALUES = 100_000
MAX_SHOWN_LENGTH = 80
MAX_WORK = 30_000
"""Schemas, properties, values and hundreds of characters written: references can multiply them."""
CHARACTERS_PER_WORK = 100
MAX_NAME_LENGTH = 64
DEFINITIONS = ("$defs", "definitions")
NULL: Schema = {"type": "null"}


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """A position in the schema. `inlined` are the references inlined on the way here."""

    names: tuple[str, ...] = ()
    inlined: frozenset[Pointer] = frozenset({()})
    depth: int = 0

    def inside(self, *names: str) -> "SchemaPath":
        if self.depth >= MAX_DEPTH:
            raise NotExpressible("the schema is nested too deep")
        return replace(self, names=(*self.names, *names), depth=self.depth + 1)

    def inlining(self, pointer: Pointer) -> "SchemaPath":
        if len(self.inlined) > MAX_NESTED:
            raise NotExpressible("the references of the schema lead too far")
        return replace(self, inlined=self.inlined | {pointer})

    def refuse(self, reason: str) -> NoReturn:
        raise NotExpressible(f"{self} {reason}")

    def __str__(self) -> str:
        return quoted(".".join(self.names).replace(".[]", "[]")) if self.names else "the schema"


def quoted(name: str) -> str:
    """A name from the schema, printable and short."""
    shown = name if len(name) <= MAX_SHOWN_LENGTH else f"{name[:MAX_SHOWN_LENGTH]}…"
    return f"`{''.join(sign if sign.isprintable() else '?' for sign in shown)}`"


def _check_size(schema: Any) -> None:
    """Raises `NotExpressible` for a schema that is too large or deep, or whose `$id`s change its references."""
    left, values = [(schema, 1)], 0
    has_references = has_own_names = False
    while left:
        value, depth = left.pop()
        values += 1
        if depth > MAX_NESTED or values > MAX_VALUES:
            raise NotExpressible("the schema is nested too deep" if depth > MAX_NESTED else "the schema is too large")
        if isinstance(value, dict):
            has_references = has_references or "$ref" in value
            has_own_names = has_own_names or (value is not schema and _is_named(value))
        if isinstance(value, dict | list):
            left += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]
    if has_references and has_own_names:
        raise NotExpressible("the schema has parts with an `$id`, which references would have to follow")


def _is_named(schema: dict[str, Any]) -> bool:
    return isinstance(name := schema.get("$id"), str) and not name.startswith("#")


def rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    """The strict schema of a tool's arguments, a new one. Raises `NotExpressible`; never changes what it is given."""
    _check_size(schema)
    try:
        strict = _StrictRewriter(schema).rewrite()
    except TooComplex:
        raise NotExpressible("the references of the schema lead too far") from None
    if name := _find_cycle(strict):
        raise NotExpressible(f"{quoted(name)} leads back to itself")
    if reason := _size_problem(strict):
        raise NotExpressible(reason)
    _check_size(strict)
    return strict


class _StrictRewriter:
    """Rewrites one schema. The targets of remaining references are written last, under `$defs`."""

    def __init__(self, schema: Schema) -> None:
        self._document = Document(schema)
        self._names: dict[Pointer, str] = {}
        self._used_names = {name for key in DEFINITIONS for name in self._defined(key)}
        self._queue: list[tuple[Pointer, Any]] = []
        self._work = 0

    def rewrite(self) -> Schema:
        path = SchemaPath()
        schema, path = self._flatten(self._normalize(self._document.root, path), path, stays=False)
        if "anyOf" in schema:
            path.refuse("is a union")
        if "object" not in _type_list(schema.get("type", "object"), path):
            path.refuse("is no object")
        strict = self._write_typed(schema | {"type": "object"}, path)
        definitions: Schema = {}
        for pointer, target in self._queue:  # grows meanwhile
            name = self._names[pointer]
            definitions[name] = self._convert(target, SchemaPath((name,), frozenset({(), pointer}), depth=1))
        return strict | ({"$defs": definitions} if definitions else {})

    def _convert(self, schema: Any, path: SchemaPath) -> Schema:
        return self._write(self._normalize(schema, path), path)

    def _normalize(self, schema: Any, path: SchemaPath) -> Schema:
        """A schema without ignored keywords, with `oneOf` as `anyOf`."""
        schema = self._document.without_ignored({} if schema is True else schema)
        if not isinstance(schema, dict):
            path.refuse("can never be given" if schema is False else "has no schema")
        if word := next((word for word in FORBIDDEN if word in schema), None):
            path.refuse(f"uses `{word}`")
        if "oneOf" not in schema:
            return schema
        if "anyOf" in schema:
            path.refuse("has both `anyOf` and `oneOf`")
        return {"anyOf" if word == "oneOf" else word: value for word, value in schema.items()}

    def _write(self, schema: Schema, path: SchemaPath) -> Schema:
        schema, path = self._flatten(schema, path)
        if "$ref" in schema:
            return {"$ref": self._keep_reference(schema["$ref"], path)}
        return self._union(schema, path) if "anyOf" in schema else self._write_typed(schema, path)

    def _flatten(self, schema: Schema, path: SchemaPath, *, stays: bool = True) -> tuple[Schema, SchemaPath]:
        """Put together what is said in several places, until it is a lone reference, a union or a type."""
        while True:
            properties = schema.get("properties")
            self._spend(1 + (len(properties) if isinstance(properties, dict) else 0))
            if "$ref" in schema:
                siblings = {
                    word: value for word, value in schema.items() if word != "$ref" and is_meaningful(word, value)
                }
                if stays and not siblings:
                    return {"$ref": schema["$ref"]}, path
                pointer, target = self._find(schema["$ref"], path)
                if pointer in path.inlined:
                    # A recursive reference cannot be inlined, but may have annotations.
                    if not stays or any(is_constraining(word) for word in siblings):
                        path.refuse("refers to itself")
                    return {"anyOf": [{"$ref": schema["$ref"]}]} | siblings, path
                path = path.inlining(pointer)
                schema = _merge(self._normalize(target, path), siblings, path)
            elif "allOf" in schema:
                schema = self._join(schema, path)
            else:
                return schema, path

    def _join(self, schema: Schema, path: SchemaPath) -> Schema:
        parts = schema["allOf"]
        if not isinstance(parts, list) or len(parts) > 1:
            path.refuse("joins several schemas with `allOf`")
        siblings = {word: value for word, value in schema.items() if word != "allOf"}
        return _merge(self._normalize(parts[0], path), siblings, path) if parts else siblings

    def _union(self, schema: Schema, path: SchemaPath) -> Schema:
        arms = schema["anyOf"]
        if not isinstance(arms, list) or not arms:
            path.refuse("is a union of nothing")
        shared = {word: value for word, value in schema.items() if word in SHARED}
        inside = path.inside()
        plain = [self._normalize(arm, inside) for arm in arms]
        strict = {"anyOf": [self._write(_merge(arm, shared, inside) if shared else arm, inside) for arm in plain]}
        return strict | self._describe({word: value for word, value in schema.items() if word not in SHARED}, [*TYPES])

    def _write_typed(self, schema: Schema, path: SchemaPath) -> Schema:
        types = self._types(schema, path)
        strict: Schema = {"type": types[0] if len(types) == 1 else types}
        if "enum" in schema:
            self._spend(len(schema["enum"]))
            strict["enum"] = [*schema["enum"]]
        if "const" in schema:
            strict["const"] = schema["const"]
        if "object" in types:
            strict |= self._object(schema, path)
        if "array" in types:
            strict["items"] = self._convert(_items(schema, path), path.inside("[]"))
        return strict | kept_words(schema, types) | self._describe(schema, types)

    def _types(self, schema: Schema, path: SchemaPath) -> list[str]:
        found = [types_of(values) for values in _values(schema)]
        if not all(found):
            path.refuse("does not list scalars as its values")
        if "type" in schema:
            return _type_list(schema["type"], path)
        return (found[0] if found else None) or path.refuse("does not say its type")

    def _object(self, schema: Schema, path: SchemaPath) -> Schema:
        if word := next((word for word in ("patternProperties", "propertyNames") if word in schema), None):
            path.refuse(f"uses `{word}`")
        properties = _properties_of(schema, path)
        more = [schema[word] for word in ("additionalProperties", "unevaluatedProperties") if word in schema]
        if any(one is not False for one in more) or ("properties" not in schema and not more):
            path.refuse("takes properties that it does not name" if properties else "is a free map")
        names = _required_of(schema)
        if unknown := next((name for name in names if name not in properties), None):
            path.refuse(f"requires {quoted(unknown)}, which it does not describe")
        required = {*names}
        strict = {name: self._property(properties[name], path.inside(name), name in required) for name in properties}
        return {"properties": strict, "required": [*properties], "additionalProperties": False}

    def _property(self, schema: Any, path: SchemaPath, is_required: bool) -> Schema:
        strict = self._convert(schema, path)
        return strict if is_required or self._document.allows_null(schema) else _nullable(strict)

    def _describe(self, schema: Schema, types: list[str]) -> Schema:
        said = description(schema, types)
        self._spend(len(said or "") // CHARACTERS_PER_WORK)
        return {"description": said} if said else {}

    def _find(self, reference: Any, path: SchemaPath) -> tuple[Pointer, Any]:
        found = self._document.find(reference)
        return found or path.refuse(f"refers to {quoted(str(reference))}, which is not in the schema")

    def _keep_reference(self, reference: Any, path: SchemaPath) -> str:
        """The reference to the same target in the strict schema."""
        pointer, target = self._find(reference, path)
        if not pointer:
            return "#"
        if pointer not in self._names:
            self._names[pointer] = self._name(pointer)
            self._used_names.add(self._names[pointer])
            self._queue.append((pointer, target))
        return f"#/$defs/{escape(self._names[pointer])}"

    def _name(self, pointer: Pointer) -> str:
        """A definition keeps its name. Any other target becomes one, as it may become nullable in its place."""
        where, last = pointer[0], pointer[-1]
        if len(pointer) == 2 and (where == "$defs" or (where == "definitions" and last not in self._defined("$defs"))):
            return last
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", last)[:MAX_NAME_LENGTH] or "part"
        number = len(self._names)
        while stem in self._used_names:
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
    return [*([schema["enum"]] if "enum" in schema else []), *([[schema["const"]]] if "const" in schema else [])]


def _items(schema: Schema, path: SchemaPath) -> Any:
    if "prefixItems" in schema or isinstance(schema.get("items"), list):
        path.refuse("is a tuple")
    return schema["items"] if "items" in schema else path.refuse("does not say what its items are")


def _nullable(strict: Schema) -> Schema:
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


UNMERGEABLE = ("allOf", "anyOf", "oneOf", "patternProperties", "propertyNames", "unevaluatedProperties", "prefixItems")
"""Keywords that one schema cannot have for both."""


def _merge(inner: Schema, outer: Schema, path: SchemaPath) -> Schema:
    """One schema for two that hold at the same time; for a bound, a value or a text, `outer` wins.

    The result never excludes what both allow.
    """
    merged = inner | outer
    twice = (word for word in UNMERGEABLE if word in inner and word in outer and inner[word] != outer[word])
    if again := next(twice, None):
        path.refuse(f"has more than one `{again}`")
    if "type" in inner and "type" in outer:
        merged["type"] = _common(_type_list(inner["type"], path), _type_list(outer["type"], path), path)
    if "properties" in inner and "properties" in outer:
        merged["properties"] = _properties_of(inner, path) | _properties_of(outer, path)
    if "required" in inner and "required" in outer:
        merged["required"] = list(dict.fromkeys([*_required_of(inner), *_required_of(outer)]))
    for one, other in ((inner, outer), (outer, inner)):
        _check_additional(one, other, path)
    return merged


def _type_list(types: Any, path: SchemaPath) -> list[str]:
    """The declared types, each once."""
    names = types if isinstance(types, list) else [types]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        path.refuse("has a `type` that JSON Schema does not know")
    return list(dict.fromkeys(names))


def _properties_of(schema: Schema, path: SchemaPath) -> Schema:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        path.refuse("has `properties` that are no object")
    return properties


def _required_of(schema: Schema) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _common(ours: list[str], theirs: list[str], path: SchemaPath) -> list[str]:
    both = [name for name in ours if name in theirs or (name == "integer" and "number" in theirs)]
    both += [name for name in theirs if name == "integer" and "number" in ours and name not in both]
    if not both:
        path.refuse("can never be given")
    return both


def _check_additional(one: Schema, other: Schema, path: SchemaPath) -> None:
    """A property that one excludes must not come back through the other."""
    if "additionalProperties" not in one:
        return
    if one["additionalProperties"] != other.get("additionalProperties", one["additionalProperties"]):
        path.refuse("has more than one `additionalProperties`")
    if _properties_of(other, path).keys() - _properties_of(one, path).keys():
        path.refuse("has properties beside those that it is closed with")


MAX_PROPERTIES = 5_000
MAX_LEVELS = 10
MAX_ENUM_VALUES = 1_000
MAX_CHARACTERS = 120_000
LONG_ENUM_VALUES = 250
MAX_ENUM_CHARACTERS = 15_000


@dataclass(slots=True)
class _Count:
    properties: int = 0
    levels: int = 0
    values: int = 0
    characters: int = 0
    longest: int = 0

    def add(self, schema: Schema, level: int) -> None:
        properties, values = schema.get("properties", {}), schema.get("enum", [])
        self.levels = max(self.levels, level)
        self.properties += len(properties)
        self.values += len(values)
        texts = [*properties, *values, *([schema["const"]] if "const" in schema else [])]
        self.characters += sum(len(str(text)) for text in texts)
        if len(values) > LONG_ENUM_VALUES:
            self.longest = max(self.longest, sum(len(value) for value in values if isinstance(value, str)))


def _size_problem(schema: Schema) -> str | None:
    """Which of OpenAI's limits a strict schema exceeds, or None.

    Levels are counted as OpenAI's client does: each step into a property, an item or an arm; references are not
    followed.
    """
    count = _Count(characters=sum(len(name) for name in schema.get("$defs", {})))
    for part, level in _parts(schema):
        count.add(part, level)
    limits = (
        (count.properties, MAX_PROPERTIES, "properties"),
        (count.levels, MAX_LEVELS, "levels"),
        (count.values, MAX_ENUM_VALUES, "values to choose from"),
        (count.characters, MAX_CHARACTERS, "characters in names and values"),
        (count.longest, MAX_ENUM_CHARACTERS, "characters in the values of one `enum`"),
    )
    over = next(((found, most, what) for found, most, what in limits if found > most), None)
    return None if over is None else f"the schema has {over[0]:,} {over[2]}, more than {over[1]:,}"


def _find_cycle(schema: Schema) -> str | None:
    """A definition that refers to itself without a property or an item between, so that it describes nothing."""
    targets = {f"#/$defs/{escape(name)}": set(_references(part)) for name, part in schema.get("$defs", {}).items()}
    try:
        TopologicalSorter(targets).prepare()
    except CycleError as error:
        return str(min(error.args[1]))
    return None


def _parts(schema: Schema) -> Iterator[tuple[Schema, int]]:
    left = [(schema, 0), *((part, 1) for part in schema.get("$defs", {}).values())]
    while left:
        part, level = left.pop()
        yield part, level
        inner = [*part.get("properties", {}).values(), *part.get("anyOf", ())]
        left += [(one, level + 1) for one in [*inner, *([part["items"]] if "items" in part else [])]]


def _references(part: Schema) -> Iterator[str]:
    left = [part]
    while left:
        one = left.pop()
        if "$ref" in one:
            yield one["$ref"]
        left += one.get("anyOf", ())
