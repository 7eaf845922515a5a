"""JSON Schemas by hand and at random, arguments that fit them, and what a model would send by a strict schema."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from app.providers.schema.document import Document

Schema = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMES = ("a", "b", "c", "d", "type", "properties", "$ref", "x y")
DEFINED = ("A", "B", "C/~%41")
PATTERNS = {"^x+$": ["x", "xxx"], "[0-9]{2}": ["12", "a99"], "^(?!no)": ["yes", ""], r"^\w*$": ["", "word"]}
PLAIN: dict[str, list[Any]] = {
    "string": ["y", "zz", "www", *(text for texts in PATTERNS.values() for text in texts)],
    "integer": [*range(-6, 10)],
    "number": [0.5, *range(-6, 10)],
    "boolean": [False, True],
    "null": [None],
}
FORMATS = ("date", "email", "uuid", "uri", "regex")
DEEPEST = 8
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(["", "#", "string"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "a", "$ref"]), inner),
    max_leaves=5,
)
KEYWORDS = (
    *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf"),
    *("oneOf", "allOf", "not", "if", "$ref", "$defs", "definitions", "description", "default", "minimum", "pattern"),
    *("format", "minLength", "minItems", "patternProperties", "propertyNames", "$id", "$schema", "title", "a", ""),
)
REFERENCES = ("#", "#/$defs/a", "#/$defs/type", "#/properties/a", "#/anyOf/0", "#a", "other.json", "#/%zz", "")
WORDS = st.sampled_from(("object", "array", "string", "null", "integer", *REFERENCES, "^(", "http://x/draft-07/schema"))
ANYTHING = st.dictionaries(
    st.sampled_from(KEYWORDS),
    st.recursive(
        JUNK | WORDS,
        lambda inner: st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5) | st.lists(inner, max_size=3),
        max_leaves=20,
    ),
    max_size=6,
)
"""Objects that look like schemas from afar."""


def of(*required: str, **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required]}


@dataclass(frozen=True)
class _Scope:
    """What a schema may refer to: later definitions, or, where it can end, all of them."""

    key: str
    names: tuple[str, ...]
    after: int = 0
    is_free: bool = False
    depth: int = 3

    def references(self) -> list[str]:
        names = self.names if self.is_free else self.names[self.after :]
        found = [f"#/{self.key}/{name.replace('~', '~0').replace('/', '~1').replace('%', '%25')}" for name in names]
        return [*found, "#"] if self.is_free else found

    def inside(self, *, is_free: bool = False) -> "_Scope":
        return replace(self, depth=self.depth - 1, is_free=self.is_free or is_free)


@st.composite
def schemas(draw: Draw) -> Schema:
    """Schemas of arguments, with all that a strict schema can say in some way."""
    names = tuple(draw(st.lists(st.sampled_from(DEFINED), unique=True, max_size=3)))
    scope = _Scope(draw(st.sampled_from(["$defs", "definitions"])), names)
    definitions = {name: _schema(draw, replace(scope, after=number + 1)) for number, name in enumerate(names)}
    root = _object(draw, scope)
    return root | ({scope.key: definitions} if definitions else {}) | _maybe(draw, {"title": "T"})


@st.composite
def damaged_schemas(draw: Draw) -> Schema:
    """Schemas in which something was changed that should not have been."""
    schema: Schema = draw(schemas())
    node: Any = schema
    for _ in range(draw(st.integers(0, 6))):
        inner = [one for one in (node.values() if isinstance(node, dict) else node) if isinstance(one, dict | list)]
        node = draw(st.sampled_from(inner)) if inner else node
    value = draw(JUNK | WORDS | ANYTHING)
    if isinstance(node, dict):
        node[draw(st.sampled_from(sorted({*KEYWORDS, *node})))] = value
    elif node:
        node[draw(st.integers(0, len(node) - 1))] = value
    return schema


def _schema(draw: Draw, scope: _Scope) -> Schema:
    kinds = [_scalar, _scalar, _values]
    kinds += [_object, _object, _array, _union, _choice, _joined, _shared_union, _variants] if scope.depth > 0 else []
    kinds += [_reference, _reference] if scope.references() else []
    made: Schema = draw(st.sampled_from(kinds))(draw, scope)
    return made | _about(draw)


def _about(draw: Draw) -> Schema:
    return _maybe(draw, {"description": "Says what."}) | _maybe(draw, {"default": 1}) | _maybe(draw, {"x-order": 1})


def _maybe(draw: Draw, words: Schema) -> Schema:
    return words if draw(st.integers(0, 3)) == 3 else {}


def _scalar(draw: Draw, scope: _Scope) -> Schema:
    types = draw(st.lists(st.sampled_from(["string", "integer", "number", "boolean", "null"]), min_size=1, max_size=2))
    schema: Schema = {"type": types[0] if len(types) == 1 else list(dict.fromkeys(types))}
    if "string" in types:
        schema |= _maybe(draw, {"minLength": 1}) | _maybe(draw, {"maxLength": draw(st.integers(2, 4))})
        schema |= _maybe(draw, {"format": draw(st.sampled_from(FORMATS))})
        schema |= _maybe(draw, {"pattern": draw(st.sampled_from([*PATTERNS]))})
    if {"integer", "number"} & {*types}:
        schema |= _maybe(draw, {"minimum": draw(st.integers(-5, 0))}) | _maybe(draw, {"exclusiveMaximum": 9})
    return schema


def _values(draw: Draw, scope: _Scope) -> Schema:
    values = draw(st.lists(st.sampled_from(["x", "y", 1, 2.5, True, None]), min_size=1, max_size=3, unique_by=repr))
    return {"enum": values} if draw(st.booleans()) else {"const": values[0]}


def _object(draw: Draw, scope: _Scope) -> Schema:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    required = [name for name in names if draw(st.booleans())]
    properties = {name: _schema(draw, scope.inside(is_free=name not in required)) for name in names}
    schema: Schema = {"type": "object", "properties": properties}
    schema |= {"required": required} if required or draw(st.booleans()) else {}
    return schema | _maybe(draw, {"additionalProperties": False}) | _maybe(draw, {"minProperties": 0})


def _array(draw: Draw, scope: _Scope) -> Schema:
    bounds = _maybe(draw, {"maxItems": 3}) | _maybe(draw, {"uniqueItems": True})
    return {"type": "array", "items": _schema(draw, scope.inside(is_free=True))} | bounds


def _union(draw: Draw, scope: _Scope) -> Schema:
    return {"anyOf": [_schema(draw, scope.inside()) for _ in range(draw(st.integers(1, 3)))]}


def _choice(draw: Draw, scope: _Scope) -> Schema:
    """Arms of which only one can fit."""
    arms = [_object(draw, scope.inside()) for _ in range(draw(st.integers(1, 2)))]
    for number, arm in enumerate(arms):
        arm["properties"] = {"kind": {"const": number}} | arm["properties"]
        arm["required"] = ["kind", *arm.get("required", [])]
    return {"oneOf": [*arms, *([{"type": "string"}] if draw(st.booleans()) else [])]}


def _variants(draw: Draw, scope: _Scope) -> Schema:
    """Arms that are hard to tell apart: the same names, needed or not, and null or not."""
    kinds = [{"type": "string"}, {"type": ["string", "null"]}, {"type": "integer", "minimum": 3}, {"const": 1}]
    arms = []
    for _ in range(draw(st.integers(2, 3))):
        properties = {name: draw(st.sampled_from(kinds)) for name in ("a", "b", "c") if draw(st.booleans())}
        arms.append(of(*(name for name in properties if draw(st.booleans())), **properties))
    return {"anyOf": arms}


def _joined(draw: Draw, scope: _Scope) -> Schema:
    inner = _schema(draw, scope.inside())
    if inner.get("type") != "object" or "additionalProperties" in inner:
        return {"allOf": [inner]}
    return {"allOf": [inner], "properties": {"more": _scalar(draw, scope)}, "type": "object"}


def _shared_union(draw: Draw, scope: _Scope) -> Schema:
    """A union that leaves to its arms what its own words leave open."""
    schema = _object(draw, scope.inside())
    if not schema["properties"]:
        return schema
    return schema | {"anyOf": [{"required": [name]} for name in [*schema["properties"]][:2]]}


def _reference(draw: Draw, scope: _Scope) -> Schema:
    return {"$ref": draw(st.sampled_from(scope.references()))} | _maybe(draw, {"maxLength": 40})


@st.composite
def arguments(draw: Draw, schema: Schema) -> Any:
    """Arguments that fit, with no property that the schema does not name."""
    value = _instance(draw, Document(schema), [schema], 4)
    assume(Draft202012Validator(schema).is_valid(value))
    return value


def _instance(draw: Draw, document: Document, schemas: list[Any], fuel: int) -> Any:
    assume(fuel > -DEEPEST)
    facets = _settled(draw, document, schemas)
    for facet in facets:
        if "const" in facet or "enum" in facet:
            return facet["const"] if "const" in facet else draw(st.sampled_from(facet["enum"]))
    types = next((facet["type"] for facet in facets if "type" in facet), "null")
    match draw(st.sampled_from(types)) if isinstance(types, list) else types:
        case "object":
            return _members(draw, document, facets, fuel)
        case "array":
            items = [facet["items"] for facet in facets if "items" in facet]
            length = draw(st.integers(0, 2)) if fuel > 0 else 0
            return [_instance(draw, document, items, fuel - 1) for _ in range(length)]
        case other:
            validator = Draft202012Validator(document.root)
            plain = [
                one for one in PLAIN[other] if all(validator.evolve(schema=facet).is_valid(one) for facet in facets)
            ]
            assume(plain)
            return draw(st.sampled_from(plain))


def _settled(draw: Draw, document: Document, schemas: list[Any]) -> list[Schema]:
    """All that holds at once, with an arm taken of every union."""
    facets: list[Schema] = []
    left = list(schemas)
    while left:
        found = [facet for facet in document.facets(left) if not any(facet is one for one in facets)]
        facets += found
        unions = [facet[word] for facet in found for word in ("anyOf", "oneOf") if word in facet]
        left = [draw(st.sampled_from(arms)) for arms in unions]
    return facets


def _members(draw: Draw, document: Document, facets: list[Schema], fuel: int) -> dict[str, Any]:
    required = {name for facet in facets for name in facet.get("required", [])}
    made = {}
    for name in dict.fromkeys(name for facet in facets for name in facet.get("properties", {})):
        if name in required or (fuel > 0 and draw(st.booleans())):
            schemas = [facet["properties"][name] for facet in facets if name in facet.get("properties", {})]
            made[name] = _instance(draw, document, schemas, fuel - 1)
    return made


def fillings(strict: Schema, value: Any, most: int = 4) -> list[Any]:
    """The same arguments as a strict schema has them, null for what is missing: one for each way through its unions."""
    validator = Draft202012Validator(strict)
    document = Document(strict)

    def fill(schema: Schema, value: Any) -> Iterator[Any]:
        if "$ref" in schema:
            found = document.find(schema["$ref"])
            assert found is not None
            yield from fill(found[1], value)
        elif "anyOf" in schema:
            for arm in schema["anyOf"]:
                yield from fill(arm, value)
        elif isinstance(value, dict) and "properties" in schema and value.keys() <= schema["properties"].keys():
            names = [*schema["properties"]]
            ways = (islice(fill(schema["properties"][name], value.get(name)), most) for name in names)
            yield from (dict(zip(names, way, strict=True)) for way in product(*ways))
        elif isinstance(value, list) and "items" in schema:
            yield from (list(way) for way in product(*(islice(fill(schema["items"], one), most) for one in value)))
        elif validator.evolve(schema=schema).is_valid(value):
            yield value

    return [filled for filled in islice(fill(strict, value), most) if validator.is_valid(filled)]


def without_nulls(value: Any) -> Any:
    """A value without the members that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def has_union(schema: Any) -> bool:
    if isinstance(schema, dict):
        return "anyOf" in schema or "oneOf" in schema or any(has_union(inner) for inner in schema.values())
    return isinstance(schema, list) and any(has_union(inner) for inner in schema)


def calls_of(function: Callable[[], Any]) -> int:
    """How many functions are called meanwhile."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
