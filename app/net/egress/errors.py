"""Refusals of the egress proxy: why something did not go out, in a word, a status and a sentence."""

from http import HTTPStatus

from app.net.egress.http1 import Field, write_head


class Refused(Exception):
    """`is_allowed`: nobody had anything against it, but it did not come about."""

    def __init__(self, status: int, reason: str, sentence: str, *, is_allowed: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.sentence = sentence
        self.is_allowed = is_allowed


def failed(reason: str, sentence: str) -> Refused:
    """What the other side did not do."""
    return Refused(502, reason, sentence, is_allowed=True)


def late(sentence: str) -> Refused:
    """What the other side did not do in time."""
    return Refused(504, "upstream-timeout", sentence, is_allowed=True)


def to_answer(refused: Refused) -> bytes:
    """The refusal as it is answered. Clients that show no body still show the header."""
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
    """In words of our own: what another server says there could be anything."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()
