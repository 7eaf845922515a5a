"""Lines: bytes as they come, cut where the lines end. One that is too long is dropped, and never held whole."""

from collections.abc import Callable

EDGE = 256


class Lines:
    """Cuts a stream. `dropped` is told of each line as soon as it is longer than the limit, and `edges` gets its first
    and last bytes when it has come to its end."""

    def __init__(
        self, limit: int, dropped: Callable[[], None], edges: Callable[[bytes, bytes], None] = lambda first, last: None
    ) -> None:
        self._limit = limit
        self._dropped = dropped
        self._edges = edges
        self._parts: list[bytes] = []
        self._size = 0
        self._first: bytes | None = None
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        first, *others = data.split(b"\n")
        self._go_on(first)
        if not others:
            return []
        lines = [] if self._first is not None else [b"".join(self._parts)]
        self._end()
        for line in others[:-1]:
            if len(line) <= self._limit:
                lines.append(line)
            else:
                self._go_on(line)
                self._end()
        self._go_on(others[-1])
        return lines

    def rest(self) -> bytes:
        """What came after the last end."""
        return b"".join(self._parts)

    def _go_on(self, data: bytes) -> None:
        if self._first is not None:
            self._last = (self._last + data)[-EDGE:]
            return
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._first, self._last = b"".join(self._parts[:2])[:EDGE], data[-EDGE:]
            self._parts, self._size = [], 0
            self._dropped()

    def _end(self) -> None:
        if self._first is not None:
            self._edges(self._first, self._last)
        self._parts, self._size, self._first, self._last = [], 0, None, b""
