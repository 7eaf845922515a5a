"""RFC 9457 problem+json: errors of a request, and failed calls on routes whose response is not a call."""

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.core.calls import Call
from app.core.errors import Refusal, StoreError, TooManyCalls
from app.core.redaction import Redactor
from app.core.util.json_codec import dumps
from app.dispatch import idempotency
from app.runs.plan import RunError

log = logging.getLogger(__name__)

CALL_HEADER = "Toolcrib-Call"
"""The response header that names the call a request became."""
MEDIA_TYPE = "application/problem+json"
RUN_STATUSES = {"NotFound": 404, "RunGone": 410}


class ProblemBody(BaseModel):
    """What is wrong with the request."""

    type: str = Field(description="Always `about:blank`; `code` distinguishes problems.", examples=["about:blank"])
    title: str = Field(description="The name of the HTTP status.", examples=["Not Found"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="What to do about it.", examples=["There is no call call_0001."])
    code: str = Field(description="A stable name for the kind of problem.", examples=["NotFound"])
    oldest: int | None = Field(
        default=None, description="With `EventsGone`: the oldest event that is still stored.", examples=[None]
    )
    call: str | None = Field(
        default=None, description="The call, where the request became one.", examples=["call_06605af1f1f7394295dc6875"]
    )


class Problem(Exception):
    """Raised by routes; becomes the response."""

    oldest: int | None = None
    call: str | None = None

    def __init__(self, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers

    def response(self, redactor: Redactor | None = None) -> Response:
        """The response. `detail` is redacted, because it may quote a secret from the request."""
        body = ProblemBody(
            type="about:blank",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=redactor.text(self.detail) if redactor else self.detail,
            code=self.code,
            oldest=self.oldest,
            call=self.call,
        )
        return Response(dumps(body.model_dump(exclude_none=True)), self.status, self.headers, MEDIA_TYPE)


def not_found(what: str) -> Problem:
    return Problem(404, "NotFound", f"There is no {what}.")


def events_gone(oldest: int) -> Problem:
    gone = Problem(
        410, "EventsGone", f"Older events were removed; the oldest is {oldest}: resume with after={oldest - 1}."
    )
    gone.oldest = oldest
    return gone


def forbidden() -> Problem:
    return Problem(403, "Forbidden", "This key may not do that.")


def install(app: FastAPI) -> None:
    """Make every error that leaves a route a problem response."""
    handled = (Problem, HTTPException, RequestValidationError, Refusal, RunError, StoreError, Exception)
    for kind in (*handled, idempotency.BadKey, idempotency.Conflict, idempotency.Unreadable):
        app.add_exception_handler(kind, _respond)


async def _respond(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status == 405:
        # The router only knows the methods of the first route with this path.
        path = getattr(request.scope.get("route"), "path_format", request.scope["path"])
        if methods := sorted(method.upper() for method in request.app.openapi()["paths"].get(path, {})):
            problem.headers = {"Allow": ", ".join(methods)}
    return problem.response(request.app.state.redactor)


def problem_of(error: Exception) -> Problem:
    """The problem for an error that left a route. An unexpected error is a bug, and is logged."""
    match error:
        case Problem():
            return error
        case HTTPException():
            code = HTTPStatus(error.status_code).phrase.replace(" ", "")
            headers = dict(error.headers) if error.headers else None
            return Problem(error.status_code, code, str(error.detail), headers)
        case RequestValidationError():
            return invalid(error.errors())
        case Refusal():
            status = 429 if isinstance(error, TooManyCalls) else 503
            return Problem(status, error.code, str(error), {"Retry-After": str(error.retry_after)})
        case RunError():
            return Problem(RUN_STATUSES.get(error.code, 422), error.code, str(error))
        case idempotency.BadKey():
            return Problem(422, "InvalidRequest", f"Idempotency-Key: {error}")
        case idempotency.Conflict():
            return Problem(409, "IdempotencyConflict", f"This Idempotency-Key was used with another body, for {error}.")
        case idempotency.Unreadable():
            message = "The call that holds this Idempotency-Key cannot be read."
            return Problem(503, "NotRecorded", message, {"Retry-After": "5"})
        case StoreError():
            log.error("the store failed: %s", error)
            return Problem(503, "StoreUnavailable", str(error), {"Retry-After": "5"})
        case _:
            log.error("unexpected error in a request", exc_info=error)
            return Problem(500, "Internal", "The service failed; its log has the details.")


def invalid(errors: Any) -> Problem:
    """A request that does not validate, with the error of each field."""
    parts = [f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in errors]
    return Problem(422, "InvalidRequest", "; ".join(parts) or "The request is not valid.")


STATUSES = {
    **dict.fromkeys(("PermissionDenied", "DoomLoop", "AskExpired", "Declined", "HookDenied"), 403),
    **dict.fromkeys(("OutsideWorkspace", "EACCES", "EPERM", "EROFS"), 403),
    "ENOENT": 404,
    **dict.fromkeys(("EISDIR", "ENOTDIR", "EEXIST", "ESTALE", "ETXTBSY", "EBUSY", "Canceled"), 409),
    **dict.fromkeys(("TooLarge", "EFBIG"), 413),
    **dict.fromkeys(("InvalidArgs", "EINVAL", "ENAMETOOLONG", "ELOOP", "EILSEQ"), 422),
    "UnknownTool": 501,
    **dict.fromkeys(("McpError", "McpDisconnected"), 502),
    **dict.fromkeys(("Overloaded", "ToolUnavailable", "Interrupted"), 503),
    "Timeout": 504,
    **dict.fromkeys(("ENOSPC", "EDQUOT"), 507),
}
CHANGED = ("ESTALE", "EEXIST")
"""Codes of a failed precondition."""


def problem_of_call(call: Call, *, is_conditional: bool = False) -> Problem:
    """Why a call failed; with a condition in the request, an unexpected state is a failed precondition."""
    error = json.loads(call.error or "{}")
    code, message = error.get("code", "Internal"), error.get("message", "The call has no result.")
    return of_call(call, problem_of_code(code, message, is_conditional=is_conditional))


def problem_of_code(code: str, message: str, *, is_conditional: bool = False) -> Problem:
    if is_conditional and code in CHANGED:
        return Problem(412, code, message)
    status = STATUSES.get(code, 500)
    return Problem(status, code, message, {"Retry-After": "1"} if status == 503 else None)


def of_call(call: Call, problem: Problem) -> Problem:
    """The problem, naming the call that the request became."""
    problem.call = call.id
    problem.headers = (problem.headers or {}) | {CALL_HEADER: call.id}
    return problem
