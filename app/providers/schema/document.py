"""JSON Schemas as tools declare them: references, schemas that hold at the same time, and where null is allowed.

Every walk here ends, whatever the schema is, and the schema is never changed.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from app.core.util.json_schema import Pointer, Schema, map_subschemas, resolve

UNIONS = ("anyOf", "oneOf")
ANNOTATIONS = frozenset({"description", "title", "default", "examples", "example", "deprecated", "$comment"})
MAX_FACETS = 100
MAX_NESTED_UNIONS = 50
MAX_INLINED_NODES = 5_000

_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
TYPE_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"}),
    "integer": _NUMBER_KEYWORDS,
    "number": _NUMBER_KEYWORDS,
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"})
    | {"contains", "minContains", "maxContains", "unevaluatedItems"},
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"})
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"},
}
"""The keywords that apply to one type only."""


class NotExpressible(Exception):
    """Why a schema has no strict form, in a clause."""


class TooComplex(Exception):
    """A schema that takes too long to analyse."""


class Document:
    """A whole schema with cached references. It must not change meanwhile."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        # Up to draft 7 keywords beside a reference are ignored.
        self._ignores_siblings = "/draft-0" in str(root.get("$schema"))
        self._targets: dict[str, tuple[Pointer, Any] | None] = {}
        self._nullable: dict[int, bool] = {}

    def find(self, reference: Any) -> tuple[Pointer, Any] | None:
        """The pointer of a reference and its target; None when it is not in this document."""
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            self._targets[reference] = resolve(self.root, reference)
        return self._targets[reference]

    def without_ignored(self, schema: Any) -> Any:
        """A schema without keywords that its draft ignores."""
        if self._is_only_reference(schema):
            return {name: value for name, value in schema.items() if name == "$ref" or name in ANNOTATIONS}
        return schema

    def facets(self, schemas: Iterable[Any]) -> list[Any]:
        """All schemas that hold at the same time: these, the targets of their references, the parts of their `allOf`.

        Raises `TooComplex`, as do its callers.
        """
        facets: dict[int, Any] = {}
        left = list(schemas)[::-1]
        while left:
            schema = left.pop()
            if id(schema) in facets or not isinstance(schema, dict | bool):
                continue
            facets[id(schema)] = schema
            if len(facets) > MAX_FACETS:
                raise TooComplex
            if isinstance(schema, dict):
                left += [*self._joined(schema)][::-1]
        return [facet for facet in facets.values() if not self._is_only_reference(facet)]

    def allows_null(self, schema: Any, depth: int = 0) -> bool:
        """Whether null is valid, as far as types, values and unions say."""
        if depth > MAX_NESTED_UNIONS:
            raise TooComplex
        if id(schema) not in self._nullable:
            self._nullable[id(schema)] = False  # for a schema that refers to itself
            self._nullable[id(schema)] = all(self._facet_allows_null(facet, depth) for facet in self.facets([schema]))
        return self._nullable[id(schema)]

    def _joined(self, schema: Schema) -> Iterator[Any]:
        if "$ref" in schema and (target := self.find(schema["$ref"])):
            yield target[1]
        if isinstance(parts := schema.get("allOf"), list) and not self._is_only_reference(schema):
            yield from parts

    def _is_only_reference(self, schema: Any) -> bool:
        return self._ignores_siblings and isinstance(schema, dict) and "$ref" in schema

    def _facet_allows_null(self, facet: Any, depth: int) -> bool:
        if isinstance(facet, bool):
            return facet
        types = facet.get("type", "null")
        if types != "null" and not (isinstance(types, list) and "null" in types):
            return False
        if "const" in facet and facet["const"] is not None:
            return False
        if isinstance(values := facet.get("enum"), list) and not any(value is None for value in values):
            return False
        return all(any(self.allows_null(arm, depth + 1) for arm in arms) for arms in unions_of(facet))


def unions_of(facet: Any) -> list[list[Any]]:
    """The unions of a schema, each with its arms."""
    if not isinstance(facet, dict):
        return []
    return [arms for keyword in UNIONS if isinstance(arms := facet.get(keyword), list)]


def look_up(root: Schema, reference: Any) -> Schema:
    """The schema that a reference names; raises `LookupError` with a clause when there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise LookupError("it refers to another document")
    found = resolve(root, reference)
    if found is None or not isinstance(found[1], dict):
        raise LookupError("a reference in it leads nowhere")
    target: Schema = found[1]
    return target


def split_by_type(schema: Schema, types: Iterable[str]) -> tuple[Schema, list[Schema]]:
    """The keywords for all types, and one schema per type with the keywords that apply to it only."""
    arms = [
        {"type": kind} | {word: value for word, value in schema.items() if word in TYPE_KEYWORDS.get(kind, ())}
        for kind in types
    ]
    used = {"type"}.union(*arms)
    return {word: value for word, value in schema.items() if word not in used}, arms


def without_closed_objects(schema: Schema) -> Schema:
    """A copy without `additionalProperties: false`."""

    def open_object(node: Schema) -> Schema:
        copy = map_subschemas(node, open_object)
        if copy.get("additionalProperties") is False:
            del copy["additionalProperties"]
        return copy

    return deepcopy(open_object(schema))


def inline_references(schema: Schema) -> Schema:
    """A copy with the targets of references in their place, without `$defs`, `$schema` and `$id`.

    A schema that is recursive, refers to another document, or would grow beyond MAX_INLINED_NODES stays as it is.
    """
    try:
        flat = _Inliner(schema).inline(schema, ())
    except LookupError:
        return deepcopy(schema)
    return deepcopy({name: value for name, value in flat.items() if name not in ("$defs", "definitions")})


class _Inliner:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0

    def inline(self, schema: Schema, above: tuple[str, ...]) -> Schema:
        """Raises `LookupError` for a reference that has to stay; `above` are the references being inlined."""
        self._nodes += 1
        if self._nodes > MAX_INLINED_NODES:
            raise LookupError("it is too large")
        if "$ref" not in schema:
            inlined = map_subschemas(schema, lambda node: self.inline(node, above))
            return {name: value for name, value in inlined.items() if name not in ("$schema", "$id")}
        reference = schema["$ref"]
        if reference in above:
            raise LookupError("it is recursive")
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        target = self.inline(look_up(self._root, reference), (*above, reference))
        return target | self.inline(siblings, above)
