"""JSON as editors take it in their settings: with comments, and with a comma behind the last item."""

import json
import re
from typing import Any

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|[\[{{,]\s*,|,(?=\s*[\]}}])", re.DOTALL)
"""Behind an item, that is; a comma behind nothing is a mistake and stays one."""


class NotJson(ValueError):
    """A text that is no JSON, with the place where it stops being so."""


def loads(text: str) -> Any:
    """The value of a text. A name that is there twice in one object is a mistake that JSON itself would swallow."""
    plain = _LAST_COMMA.sub(_without_comma, _COMMENT.sub(_without_comment, text.removeprefix("\ufeff")))
    try:
        return json.loads(plain, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise NotJson(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise NotJson("it is nested too deep") from None


def _without_comment(found: re.Match[str]) -> str:
    """Blanks instead, so that what stands behind it keeps its line and column."""
    return found[0] if found[0].startswith('"') else re.sub(r"[^\r\n]", " ", found[0])


def _without_comma(found: re.Match[str]) -> str:
    return " " if found[0] == "," else found[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise NotJson(f"{name!r} is there twice in one object")
        made[name] = value
    return made


def _refuse(constant: str) -> Any:
    raise NotJson(f"{constant} is no number in JSON")
