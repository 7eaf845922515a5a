"""What is wrong with arguments, in sentences a model can act on."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from app.core.errors import InvalidArgs

MOST = 5
"""Mistakes that are told at once."""
SHOWN = 80
LISTED = 30

RULES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be more than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} members",
    "maxProperties": "must have at most {} members",
    "pattern": "must match the pattern {}",
    "const": "must be {}",
    "uniqueItems": "must not hold the same item twice",
}
Mistake = tuple[str, str]
"""The field, and what is wrong with it."""


def refuse(tool: str, errors: Iterable[Any], takes: Iterable[str]) -> InvalidArgs:
    """The errors of a JSON Schema validator as the one that ends the call."""
    found = _found(errors)
    known = ", ".join(takes) or "nothing"
    return InvalidArgs(
        f"{tool} cannot take these arguments: {_told(found)}. It takes: {known}.",
        details={"fields": list(dict.fromkeys(field for field, _ in found))},
    )


def tell(errors: Iterable[Any]) -> str | None:
    """The same where it is no call's end; None when there are none."""
    return _told(found) if (found := _found(errors)) else None


def _found(errors: Iterable[Any]) -> list[Mistake]:
    return list(dict.fromkeys(mistake for error in errors for mistake in _mistakes(error)))


def _told(found: list[Mistake]) -> str:
    more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(text for _, text in found[:MOST]) + more


def _mistakes(error: Any) -> Iterator[Mistake]:
    path = [str(part) for part in error.absolute_path]
    where = ".".join(path) or "arguments"
    match error.validator:
        case "required":
            for name in error.validator_value:
                if name not in error.instance:
                    field = ".".join([*path, name])
                    yield field, f"`{field}` is required"
        case "additionalProperties" | "unevaluatedProperties" if error.validator_value is False:
            for name in _extra(error):
                field = ".".join([*path, name])
                yield field, f"`{field}` is not a parameter of this tool, leave it out"
        case "anyOf" | "oneOf" if error.context:
            yield from _alternatives(error, where)
        case "type":
            yield where, f"`{where}`: expected {_types(error.validator_value)} (got {_show(error.instance)})"
        case "enum":
            options = [_show(option) for option in error.validator_value]
            listed = ", ".join(options[:LISTED]) + (", ..." if len(options) > LISTED else "")
            yield where, f"`{where}`: must be one of {listed} (got {_show(error.instance)})"
        case keyword if keyword in RULES:
            rule = RULES[keyword].format(_show(error.validator_value))
            yield where, f"`{where}`: {rule} (got {_show(error.instance)})"
        case keyword:
            yield where, f"`{where}`: does not fit `{keyword or 'false'}` of its schema (got {_show(error.instance)})"


def _alternatives(error: Any, where: str) -> Iterator[Mistake]:
    """Of several forms the one that fits furthest is told; when none fits at all, what they are."""
    deepest = max(error.context, key=lambda one: len(one.absolute_path))
    if len(deepest.absolute_path) > len(error.absolute_path) or isinstance(error.instance, dict):
        branch = deepest.relative_schema_path[0]
        for one in error.context:
            if one.relative_schema_path[0] == branch:
                yield from _mistakes(one)
        return
    kinds = [_types(one.validator_value) for one in error.context if one.validator == "type"]
    if len(kinds) == len(error.context):
        yield where, f"`{where}`: expected {' or '.join(dict.fromkeys(kinds))} (got {_show(error.instance)})"
        return
    yield from _mistakes(next(one for one in error.context if one.validator != "type"))


def _extra(error: Any) -> list[str]:
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    return [
        str(name)
        for name in error.instance
        if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _types(wanted: Any) -> str:
    return " or ".join(wanted) if isinstance(wanted, list) else str(wanted)


def _show(value: Any) -> str:
    given = repr(value)
    return given if len(given) <= SHOWN else given[: SHOWN - 3] + "..."
