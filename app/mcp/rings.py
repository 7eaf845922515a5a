"""Rings: the last of what a server's program wrote beside the protocol."""

from app.core.redaction import Redactor

LIMIT = 64 * 1024


class Ring:
    """The `Log` port. Only the end is kept, without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._stream = redactor.stream()
        self._text = ""

    def write(self, text: str) -> None:
        self._text = (self._text + self._stream.feed(text))[-LIMIT:]

    def read(self) -> str:
        """All that is there, from the beginning of a line on where something was dropped before it."""
        self._text = (self._text + self._stream.pause())[-LIMIT:]
        text = self._text
        if len(text) == LIMIT:
            text = text[text.find("\n") + 1 :]
        return self._redactor.text(text)
