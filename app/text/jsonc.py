"""JSON with comments and trailing commas, as in the settings of editors."""

import json
import re
from typing import Any

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|[\[{{,]\s*,|,(?=\s*[\]}}])", re.DOTALL)
"""Only behind an item: a comma behind nothing stays, and is an error."""


class NotJson(ValueError):
    """The text is not valid JSON; the message says where."""


def loads(text: str) -> Any:
    """Parse a text. A duplicate name in one object is an error, which `json` would ignore."""
    plain = _LAST_COMMA.sub(_without_comma, _COMMENT.sub(_without_comment, text.removeprefix("\ufeff")))
    try:
        return json.loads(plain, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise NotJson(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise NotJson("it is nested too deep") from None


def _without_comment(found: re.Match[str]) -> str:
    """Blanks instead, so that the rest keeps its line and column."""
    return found[0] if found[0].startswith('"') else re.sub(r"[^\r\n]", " ", found[0])


def _without_comma(found: re.Match[str]) -> str:
    return " " if found[0] == "," else found[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise NotJson(f"{name!r} appears twice in one object")
        result[name] = value
    return result


def _refuse(constant: str) -> Any:
    raise NotJson(f"{constant} is not a number in JSON")
