"""Failures of calls as problems, for routes where HTTP is the frontend and nobody reads a call."""

import json

from app.api.problems import Problem
from app.core.calls import Call

CALL = "Toolcrib-Call"
"""The header that names the call a request became."""
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
"""What a condition that was not met ends with."""


def problem_of_call(call: Call, *, is_conditional: bool = False) -> Problem:
    """Why a call failed, as the answer to its request; with a condition, a wrong state is a failed condition."""
    error = json.loads(call.error or "{}")
    code, message = error.get("code", "Internal"), error.get("message", "The call gave no answer.")
    return of_call(call, problem_of_code(code, message, is_conditional=is_conditional))


def problem_of_code(code: str, message: str, *, is_conditional: bool = False) -> Problem:
    if is_conditional and code in CHANGED:
        return Problem(412, code, message)
    status = STATUSES.get(code, 500)
    return Problem(status, code, message, {"Retry-After": "1"} if status == 503 else None)


def of_call(call: Call, problem: Problem) -> Problem:
    """The problem, with the call that the request was."""
    problem.call = call.id
    problem.headers = (problem.headers or {}) | {CALL: call.id}
    return problem
