"""The arguments of a call as a provider sends them: an object, or a string that should be JSON."""

import json
from math import isinf
from typing import Any, TypedDict

from pydantic_core import from_json

MAX_DEPTH = 64


class Arguments(TypedDict, total=False):
    """Fields of a `ModelCall`."""

    arguments: dict[str, Any]
    arguments_error: str
    raw_arguments: str


def parse(raw: Any) -> Arguments:
    """An object, or a string of JSON; None, an empty string and null mean no arguments."""
    if isinstance(raw, dict):
        return {"arguments": raw}
    if raw is None:
        return {"arguments": {}}
    if not isinstance(raw, str):
        return {
            "arguments_error": f"The arguments must be an object, not {_kind(raw)}.",
            "raw_arguments": json.dumps(raw, ensure_ascii=False),
        }
    if not raw.strip():
        return {"arguments": {}}
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        return {"arguments_error": f"The arguments are not JSON: {error}.", "raw_arguments": raw}
    if value is None:
        return {"arguments": {}}
    if not isinstance(value, dict):
        return {"arguments_error": f"The arguments must be an object, not {_kind(value)}.", "raw_arguments": raw}
    if not _is_safe(value, MAX_DEPTH):
        return {
            "arguments_error": "The arguments are nested too deep, or have a number out of range.",
            "raw_arguments": raw,
        }
    return {"arguments": value}


def incomplete(raw: str) -> Arguments:
    """Arguments of a call that the model did not finish."""
    return {
        "arguments_error": "The message ended before the arguments were complete; nothing was run.",
        "raw_arguments": raw,
    }


def _is_safe(value: Any, depth: int) -> bool:
    """The limits of a request body, which JSON inside a string would bypass."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_safe(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_safe(item, depth - 1) for item in value)
    return not (isinstance(value, float) and isinf(value))


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return type(value).__name__
