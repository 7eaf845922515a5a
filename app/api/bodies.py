"""Bodies: JSON as it comes in. What is not JSON, or could not be kept as it is, is refused before anything reads it."""

import re
from collections.abc import Callable, Coroutine
from math import isinf
from typing import Any

import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from app.api.problems import Problem

JSON = "application/json"
_MAY_BE_INFINITE = re.compile(rb"[eE]\+?\d{3}|\d{309}")


def parse(body: bytes, kind: str) -> Any:
    """A body as JSON. Numbers keep their size; NaN, lone surrogates and numbers beyond all range are not JSON."""
    if kind != JSON and not _is_json(kind):
        raise Problem(415, "UnsupportedMediaType", f"Send the body with `Content-Type: {JSON}`.")
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "InvalidJson", f"The body is not JSON: {error}.") from None
    if _MAY_BE_INFINITE.search(body) and _has_infinity(value):
        raise Problem(400, "InvalidJson", "The body holds a number that is out of range.")
    return value


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

        async def read_first(request: Request) -> Response:
            request._body = await read(request.receive)
            request._json = parse(request._body, request.headers.get("content-type", JSON))  # FastAPI looks there
            return await handle(request)

        return read_first


def _is_json(kind: str) -> bool:
    name = kind.partition(";")[0].strip().lower()
    return name == JSON or name.endswith("+json")


def _has_infinity(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_infinity(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_infinity(item) for item in value)
    return isinstance(value, float) and isinf(value)
