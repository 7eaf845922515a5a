"""Undoes the nullable optional properties of strict schemas: a null that means "left out" is removed.

A null is removed when the original schema names its property, does not require it and does not allow null there. All
other nulls stay: allowed ones, those in lists and under names the schema does not know.

In a union (`anyOf`, `oneOf`), nulls are removed by the arm that the rest of the value matches best: first an arm all of
whose properties are present and no others, then one without other properties, then any. Of equal arms it is the one
that removes fewer nulls, then the first. If no arm matches, nulls are removed only by an arm that is alone in having
the value's type.

The match looks at types, values, bounds and lengths, not at `pattern`, `format`, `multipleOf`, `uniqueItems`,
`contains`, `not`, `if` and dependencies: the arguments are validated with the original schema anyway.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from app.core.util.json_schema import Schema
from app.providers.schema.document import Document, TooComplex, unions_of

Bounds = tuple[tuple[str, Callable[[Any, Any], bool]], ...]

NUMBER_BOUNDS: Bounds = (
    ("minimum", operator.ge),
    ("maximum", operator.le),
    ("exclusiveMinimum", operator.gt),
    ("exclusiveMaximum", operator.lt),
)
STRING_BOUNDS: Bounds = (("minLength", operator.ge), ("maxLength", operator.le))
ARRAY_BOUNDS: Bounds = (("minItems", operator.ge), ("maxItems", operator.le))
OBJECT_BOUNDS: Bounds = (("minProperties", operator.ge), ("maxProperties", operator.le))


class Fit(IntEnum):
    """How well a value matches: by type only, with unknown names, with some of the names, with all."""

    NO = 0
    IN_KIND = 1
    OPEN = 2
    CLOSED = 3
    STRICT = 4


def is_of_kind(value: Any, schema: Any) -> bool:
    """Whether the type matches, and a scalar is an allowed value."""
    if not isinstance(schema, dict):
        return schema is not False
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_a(value, name) for name in types):
            return False
    if isinstance(value, dict | list):
        return True
    if "const" in schema and not _is_same(value, schema["const"]):
        return False
    values = schema.get("enum")
    return not isinstance(values, list) or any(_is_same(value, one) for one in values)


def is_within(value: Any, schema: Any) -> bool:
    """Whether a value is within its bounds."""
    if not isinstance(schema, dict) or isinstance(value, bool | None):
        return True
    match value:
        case int() | float():
            return _satisfies(value, schema, NUMBER_BOUNDS)
        case str():
            return _satisfies(len(value), schema, STRING_BOUNDS)
        case list():
            return _satisfies(len(value), schema, ARRAY_BOUNDS)
        case _:
            return _satisfies(len(value), schema, OBJECT_BOUNDS)


def _satisfies(size: float, schema: dict[str, Any], bounds: Bounds) -> bool:
    return all(test(size, schema[word]) for word, test in bounds if _is_number(schema.get(word)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(value: Any, name: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case "number":
            return _is_number(value)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return False


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


MAX_DEPTH = 60
BASE_WORK = 20_000
WORK_PER_VALUE = 50

Facets = list[Any]
"""Schemas that hold at the same time."""


@dataclass(frozen=True, slots=True)
class _Stripped:
    value: Any
    fit: Fit = Fit.STRICT
    removed: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    """The property names of schemas that hold at the same time."""

    named: frozenset[str]
    required: frozenset[str]

    def is_optional(self, name: str) -> bool:
        return name in self.named and name not in self.required


def strip_nulls(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """A copy of the arguments without the nulls that mean "left out"; unchanged when that would take too long."""
    values, has_null = _count_values(arguments)
    if not has_null:
        return arguments
    try:
        stripped = _NullStripper(schema, BASE_WORK + WORK_PER_VALUE * values).strip(arguments, (schema,), 0)
    except (TooComplex, RecursionError):
        return arguments
    result: dict[str, Any] = stripped.value
    return result


class _NullStripper:
    """Strips one call's arguments. Results are cached by value and schemas."""

    def __init__(self, schema: Schema, work: int) -> None:
        self._document = Document(schema)
        self._left = work
        self._done: dict[tuple[int, ...], _Stripped] = {}
        self._shapes: dict[tuple[int, ...], _Shape] = {}

    def strip(self, value: Any, schemas: Sequence[Any], depth: int) -> _Stripped:
        key = (id(value), *(id(schema) for schema in schemas))
        if key not in self._done:
            if depth > MAX_DEPTH:
                raise TooComplex
            facets = self._document.facets(schemas)
            self._done[key] = self._choose(value, facets, _unions(facets), depth)
        return self._done[key]

    def _choose(self, value: Any, facets: Facets, unions: list[list[Any]], depth: int) -> _Stripped:
        """Resolve the unions one after the other; an arm may add unions of its own."""
        self._spend(1 + len(facets))
        if not all(is_of_kind(value, facet) for facet in facets):
            return _Stripped(value, Fit.NO)
        if not unions:
            return self._settle(value, facets, depth)
        found, known = [], {id(facet) for facet in facets}
        for arm in unions[0]:
            more = [facet for facet in self._document.facets([arm]) if id(facet) not in known]
            found.append(self._choose(value, [*facets, *more], [*_unions(more), *unions[1:]], depth))
        best = max(found, key=lambda one: (one.fit, -one.removed), default=_Stripped(value, Fit.NO))
        if best.fit >= Fit.OPEN or [one.fit for one in found].count(Fit.IN_KIND) == 1:
            return best
        without = self._choose(value, facets, unions[1:], depth)
        return _Stripped(without.value, min(without.fit, best.fit), without.removed)

    def _settle(self, value: Any, facets: Facets, depth: int) -> _Stripped:
        if isinstance(value, dict):
            found = self._object(value, [facet for facet in facets if isinstance(facet, dict)], depth)
        elif isinstance(value, list):
            found = self._list(value, [facet for facet in facets if isinstance(facet, dict)], depth)
        else:
            found = _Stripped(value)
        if found.fit < Fit.OPEN or not all(is_within(found.value, facet) for facet in facets):
            return _Stripped(found.value, Fit.IN_KIND, found.removed)
        return found

    def _object(self, value: dict[str, Any], facets: list[Schema], depth: int) -> _Stripped:
        shape = self._shape(facets)
        self._spend(len(value) * len(facets))
        kept: dict[str, Any] = {}
        fit, removed = Fit.STRICT if shape.named <= value.keys() else Fit.CLOSED, 0
        for name, inner in value.items():
            schemas = [schema for facet in facets for schema in _member_schemas(facet, name)]
            if inner is None and shape.is_optional(name) and not self._allow_null(schemas):
                removed += 1
                continue
            stripped = self.strip(inner, schemas, depth + 1) if schemas else _Stripped(inner, Fit.OPEN)
            kept[name] = stripped.value
            fit, removed = min(fit, stripped.fit), removed + stripped.removed
        if not shape.required <= kept.keys():
            fit = Fit.IN_KIND
        return _Stripped(kept if removed else value, fit, removed)

    def _list(self, value: list[Any], facets: list[Schema], depth: int) -> _Stripped:
        self._spend(len(value) * len(facets))
        items = []
        for number, inner in enumerate(value):
            schemas = [schema for facet in facets for schema in _item_schemas(facet, number)]
            items.append(self.strip(inner, schemas, depth + 1) if schemas else _Stripped(inner))
        removed = sum(item.removed for item in items)
        fit = min((item.fit for item in items), default=Fit.STRICT)
        return _Stripped([item.value for item in items] if removed else value, fit, removed)

    def _shape(self, facets: list[Schema]) -> _Shape:
        key = tuple(id(facet) for facet in facets)
        if key not in self._shapes:
            named = frozenset(name for facet in facets for name in _map(facet.get("properties")))
            required = [name for facet in facets for name in _sequence(facet.get("required"))]
            self._shapes[key] = _Shape(named, frozenset(name for name in required if isinstance(name, str)))
        return self._shapes[key]

    def _allow_null(self, schemas: list[Any]) -> bool:
        return all(self._document.allows_null(schema) for schema in schemas)

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise TooComplex


def _unions(facets: Facets) -> list[list[Any]]:
    return [arms for facet in facets for arms in unions_of(facet)]


def _member_schemas(facet: Schema, name: str) -> list[Any]:
    """The schemas of a property. Names matched by patterns are ignored."""
    if name in (properties := _map(facet.get("properties"))):
        return [properties[name]]
    if "patternProperties" in facet or "additionalProperties" not in facet:
        return []
    return [facet["additionalProperties"]]


def _item_schemas(facet: Schema, number: int) -> list[Any]:
    """The schema of an item, also by index in drafts before 2020 with a list of `items`."""
    items = facet.get("items", True)
    first, others = (items, facet.get("additionalItems", True)) if isinstance(items, list) else (None, items)
    first = _sequence(facet.get("prefixItems")) if first is None else first
    return [first[number] if number < len(first) else others]


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count_values(arguments: Any) -> tuple[int, bool]:
    """The number of values, and whether one is null."""
    left, values, has_null = [arguments], 0, False
    while left:
        value = left.pop()
        values, has_null = values + 1, has_null or value is None
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
    return values, has_null
