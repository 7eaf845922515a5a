"""JSON responses, and pages of lists."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi.responses import Response

from app.api.http.body import JSON
from app.api.http.problems import CALL_HEADER
from app.core.calls import Call
from app.core.util.json_codec import dumps

T = TypeVar("T")


def json_response(view: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(view), status, headers, JSON)


def list_response(views: Sequence[Any], next_cursor: str | None = None) -> Response:
    return json_response({"data": views, "next_cursor": next_cursor})


def page_response(items: Sequence[T], limit: int, *, cursor: Callable[[T], str], view: Callable[[T], Any]) -> Response:
    """The first `limit` items. The caller reads `limit + 1`: one more means that there is a next page."""
    next_cursor = cursor(items[limit - 1]) if len(items) > limit else None
    return list_response([view(item) for item in items[:limit]], next_cursor)


def pending_response(call: Call, prefix: str) -> Response:
    """202 for a request that became a call which still waits, for a person or for the gate."""
    return json_response(call.view(), 202, {"Location": f"{prefix}/v1/calls/{call.id}", CALL_HEADER: call.id})
