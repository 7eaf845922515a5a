"""Arguments that Vertex streams in pieces, each with the path at which it belongs."""

import copy
import re
from itertools import pairwise
from typing import Any

VALUES = (("stringValue", "string_value"), ("numberValue", "number_value"), ("boolValue", "bool_value"))
_STEP = re.compile(r"""\.([A-Za-z_][\w-]*)|\[(\d{1,6})\]|\['([^']*)'\]|\["([^"]*)"\]""")


def assemble(start: dict[str, Any], pieces: list[Any]) -> dict[str, Any]:
    """The arguments as a whole. Raises `ValueError`, with a clause that says what does not fit."""
    root = copy.deepcopy(start)
    unfinished: dict[str, list[str]] = {}
    for piece in pieces:
        path = either(piece, "jsonPath", "json_path") if isinstance(piece, dict) else None
        if not isinstance(path, str):
            raise ValueError("one has no path")
        steps, value = _steps(path), _value(piece)
        texts = unfinished.pop(path, [])
        if texts and value is None and either(piece, "nullValue", "null_value") is None:
            value = ""  # it only says that the text goes on, or has ended
        if isinstance(value, str):
            texts.append(value)
        goes_on = either(piece, "willContinue", "will_continue") is True
        if goes_on:
            unfinished[path] = texts if isinstance(value, str) else []
        if not goes_on or len(texts) < 2:  # what goes on is put together at its end, not again and again
            _put(root, steps, "".join(texts) if isinstance(value, str) else value)
    if unfinished:
        raise ValueError(f"{min(unfinished)} is not whole")
    return root


def either(given: dict[str, Any], camel: str, snake: str) -> Any:
    """A field by either of the names it goes by in JSON."""
    found = given.get(camel)
    return given.get(snake) if found is None else found


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    place = 1
    while path.startswith("$") and (found := _STEP.match(path, place)):
        name, index, *quoted = found.groups()
        steps.append(int(index) if index else name or quoted[0] or quoted[1] or "")
        place = found.end()
    if place != len(path) or not steps:
        raise ValueError(f"{path[:80]} is no path that is known here")
    return steps


def _put(root: dict[str, Any], steps: list[str | int], value: Any) -> None:
    place: Any = root
    for step, following in pairwise(steps):
        place = _set(place, step, [] if isinstance(following, int) else {}, is_new=False)
    _set(place, steps[-1], value, is_new=True)


def _set(place: Any, step: str | int, value: Any, *, is_new: bool) -> Any:
    """What stands there now: the value, or what was there before when nothing new is meant."""
    if isinstance(place, dict) and isinstance(step, str):
        if is_new or step not in place:
            place[step] = value
        return place[step]
    if isinstance(place, list) and isinstance(step, int) and step <= len(place):
        if step == len(place):
            place.append(value)
        elif is_new:
            place[step] = value
        return place[step]
    raise ValueError(f"there is no place {step!r}")


def _value(piece: dict[str, Any]) -> Any:
    value = next((found for names in VALUES if (found := either(piece, *names)) is not None), None)
    return int(value) if isinstance(value, float) and value.is_integer() else value
