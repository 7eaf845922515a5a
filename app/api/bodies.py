"""Bodies: JSON as it comes in. What is not JSON, or could not be kept as it is, is refused before anything reads it."""

import re
from collections.abc import Callable, Coroutine
from math import isinf
from typing import Any

import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from app.api.problems import Problem

JSON = "application/json"
_MAY_BE_INFINITE = re.compile(rb"[eE]\+?\d{3}|\d{309}")


async def read_json(request: Request) -> Any:
    """The body as JSON. Numbers keep their size; NaN, lone surrogates and numbers beyond all range are not JSON."""
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise Problem(415, "UnsupportedMediaType", f"Send the body with `Content-Type: {JSON}`.")
    try:
        body = await request.body()
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, "InvalidJson", f"The body is not JSON: {error}.") from None
    except ClientDisconnect:
        raise Problem(400, "InvalidJson", "The body ended early.") from None
    if _MAY_BE_INFINITE.search(body) and _has_infinity(value):
        raise Problem(400, "InvalidJson", "The body holds a number that is out of range.")
    return value


class JsonRoute(APIRoute):
    """A route whose body is read as the hot route reads it, and not by `json`, which takes what is not JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_first(request: Request) -> Response:
            request._json = await read_json(request)  # where FastAPI's own reading finds it
            return await handle(request)

        return read_first


def _has_infinity(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_infinity(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_infinity(item) for item in value)
    return isinstance(value, float) and isinf(value)
