"""Glances: most tools take an object with a few members of simple types, and arguments that fit such a schema can be
seen to do so at a glance. Whatever cannot be seen like that is left to the validator, which has the last word."""

from collections.abc import Callable
from typing import Any

Glance = Callable[[Any], bool]
"""True: the arguments fit. False: look closer."""

SAYS_NOTHING = frozenset({"$schema", "$comment", "title", "description", "default", "examples", "deprecated"})
OF_THE_WHOLE = SAYS_NOTHING | {"type", "properties", "required", "additionalProperties"}
OF_A_MEMBER = SAYS_NOTHING | {"type"}
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float)}
NO_MEMBER: tuple[type, ...] = ()


def glance(schema: dict[str, Any]) -> Glance | None:
    """What looks at arguments; None for a schema that is not plain enough."""
    members, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if schema.keys() - OF_THE_WHOLE or schema.get("type") != "object" or not isinstance(others, bool):
        return None
    if not all(_is_plain(member) for member in members.values()):
        return None
    return _looker({name: TYPES[member["type"]] for name, member in members.items()}, schema.get("required"), others)


def _is_plain(member: Any) -> bool:
    return isinstance(member, dict) and not member.keys() - OF_A_MEMBER and _type(member) in TYPES


def _type(member: dict[str, Any]) -> str | None:
    found = member.get("type")
    return found if isinstance(found, str) else None


def _looker(types: dict[str, tuple[type, ...]], required: list[str] | None, takes_others: bool) -> Glance:
    must = frozenset(required or ())

    def fits(raw: Any) -> bool:
        if type(raw) is not dict or not must <= raw.keys():
            return False
        for name, value in raw.items():
            if type(value) not in types.get(name, NO_MEMBER) and (name in types or not takes_others):
                return False
        return True

    return fits
