"""A parser for server-sent events, as the WHATWG HTML standard defines them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseEvent(NamedTuple):
    """One event. `id` is None when the server gave none."""

    name: str
    data: bytes
    id: str | None


class SseParser:
    """Parses one stream. `retry` is the server's reconnection time in seconds; `last_id` is the id of the last
    complete event.

    An event larger than the limit is skipped and reported with `on_dropped`.
    """

    def __init__(self, on_dropped: Callable[[], None], limit: int = MAX_EVENT_BYTES) -> None:
        self.retry: float | None = None
        self.last_id: str | None = None
        self._on_dropped = on_dropped
        self._limit = limit
        self.restart()

    def restart(self) -> None:
        """The stream was opened again: drop what is incomplete."""
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._is_first_line = True
        self._is_after_return = False
        self._begin_event()

    def _begin_event(self) -> None:
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        self._is_dropping = False

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """The events that are complete now."""
        if self._is_after_return and chunk:
            self._is_after_return = False
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):  # bytes are split at \n, \r and \r\n only, as in the standard
            if not line.endswith((b"\n", b"\r")):
                self._append_part(line)
                return
            self._is_after_return = line.endswith(b"\r")
            complete = b"".join((*self._parts, line)).rstrip(b"\r\n") if self._parts else line.rstrip(b"\r\n")
            self._parts, self._parts_size = [], 0
            event = self._parse_line(complete)
            if event is not None:
                yield event

    def _append_part(self, part: bytes) -> None:
        self._parts_size += len(part)
        if self._has_room(self._parts_size):
            self._parts.append(part)
        else:
            self._parts = [b":"]  # the rest of the line reads as a comment

    def _has_room(self, size: int) -> bool:
        """Whether the event may grow by this much."""
        if self._size + size > self._limit and not self._is_dropping:
            self._is_dropping, self._data = True, []
            self._on_dropped()
        return not self._is_dropping

    def _parse_line(self, line: bytes) -> SseEvent | None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(BOM)
        if not line:
            return self._end_event()
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

    def _end_event(self) -> SseEvent | None:
        self.last_id = self.last_id if self._id is None else self._id
        event = SseEvent(self._name or "message", b"\n".join(self._data), self._id) if self._data else None
        self._begin_event()
        return event
