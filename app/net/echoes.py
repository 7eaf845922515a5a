"""Echoes: an answer that repeats a secret is told with its placeholder instead, also where pieces meet."""

import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from app.core.redaction import LEAST, forms_of


class Scrubber:
    """Takes values out of an answer that comes in pieces: the end of a piece waits while it may be a beginning."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """`values` by their placeholders."""
        self._marks = {form: mark.encode() for mark, value in values.items() for form in _forms(value)}
        self._sorted = sorted(self._marks)
        self._longest = max(map(len, self._sorted))
        self._pattern = re.compile(b"|".join(map(re.escape, sorted(self._marks, key=len, reverse=True))))
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """All at once."""
        if not self._finds(data):
            return data
        return self._pattern.sub(lambda found: self._marks[found[0]], data)

    def feed(self, data: bytes) -> bytes:
        """What can be handed out now."""
        data = self._held + data
        end = self._safe_end(data)
        self._held = data[end:]
        return self.whole(data[:end])

    def finish(self) -> bytes:
        """What was still held back."""
        held, self._held = self._held, b""
        return self.whole(held)

    def _safe_end(self, data: bytes) -> int:
        """Where to cut, so that no form begins before the cut and goes on behind it."""
        starts = range(max(0, len(data) - self._longest + 1), len(data))
        end = next((start for start in starts if self._begins(data[start:])), len(data))
        if end == len(data) or not self._finds(data):
            return end
        for found in self._pattern.finditer(data):
            if found.start() < end < found.end():
                return found.start()
        return end

    def _finds(self, data: bytes) -> bool:
        """One form after the other is found much sooner than all of them by a pattern."""
        return any(form in data for form in self._sorted)

    def _begins(self, tail: bytes) -> bool:
        """Whether a form begins with this and goes on."""
        at = bisect_right(self._sorted, tail)
        return at < len(self._sorted) and self._sorted[at].startswith(tail)


def _forms(value: str) -> Iterator[bytes]:
    """Those that are redacted everywhere, and those that servers like to make of a header."""
    yield from (form.encode("utf-8", "replace") for form in forms_of(value))
    plain = value.encode()
    more: Iterable[bytes] = {
        plain.hex().encode(),
        plain.hex().upper().encode(),
        html.escape(value).encode(),
        plain.decode("latin-1").encode(),  # read in the wrong encoding and written in the right one
    }
    yield from (form for form in more if len(form) >= LEAST)
