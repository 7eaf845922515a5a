"""Ends: the beginning and the end of a text that may be endless, in bounded memory and with exact counts."""

NEWLINE = "\n"
MARKER = "[{omitted} bytes left out here; all of it is in the output of the call]"


class HeadTailBuffer:
    """Text flows in; its first `head` and its last `tail` bytes stay. `size` counts all that came, as UTF-8; `lines`
    counts its lines, unless the caller does not need that: for large output counting takes longest.

    No character is split, and no line where an end has another one to stop at, for a secret that is cut in two is not
    recognized any more: so an end may be shorter than it could be.
    """

    __slots__ = ("_breaks", "_counts_lines", "_head", "_is_full", "_last", "_most_head", "_most_tail", "_tail", "size")

    def __init__(self, head: int, tail: int, *, counts_lines: bool = True) -> None:
        self.size = 0
        self._counts_lines = counts_lines
        self._most_head = head
        self._most_tail = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._is_full = False
        self._breaks = 0
        self._last = ""

    def feed(self, text: str) -> None:
        if not text:
            return
        if self._counts_lines:
            self._breaks += text.count("\n")
            self._last = text[-1]
        if self._is_full and len(text) > self._most_tail:
            self.size += size_of(text)  # only its end can stay, and the rest need not be encoded
            self._tail[:] = encoded(text[len(text) - self._most_tail :])
            return
        data = encoded(text)
        self.size += len(data)
        if not self._is_full:
            cut = whole_characters(data, self._most_head - len(self._head))
            self._is_full = cut < len(data)
            self._head += data[:cut]
            data = data[cut:]
        self._tail += data[max(len(data) - self._most_tail, 0) :]
        if len(self._tail) > 2 * self._most_tail:
            del self._tail[: len(self._tail) - self._most_tail]

    @property
    def lines(self) -> int:
        """How many lines came, the last one also when it has no end."""
        return self._breaks + (self._last not in ("", "\n"))

    @property
    def omitted(self) -> int:
        """Bytes left out between the two ends."""
        return self.size - len(self._begin()) - len(self._end())

    @property
    def head(self) -> str:
        return self._begin().decode()

    @property
    def tail(self) -> str:
        return self._end().decode()

    def rendered(self, marker: str = MARKER) -> str:
        """Both ends, and on a line between them how much is missing, if anything is."""
        head, tail, omitted = self.head, self.tail, self.omitted
        if not omitted:
            return head + tail
        return f"{head}{'' if head.endswith(NEWLINE) else NEWLINE}{marker.format(omitted=omitted)}\n{tail}"

    @property
    def _is_whole(self) -> bool:
        return self.size - len(self._head) <= self._most_tail

    def _begin(self) -> bytes:
        """Up to the last end of a line, unless that is far away."""
        stop = 0 if self._is_whole else self._head.rfind(b"\n", len(self._head) // 2) + 1
        return bytes(self._head[:stop]) if stop else bytes(self._head)

    def _end(self) -> bytes:
        """From the first beginning of a line on, unless that is far away."""
        if self._is_whole:
            return bytes(self._tail)
        data = bytes(self._tail[len(self._tail) - self._most_tail :])
        start = data.find(b"\n", 0, len(data) // 2) + 1
        while not start and data[:1] and data[0] & 0xC0 == 0x80:
            data = data[1:]
        return data[start:]


def encoded(text: str) -> bytes:
    """UTF-8; what is no character (a lone surrogate) becomes the replacement character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()


def size_of(text: str) -> int:
    """How many bytes it is encoded as."""
    return len(text) if text.isascii() else len(encoded(text))


def whole_characters(data: bytes | bytearray, limit: int) -> int:
    """How many of the first `limit` bytes can be taken without splitting a character."""
    if limit >= len(data):
        return len(data)
    cut = max(limit, 0)
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def cut_middle(text: str, max_length: int) -> str:
    """Both ends of a text of at most `max_length` characters, with a note between; without room for it, the start."""
    if len(text) <= max_length:
        return text
    note = f"\n[the middle of these {len(text)} characters is left out]\n"
    room = max_length - len(note)
    if room < 2:
        return text[: max(max_length, 0)]
    return text[: room - room // 2] + note + text[len(text) - room // 2 :]
