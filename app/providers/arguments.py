"""The arguments of a call as a provider sends them: an object, or JSON in a string that may not be any."""

import json
from typing import Any, NoReturn, TypedDict

LONGEST_SHOWN = 80


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
        value = json.loads(given, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return {"arguments_error": f"The arguments are no JSON: {error}.", "raw_arguments": given}
    if value is None:
        return {"arguments": {}}
    if not isinstance(value, dict):
        return {"arguments_error": f"The arguments are no object but {_kind(value)}.", "raw_arguments": given}
    return {"arguments": value}


def cut_short(raw: str) -> Arguments:
    """Arguments of a call that the model did not finish."""
    return {
        "arguments_error": "The message ended before the arguments were whole; nothing was run.",
        "raw_arguments": raw,
    }


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON knows")


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
