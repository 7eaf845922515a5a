"""Where a schema walk stands, and the limits of what is walked."""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from app.providers.schema.document import NotExpressible, Pointer

MAX_DEPTH = 60
"""Schemas inside each other, unions included. The limit of strict schemas is far below; this one guards the stack."""


MAX_NESTED = 100


MAX_VALUES = 100_000


LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """A place in the schema. `inlined` are the references that stand here in full, so that none does so in itself."""

    path: tuple[str, ...] = ()
    inlined: frozenset[Pointer] = frozenset({()})
    depth: int = 0

    def inside(self, *names: str) -> "SchemaPath":
        if self.depth >= MAX_DEPTH:
            raise NotExpressible("the schema is nested too deep")
        return replace(self, path=(*self.path, *names), depth=self.depth + 1)

    def inlining(self, pointer: Pointer) -> "SchemaPath":
        if len(self.inlined) > MAX_NESTED:
            raise NotExpressible("the references of the schema lead too far")
        return replace(self, inlined=self.inlined | {pointer})

    def give_up(self, reason: str) -> NoReturn:
        raise NotExpressible(f"{self} {reason}")

    def __str__(self) -> str:
        return quoted(".".join(self.path).replace(".[]", "[]")) if self.path else "the schema"


def quoted(name: str) -> str:
    """A name somebody else chose, fit for a sentence."""
    shown = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…"
    return f"`{''.join(sign if sign.isprintable() else '?' for sign in shown)}`"


def measure(schema: Any) -> None:
    """Raises `NotExpressible` for what is too large or too deep to walk, or has references that cannot be read."""
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
