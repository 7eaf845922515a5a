"""Bodies: JSON as it comes in. What is not JSON, or could not be kept as it is, is refused before anything reads it."""

import re
from array import array
from collections.abc import Callable, Coroutine, Iterator
from itertools import accumulate
from math import isinf
from typing import Any

import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from app.api.http.problems import Problem

JSON = "application/json"
MAX_DEPTH = 64
MAX_DIGITS = 1000
MAX_VALUES = 250_000
_MAY_BE_INFINITE = re.compile(rb"[eE]\+?\d{3}|(?<!\d)\d{309}")
_PIECE = 64 * 1024
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
_STEPS = bytes({"[": 1, "{": 1, "]": 255, "}": 255}.get(chr(code), 0) for code in range(256))
"""Into a level and out of it, as signed bytes."""
_NO_STEPS = bytes(code for code in range(256) if chr(code) not in "[]{}")


def parse(body: bytes, kind: str) -> Any:
    """A body as JSON. Numbers keep their size; NaN, lone surrogates and numbers beyond all range are not JSON.

    Of two equal keys in one object the last wins.
    """
    if kind != JSON and not _is_json(kind):
        raise Problem(415, "UnsupportedMediaType", f"Send the body with `Content-Type: {JSON}`.")
    if wrong := excess(body):
        raise Problem(400, "InvalidJson", wrong)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "InvalidJson", f"The body is not JSON: {error}.") from None
    if _has_digits(body) and _MAY_BE_INFINITE.search(body) and _has_infinity(value):
        raise Problem(400, "InvalidJson", "The body holds a number that is out of range.")
    return value


def _has_digits(body: bytes) -> bool:
    """Whether there are three digits in a row: without them no number is out of range, and most bodies have none."""
    return b"000" in body.translate(_DIGITS)


def excess(body: bytes) -> str | None:
    """What a parser should not even see, in a sentence: it would take too many levels, too much room, or too long.

    Looks at each byte a few times at most. What is no JSON at all is left to the parser, which stops there;
    up to that point this has counted right.
    """
    openings = body.count(b"[") + body.count(b"{")
    if openings <= MAX_DEPTH and (len(body) <= MAX_DIGITS or not (_has_many_values(body) or _has_long_number(body))):
        return None
    bare = b"".join(_outside_strings(body))
    if _has_many_values(bare):
        return f"The body holds more than {MAX_VALUES} values."
    if _has_long_number(bare):
        return f"The body holds a number of more than {MAX_DIGITS} digits."
    if _is_too_deep(bare):
        return f"The body is nested deeper than {MAX_DEPTH} levels."
    return None


async def read(receive: Receive) -> bytes:
    """A whole body. Most come in one piece."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "InvalidJson", "The body ended early.")
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class JsonRoute(APIRoute):
    """A route whose body is read as the hot route reads it, and not by `json`, which takes what is not JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        is_needed = self.body_field.field_info.is_required()

        async def read_first(request: Request) -> Response:
            request._body = await read(request.receive)
            if not request._body and not is_needed:
                return await handle(request)
            request._json = parse(request._body, request.headers.get("content-type", JSON))  # FastAPI looks there
            return await handle(request)

        return read_first


def _is_json(kind: str) -> bool:
    name = kind.partition(";")[0].strip().lower()
    return name == JSON or name.endswith("+json")


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """The body without its strings. Between two quotes that are not escaped everything is inside, or everything out."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    inside = 0
    for start in range(0, len(plain), _PIECE):
        parts = plain[start : start + _PIECE].split(b'"')
        yield b'"'.join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2


def _has_many_values(body: bytes) -> bool:
    """Each value but the first of a list or object has a comma before it, each list or object a bracket."""
    return len(body) > MAX_VALUES and sum(body.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES


def _has_long_number(body: bytes) -> bool:
    return _TOO_MANY_DIGITS in body.translate(_DIGITS)


def _is_too_deep(bare: bytes) -> bool:
    steps = array("b", bare.translate(_STEPS, _NO_STEPS))
    depth = 0
    for start in range(0, len(steps), _PIECE):
        depths = list(accumulate(steps[start : start + _PIECE], initial=depth))
        if max(depths) > MAX_DEPTH:
            return True
        depth = depths[-1]
    return False


def _has_infinity(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_infinity(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_infinity(item) for item in value)
    return isinstance(value, float) and isinf(value)
