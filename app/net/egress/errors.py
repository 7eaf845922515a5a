"""Errors of the egress proxy, each with an HTTP status, a reason code and a sentence."""

from http import HTTPStatus

from app.net.egress.http1 import Field, write_head


class Refused(Exception):
    """A request that is not served. `is_allowed`: the policy allows it, but it failed."""

    def __init__(self, status: int, reason: str, sentence: str, *, is_allowed: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.sentence = sentence
        self.is_allowed = is_allowed


def failed(reason: str, sentence: str) -> Refused:
    """The host failed."""
    return Refused(502, reason, sentence, is_allowed=True)


def timed_out(sentence: str) -> Refused:
    """The host did not respond in time."""
    return Refused(504, "upstream-timeout", sentence, is_allowed=True)


def error_response(refused: Refused) -> bytes:
    """The HTTP response. Clients that do not show the body still show the X-Proxy-Error header."""
    body = f"{refused.sentence}\n".encode()
    fields: list[Field] = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", str(len(body)).encode()),
        (b"Connection", b"close"),
        (b"X-Proxy-Error", refused.reason.encode()),
    ]
    if refused.status == 407:
        fields.append((b"Proxy-Authenticate", b'Basic realm="toolcrib"'))
    return write_head(status_line(refused.status), fields) + body


def status_line(status: int) -> bytes:
    """Our own reason phrase: the one of the host is not trusted."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()
