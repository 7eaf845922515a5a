"""How much of a body is taken in, told before or while it comes."""

import re

from starlette.types import Message, Receive, Scope

from app.api.http.problems import Problem

_FILE = re.compile(r"/v1/sessions/[^/]+/files/")


class BodyLimit:
    """The one check every request with a body passes. Nothing is kept here: a route that reads no body gets none.

    A file that is put has a limit of its own.
    """

    def __init__(self, most: int, most_of_file: int) -> None:
        self._most = most
        self._most_of_file = most_of_file

    def check(self, scope: Scope, receive: Receive) -> Receive:
        """How to receive this request's body; raises the problem where its headers say enough."""
        most = self._most if scope["method"] != "PUT" else self._most_to_put(scope)
        has_body = is_encoded = False
        for name, value in scope["headers"]:
            if name == b"content-length":  # the server hands on no more than it says
                has_body = value != b"0"
                if len(value) > 18 or int(value) > most:
                    raise _too_large(most)
            elif name == b"transfer-encoding":
                has_body = True
                receive = _counted(receive, most)
            elif name == b"content-encoding":
                is_encoded = value.lower() != b"identity"
        if is_encoded and has_body:
            raise Problem(415, "UnsupportedEncoding", "Send the body as it is, without `Content-Encoding`.")
        return receive

    def _most_to_put(self, scope: Scope) -> int:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._most_of_file if _FILE.match(path) else self._most


def _counted(receive: Receive, most: int) -> Receive:
    came = 0

    async def counting() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise _too_large(most)
        return message

    return counting


def _too_large(most: int) -> Problem:
    return Problem(413, "BodyTooLarge", f"A body may have {most} bytes at most.")
