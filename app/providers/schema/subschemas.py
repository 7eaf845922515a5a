"""Parts of a schema: what a reference names, and what a list of types is made of."""

from collections.abc import Iterable
from typing import Any

from app.providers.schema import document

_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
WORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"}),
    "integer": _NUMBERS,
    "number": _NUMBERS,
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"})
    | {"contains", "minContains", "maxContains", "unevaluatedItems"},
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames"})
    | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"},
}
"""The keywords that mean something for one type only."""


def look_up(root: dict[str, Any], reference: Any) -> dict[str, Any]:
    """The schema that a reference names. Raises `LookupError`, with a clause that says why it leads nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise LookupError("it refers to another document")
    found = document.look_up(root, reference)
    if found is None or not isinstance(found[1], dict):
        raise LookupError("a reference in it leads nowhere")
    target: dict[str, Any] = found[1]
    return target


def by_type(schema: dict[str, Any], types: Iterable[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One schema for each type, with what belongs to that type only; before them, what is said of all."""
    arms = [
        {"type": kind} | {word: value for word, value in schema.items() if word in WORDS.get(kind, ())}
        for kind in types
    ]
    taken = {"type"}.union(*arms)
    return {word: value for word, value in schema.items() if word not in taken}, arms
