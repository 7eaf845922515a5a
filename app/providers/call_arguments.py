"""The arguments of a call as a provider sends them: an object, or JSON in a string that may not be any."""

import json
from math import isinf
from typing import Any, TypedDict

from pydantic_core import from_json

DEEPEST = 64


class Arguments(TypedDict, total=False):
    """What there is to say of a call's arguments, as the fields of a `ModelCall`."""

    arguments: dict[str, Any]
    arguments_error: str
    raw_arguments: str


def read(given: Any) -> Arguments:
    """Arguments that are an object already, or a string of JSON; nothing, an empty string and null are none."""
    if isinstance(given, dict):
        return {"arguments": given}
    if given is None:
        return {"arguments": {}}
    if not isinstance(given, str):
        return {"arguments_error": f"The arguments are no object but {_kind(given)}.", "raw_arguments": _dumped(given)}
    if not given.strip():
        return {"arguments": {}}
    try:
        value = from_json(given, allow_inf_nan=False)
    except ValueError as error:
        return {"arguments_error": f"The arguments are no JSON: {error}.", "raw_arguments": given}
    if value is None:
        return {"arguments": {}}
    if not isinstance(value, dict):
        return {"arguments_error": f"The arguments are no object but {_kind(value)}.", "raw_arguments": given}
    if not _is_tame(value, DEEPEST):
        return {
            "arguments_error": "The arguments are nested too deeply, or hold a number beyond all range.",
            "raw_arguments": given,
        }
    return {"arguments": value}


def cut_short(raw: str) -> Arguments:
    """Arguments of a call that the model did not finish."""
    return {
        "arguments_error": "The message ended before the arguments were whole; nothing was run.",
        "raw_arguments": raw,
    }


def _is_tame(value: Any, depth: int) -> bool:
    """What could also have come as JSON of its own, which the door looks at before anything reads it."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_tame(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_tame(item, depth - 1) for item in value)
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
            return "a text"
        case _:
            return type(value).__name__


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
