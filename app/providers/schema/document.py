"""A JSON Schema as somebody else wrote it: where its references lead, what holds at the same time, and where it allows
null. Nothing here goes in circles, whatever the schema is."""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]
Pointer = tuple[str, ...]
"""Where a part of a schema stands: the names and numbers that lead to it."""

UNIONS = ("anyOf", "oneOf")
ANNOTATIONS = frozenset({"description", "title", "default", "examples", "example", "deprecated", "$comment"})
LONGEST_INDEX = 6
MAX_FACETS = 100
MAX_UNIONS = 50
"""Unions inside each other, with nothing between."""


class NotExpressible(Exception):
    """A schema that cannot be said strictly, and why, in a clause."""


class TooComplex(Exception):
    """What would take too long to look through."""


class Document:
    """A whole schema, in which references are looked up. It must not change meanwhile."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        # Up to draft 7 nothing beside a reference counts.
        self._ignores_siblings = "/draft-0" in str(root.get("$schema"))
        self._found: dict[str, tuple[Pointer, Any] | None] = {}
        self._nullable: dict[int, bool] = {}

    def find(self, reference: Any) -> tuple[Pointer, Any] | None:
        """Where a reference leads, and what stands there; None when that is nothing of this document."""
        if not isinstance(reference, str):
            return None
        if reference not in self._found:
            self._found[reference] = look_up(self.root, reference)
        return self._found[reference]

    def plain(self, schema: Any) -> Any:
        """A schema without what has no meaning where it stands."""
        if self._ignores_siblings and isinstance(schema, dict) and "$ref" in schema:
            return {name: value for name, value in schema.items() if name == "$ref" or name in ANNOTATIONS}
        return schema

    def facets(self, schemas: Iterable[Any]) -> list[Any]:
        """All that holds at the same time: the schemas themselves, what they refer to and what they join.

        Raises `TooComplex`, as does all that asks for it.
        """
        found: dict[int, Any] = {}
        left = list(schemas)[::-1]
        while left:
            schema = left.pop()
            if id(schema) in found or not isinstance(schema, dict | bool):
                continue
            found[id(schema)] = schema
            if len(found) > MAX_FACETS:
                raise TooComplex
            if isinstance(schema, dict):
                left += [*self._beside(schema)][::-1]
        return [facet for facet in found.values() if not self._is_mere_reference(facet)]

    def allows_null(self, schema: Any, depth: int = 0) -> bool:
        """Whether null fits a schema, as far as types, values and unions say."""
        if depth > MAX_UNIONS:
            raise TooComplex
        if id(schema) not in self._nullable:
            self._nullable[id(schema)] = False  # what leads back to itself allows nothing by that
            self._nullable[id(schema)] = all(self._facet_allows_null(facet, depth) for facet in self.facets([schema]))
        return self._nullable[id(schema)]

    def _beside(self, schema: Schema) -> Iterator[Any]:
        if "$ref" in schema and (found := self.find(schema["$ref"])):
            yield found[1]
        if isinstance(joined := schema.get("allOf"), list) and not self._is_mere_reference(schema):
            yield from joined

    def _is_mere_reference(self, schema: Any) -> bool:
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


def look_up(root: Schema, reference: str) -> tuple[Pointer, Any] | None:
    """Where a reference leads, and what stands there; None when that is nothing of this document."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    pointer = tuple(_unescape(part) for part in reference.split("/")[1:])
    found: Any = root
    for name in pointer:
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and _is_index(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return pointer, found


def unions_of(facet: Any) -> list[list[Any]]:
    """The choices a schema leaves, each with its arms."""
    if not isinstance(facet, dict):
        return []
    return [arms for keyword in UNIONS if isinstance(arms := facet.get(keyword), list)]


def escape(name: str) -> str:
    """A name as it stands in a reference."""
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def _unescape(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= LONGEST_INDEX
