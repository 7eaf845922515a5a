"""Server-sent events: a stream of bytes, cut into events as the standard for them says."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
MOST_EVENT = 64 * 1024 * 1024


class SseEvent(NamedTuple):
    """One event. `id` is what the server called it, if it did."""

    name: str
    data: bytes
    id: str | None


class SseParser:
    """Reads one stream. `retry` is what it says of how long to wait before it is opened again, in seconds; `last_id` is
    that of the last event that came whole, for one that was cut off in the middle has to come again.

    An event larger than the limit is passed over, and `dropped` told of it.
    """

    def __init__(self, dropped: Callable[[], None], limit: int = MOST_EVENT) -> None:
        self.retry: float | None = None
        self.last_id: str | None = None
        self._dropped = dropped
        self._limit = limit
        self.restart()

    def restart(self) -> None:
        """The stream is opened again: what was half is gone."""
        self._parts: list[bytes] = []
        self._held = 0
        self._is_new = True
        self._is_after_return = False
        self._begin()

    def _begin(self) -> None:
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        self._is_dropping = False

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """The events that are whole now."""
        if self._is_after_return and chunk:
            self._is_after_return = False
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):  # bytes know no other ends than those of the standard
            if not line.endswith((b"\n", b"\r")):
                self._hold(line)
                return
            self._is_after_return = line.endswith(b"\r")
            whole = b"".join((*self._parts, line)).rstrip(b"\r\n") if self._parts else line.rstrip(b"\r\n")
            self._parts, self._held = [], 0
            event = self._take(whole)
            if event is not None:
                yield event

    def _hold(self, part: bytes) -> None:
        """The beginning of a line."""
        self._held += len(part)
        if self._has_room(self._held):
            self._parts.append(part)
        else:
            self._parts = [b":"]  # what is left of it reads as a comment

    def _has_room(self, size: int) -> bool:
        """Whether the event may be so much larger."""
        if self._size + size > self._limit and not self._is_dropping:
            self._is_dropping, self._data = True, []
            self._dropped()
        return not self._is_dropping

    def _take(self, line: bytes) -> SseEvent | None:
        if self._is_new:
            self._is_new = False
            line = line.removeprefix(BOM)
        if not line:
            return self._end()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if self._has_room(len(value)):
                self._data.append(value)
                self._size += len(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) < 10:
            self.retry = int(value) / 1000
        return None

    def _end(self) -> SseEvent | None:
        self.last_id = self.last_id if self._id is None else self._id
        event = SseEvent(self._name or "message", b"\n".join(self._data), self._id) if self._data else None
        self._begin()
        return event
