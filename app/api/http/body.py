"""Request bodies: how large they may be, and strict JSON.

What is not JSON, or could not be stored as it is, is refused before anything reads it.
"""

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
from starlette.types import Message, Receive, Scope

from app.api.http.problems import Problem

JSON = "application/json"
MAX_DEPTH = 64
MAX_DIGITS = 1000
MAX_VALUES = 250_000
_FILE_PATH = re.compile(r"/v1/sessions/[^/]+/files/")
_MAY_BE_INFINITE = re.compile(rb"[eE]\+?\d{3}|(?<!\d)\d{309}")
_CHUNK_BYTES = 64 * 1024
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
_STEPS = bytes({"[": 1, "{": 1, "]": 255, "}": 255}.get(chr(code), 0) for code in range(256))
"""Into a level and out of it, as signed bytes."""
_NO_STEPS = bytes(code for code in range(256) if chr(code) not in "[]{}")


class BodyLimit:
    """The size limit of every request body; uploaded files have a limit of their own."""

    def __init__(self, max_bytes: int, max_file_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_file_bytes = max_file_bytes

    def check(self, scope: Scope, receive: Receive) -> Receive:
        """The `receive` to read this request's body with; raises the problem when the headers announce it."""
        limit = self._max_bytes
        if scope["method"] == "PUT" and _FILE_PATH.match(scope["path"].removeprefix(scope.get("root_path", ""))):
            limit = self._max_file_bytes
        has_body = is_encoded = False
        for name, value in scope["headers"]:
            if name == b"content-length":  # the server passes on no more bytes than this
                has_body = value != b"0"
                if len(value) > 18 or int(value) > limit:
                    raise _too_large(limit)
            elif name == b"transfer-encoding":
                has_body = True
                receive = _counted(receive, limit)
            elif name == b"content-encoding":
                is_encoded = value.lower() != b"identity"
        if is_encoded and has_body:
            raise Problem(415, "UnsupportedEncoding", "Send the body as it is, without `Content-Encoding`.")
        return receive


def _counted(receive: Receive, limit: int) -> Receive:
    received = 0

    async def counting_receive() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _too_large(limit)
        return message

    return counting_receive


def _too_large(limit: int) -> Problem:
    return Problem(413, "BodyTooLarge", f"A body may have {limit} bytes at most.")


async def read(receive: Receive) -> bytes:
    """A whole body. Most come in one message."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "InvalidJson", "The body ended early.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse(body: bytes, content_type: str) -> Any:
    """A body as JSON. Integers have any size; NaN, lone surrogates and floats out of range are not JSON.

    Of two equal keys in one object the last wins.
    """
    if content_type != JSON:
        name = content_type.partition(";")[0].strip().lower()
        if name != JSON and not name.endswith("+json"):
            raise Problem(415, "UnsupportedMediaType", f"Send the body with `Content-Type: {JSON}`.")
    if message := excess(body):
        raise Problem(400, "InvalidJson", message)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "InvalidJson", f"The body is not JSON: {error}.") from None
    # Without three digits in a row, which most bodies do not have, no number is out of range.
    if b"000" in body.translate(_DIGITS) and _MAY_BE_INFINITE.search(body) and _has_infinity(value):
        raise Problem(400, "InvalidJson", "The body holds a number that is out of range.")
    return value


def excess(body: bytes) -> str | None:
    """Why a body must not reach the parser: too deep, too many values, or too long a number.

    Reads each byte a few times at most. What is not JSON at all is left to the parser, which stops there;
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


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`, because FastAPI's own parser accepts what is not JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        is_required = self.body_field.field_info.is_required()

        async def parse_and_handle(request: Request) -> Response:
            request._body = await read(request.receive)
            if request._body or is_required:
                request._json = parse(request._body, request.headers.get("content-type", JSON))  # FastAPI uses it
            return await handle(request)

        return parse_and_handle


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """The body without its strings. Between two quotes that are not escaped everything is inside, or everything out."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    inside = 0
    for start in range(0, len(plain), _CHUNK_BYTES):
        parts = plain[start : start + _CHUNK_BYTES].split(b'"')
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
    for start in range(0, len(steps), _CHUNK_BYTES):
        depths = list(accumulate(steps[start : start + _CHUNK_BYTES], initial=depth))
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
