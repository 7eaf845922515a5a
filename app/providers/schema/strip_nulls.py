"""The way back from strict schemas: a null that stands for a property left out is taken away again.

A null goes when the original schema names its property, does not require it and does not allow null there. Nothing else
is ever changed: a null that is allowed stays, and so do nulls in lists and under names the schema does not know.

Where the schema leaves a choice (`anyOf`, `oneOf`), nulls go by the arm that the value then fits: best as a strict
schema would have made it, with every property the arm names and no other; else with no other; else in any way. Of
several such arms it is the one by which fewer nulls go, and of those the first. When the value fits no arm, nulls go
only by an arm that is alone in being for values of its type. See `fits.py` for what is looked at: the original schema
has the last word on the arguments anyway.

Whether a value fits a schema, as far as that tells the arms of a union apart: types, values, bounds and lengths.

`pattern`, `format`, `multipleOf`, `uniqueItems`, `contains`, `not`, `if` and what depends on other properties are not
looked at.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from app.core.util.json_schema import Schema
from app.providers.schema.document import Document, TooComplex, unions_of

Bounds = tuple[tuple[str, Callable[[Any, Any], bool]], ...]

OF_NUMBERS: Bounds = (
    ("minimum", operator.ge),
    ("maximum", operator.le),
    ("exclusiveMinimum", operator.gt),
    ("exclusiveMaximum", operator.lt),
)
OF_TEXTS: Bounds = (("minLength", operator.ge), ("maxLength", operator.le))
OF_LISTS: Bounds = (("minItems", operator.ge), ("maxItems", operator.le))
OF_OBJECTS: Bounds = (("minProperties", operator.ge), ("maxProperties", operator.le))


class Fit(IntEnum):
    """How well a value fits: by its type alone, with names that are not known, with a part of the names, with all."""

    NO = 0
    IN_KIND = 1
    OPEN = 2
    CLOSED = 3
    STRICT = 4


def is_of_kind(value: Any, schema: Any) -> bool:
    """Whether the type of a value is right, and a scalar is one that is allowed."""
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
    """Whether a value keeps to the bounds."""
    if not isinstance(schema, dict) or isinstance(value, bool | None):
        return True
    match value:
        case int() | float():
            return _keeps(value, schema, OF_NUMBERS)
        case str():
            return _keeps(len(value), schema, OF_TEXTS)
        case list():
            return _keeps(len(value), schema, OF_LISTS)
        case _:
            return _keeps(len(value), schema, OF_OBJECTS)


def _keeps(size: float, schema: dict[str, Any], bounds: Bounds) -> bool:
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
    gone: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    """What schemas say together of an object's names."""

    named: frozenset[str]
    required: frozenset[str]

    def is_optional(self, name: str) -> bool:
        return name in self.named and name not in self.required


def strip_nulls(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without the nulls that stand for nothing. Nothing is changed in place; what stays is shared.

    Arguments that would take too long to look through are given back as they came.
    """
    values, has_null = _survey(arguments)
    if not has_null:
        return arguments
    try:
        stripped = _Stripping(schema, BASE_WORK + WORK_PER_VALUE * values).strip(arguments, (schema,), 0)
    except (TooComplex, RecursionError):
        return arguments
    found: dict[str, Any] = stripped.value
    return found


class _Stripping:
    """One walk over arguments. A value is only looked at once by the same schemas."""

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
        """Settle the choices one after the other; an arm may bring choices of its own."""
        self._spend(1 + len(facets))
        if not all(is_of_kind(value, facet) for facet in facets):
            return _Stripped(value, Fit.NO)
        if not unions:
            return self._settle(value, facets, depth)
        found, known = [], {id(facet) for facet in facets}
        for arm in unions[0]:
            more = [facet for facet in self._document.facets([arm]) if id(facet) not in known]
            found.append(self._choose(value, [*facets, *more], [*_unions(more), *unions[1:]], depth))
        best = max(found, key=lambda one: (one.fit, -one.gone), default=_Stripped(value, Fit.NO))
        if best.fit >= Fit.OPEN or [one.fit for one in found].count(Fit.IN_KIND) == 1:
            return best
        without = self._choose(value, facets, unions[1:], depth)
        return _Stripped(without.value, min(without.fit, best.fit), without.gone)

    def _settle(self, value: Any, facets: Facets, depth: int) -> _Stripped:
        if isinstance(value, dict):
            found = self._object(value, [facet for facet in facets if isinstance(facet, dict)], depth)
        elif isinstance(value, list):
            found = self._list(value, [facet for facet in facets if isinstance(facet, dict)], depth)
        else:
            found = _Stripped(value)
        if found.fit < Fit.OPEN or not all(is_within(found.value, facet) for facet in facets):
            return _Stripped(found.value, Fit.IN_KIND, found.gone)
        return found

    def _object(self, value: dict[str, Any], facets: list[Schema], depth: int) -> _Stripped:
        shape = self._shape(facets)
        self._spend(len(value) * len(facets))
        kept: dict[str, Any] = {}
        fit, gone = Fit.STRICT if shape.named <= value.keys() else Fit.CLOSED, 0
        for name, inner in value.items():
            schemas = [schema for facet in facets for schema in _of_member(facet, name)]
            if inner is None and shape.is_optional(name) and not self._allow_null(schemas):
                gone += 1
                continue
            stripped = self.strip(inner, schemas, depth + 1) if schemas else _Stripped(inner, Fit.OPEN)
            kept[name] = stripped.value
            fit, gone = min(fit, stripped.fit), gone + stripped.gone
        if not shape.required <= kept.keys():
            fit = Fit.IN_KIND
        return _Stripped(kept if gone else value, fit, gone)

    def _list(self, value: list[Any], facets: list[Schema], depth: int) -> _Stripped:
        self._spend(len(value) * len(facets))
        items = []
        for number, inner in enumerate(value):
            schemas = [schema for facet in facets for schema in _of_item(facet, number)]
            items.append(self.strip(inner, schemas, depth + 1) if schemas else _Stripped(inner))
        gone = sum(item.gone for item in items)
        fit = min((item.fit for item in items), default=Fit.STRICT)
        return _Stripped([item.value for item in items] if gone else value, fit, gone)

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


def _of_member(facet: Schema, name: str) -> list[Any]:
    """What a schema says of a property. Names that are matched with patterns are left alone."""
    if name in (properties := _map(facet.get("properties"))):
        return [properties[name]]
    if "patternProperties" in facet or "additionalProperties" not in facet:
        return []
    return [facet["additionalProperties"]]


def _of_item(facet: Schema, number: int) -> list[Any]:
    """What a schema says of an item: by its place where it says so, as drafts before 2020 do with a list of `items`."""
    items = facet.get("items", True)
    first, others = (items, facet.get("additionalItems", True)) if isinstance(items, list) else (None, items)
    first = _sequence(facet.get("prefixItems")) if first is None else first
    return [first[number] if number < len(first) else others]


def _map(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _sequence(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _survey(arguments: Any) -> tuple[int, bool]:
    """How many values there are, and whether one of them is null."""
    left, values, has_null = [arguments], 0, False
    while left:
        value = left.pop()
        values, has_null = values + 1, has_null or value is None
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
    return values, has_null
