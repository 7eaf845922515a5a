"""Walks through a JSON Schema, for providers that want it a little different. What came in is never changed."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from app.providers.schema.subschemas import look_up

Schema = dict[str, Any]
OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_MANY = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
OF_ONE = (
    *("items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
)
MOST_NODES = 5_000


class _Kept(Exception):
    """A reference that has to stay one."""


def opened(schema: Schema) -> Schema:
    """The same without the word that objects are closed."""

    def visit(one: Schema) -> Schema:
        made = _inside(one, visit)
        if made.get("additionalProperties") is False:
            del made["additionalProperties"]
        return made

    return deepcopy(visit(schema))


def inlined(schema: Schema) -> Schema:
    """The same without references and without names for the whole.

    A schema that refers to itself, to somewhere else, or to so much that it would grow beyond reason, stays as it is.
    """
    try:
        flat = _Inliner(schema).inline(schema, ())
    except _Kept:
        return deepcopy(schema)
    return deepcopy({name: value for name, value in flat.items() if name not in ("$defs", "definitions")})


class _Inliner:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0

    def inline(self, schema: Schema, followed: tuple[str, ...]) -> Schema:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise _Kept
        if "$ref" not in schema:
            return _without_names(_inside(schema, lambda one: self.inline(one, followed)))
        reference = schema["$ref"]
        if reference in followed:
            raise _Kept
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        target = self.inline(self._find(reference), (*followed, reference))
        return target | self.inline(siblings, followed)

    def _find(self, reference: Any) -> Schema:
        try:
            return look_up(self._root, reference)
        except LookupError:
            raise _Kept from None


def _without_names(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name not in ("$schema", "$id")}


def _inside(schema: Schema, visit: Callable[[Schema], Schema]) -> Schema:
    """A copy in which each schema inside is what `visit` makes of it."""
    made = dict(schema)
    for name, value in schema.items():
        if name in OF_NAMES and isinstance(value, dict):
            made[name] = {key: visit(one) if isinstance(one, dict) else one for key, one in value.items()}
        elif name in OF_MANY and isinstance(value, list):
            made[name] = [visit(one) if isinstance(one, dict) else one for one in value]
        elif name in OF_ONE and isinstance(value, dict):
            made[name] = visit(value)
    return made
