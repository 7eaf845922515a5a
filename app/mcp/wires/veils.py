"""Veils: what a server was given in secret is not shown where it talks about it."""

from collections.abc import Iterable

from app.mcp.ports import Log

HIDDEN = "***"


class Veiled:
    """A log that hides these values."""

    def __init__(self, journal: Log, values: Iterable[str]) -> None:
        self._log = journal
        self._values = sorted(filter(None, values), key=len, reverse=True)

    def write(self, text: str) -> None:
        self._log.write(self.hide(text))

    def hide(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text
