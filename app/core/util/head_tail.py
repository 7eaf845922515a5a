"""Head and tail of a text of any length, in bounded memory and with exact counts."""

MARKER = "[{omitted} bytes left out here; all of it is in the output of the call]"
SIZE_FIELDS = ("truncated", "original_size", "truncated_size")
"""What the metadata of a result says about an output that may have been cut."""


class HeadTailBuffer:
    """Keeps the first `head` and the last `tail` bytes of the text fed to it.

    `size` counts all bytes as UTF-8, `lines` all lines unless `counts_lines` is False (counting is the slowest part).
    Neither characters nor, where possible, lines are split, because a secret that is cut in two cannot be recognized
    for redaction. So either end may be shorter than allowed.
    """

    __slots__ = ("_breaks", "_counts_lines", "_head", "_is_full", "_last", "_max_head", "_max_tail", "_tail", "size")

    def __init__(self, head: int, tail: int, *, counts_lines: bool = True) -> None:
        self.size = 0
        self._counts_lines = counts_lines
        self._max_head = head
        self._max_tail = tail
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
        if self._is_full and len(text) > self._max_tail:
            self.size += size_of(text)  # only its end is kept, so the rest need not be encoded
            self._tail[:] = encoded(text[len(text) - self._max_tail :])
            return
        data = encoded(text)
        self.size += len(data)
        if not self._is_full:
            cut = whole_characters(data, self._max_head - len(self._head))
            self._is_full = cut < len(data)
            self._head += data[:cut]
            data = data[cut:]
        self._tail += data[max(len(data) - self._max_tail, 0) :]
        if len(self._tail) > 2 * self._max_tail:
            del self._tail[: len(self._tail) - self._max_tail]

    @property
    def lines(self) -> int:
        """How many lines were fed, including a last one without a line end."""
        return self._breaks + (self._last not in ("", "\n"))

    @property
    def omitted(self) -> int:
        """Bytes left out between head and tail."""
        return self.size - len(self._head_bytes()) - len(self._tail_bytes())

    @property
    def head(self) -> str:
        return self._head_bytes().decode()

    @property
    def tail(self) -> str:
        return self._tail_bytes().decode()

    def rendered(self, marker: str = MARKER) -> str:
        """Head and tail, with the marker on a line between them if anything is omitted."""
        head, tail, omitted = self.head, self.tail, self.omitted
        if not omitted:
            return head + tail
        newline = "" if head.endswith("\n") else "\n"
        return f"{head}{newline}{marker.format(omitted=omitted)}\n{tail}"

    @property
    def _is_whole(self) -> bool:
        return self.size - len(self._head) <= self._max_tail

    def _head_bytes(self) -> bytes:
        """Up to the last line end, unless that is in the first half."""
        stop = 0 if self._is_whole else self._head.rfind(b"\n", len(self._head) // 2) + 1
        return bytes(self._head[:stop]) if stop else bytes(self._head)

    def _tail_bytes(self) -> bytes:
        """From the first line start, unless that is in the second half."""
        if self._is_whole:
            return bytes(self._tail)
        data = bytes(self._tail[len(self._tail) - self._max_tail :])
        return data[data.find(b"\n", 0, len(data) // 2) + 1 or tail_start(data, len(data)) :]


def encoded(text: str) -> bytes:
    """UTF-8; a lone surrogate becomes the replacement character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()


def size_of(text: str) -> int:
    """The number of bytes it is encoded as."""
    return len(text) if text.isascii() else len(encoded(text))


def whole_characters(data: bytes | bytearray, limit: int) -> int:
    """How many of the first `limit` bytes can be taken without splitting a character."""
    if limit >= len(data):
        return len(data)
    cut = max(limit, 0)
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def tail_start(data: bytes | bytearray, limit: int) -> int:
    """Where the last `limit` bytes begin, without a character split at their beginning."""
    start = len(data) - limit
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return start


def cut_middle(text: str, max_length: int) -> str:
    """Both ends of a text of at most `max_length` characters, with a note between; without room for it, the start."""
    if len(text) <= max_length:
        return text
    note = f"\n[the middle of these {len(text)} characters is left out]\n"
    room = max_length - len(note)
    if room < 2:
        return text[: max(max_length, 0)]
    return text[: room - room // 2] + note + text[len(text) - room // 2 :]
