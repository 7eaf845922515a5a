"""How much of a body is taken in, told before or while it comes."""

from starlette.types import Message, Receive, Scope

from app.api.problems import Problem


class BodyLimit:
    """The one check every request with a body passes. Nothing is kept here: a route that reads no body gets none."""

    def __init__(self, most: int) -> None:
        self._most = most

    def check(self, scope: Scope, receive: Receive) -> Receive:
        """How to receive this request's body; raises the problem where its headers say enough."""
        has_body = is_encoded = False
        for name, value in scope["headers"]:
            if name == b"content-length":  # the server hands on no more than it says
                has_body = value != b"0"
                if len(value) > 18 or int(value) > self._most:
                    raise self._too_large()
            elif name == b"transfer-encoding":
                has_body = True
                receive = self._counted(receive)
            elif name == b"content-encoding":
                is_encoded = value.lower() != b"identity"
        if is_encoded and has_body:
            raise Problem(415, "UnsupportedEncoding", "Send the body as it is, without `Content-Encoding`.")
        return receive

    def _counted(self, receive: Receive) -> Receive:
        came = 0

        async def counting() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise self._too_large()
            return message

        return counting

    def _too_large(self) -> Problem:
        return Problem(413, "BodyTooLarge", f"A body may have {self._most} bytes at most.")
