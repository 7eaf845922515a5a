"""HTTP/1 messages, read strictly: a message that two parsers could understand differently is refused."""

import asyncio
import re
from dataclasses import dataclass

MAX_HEAD_BYTES = 16 * 1024
MAX_FIELDS = 100
READ_BYTES = 64 * 1024
MAX_TRAILER_BYTES = 8 * 1024
LAST_CHUNK = b"0\r\n\r\n"

Field = tuple[bytes, bytes]

_END = b"\r\n\r\n"
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):([\t\x20-\x7e\x80-\xff]*)")
_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([^ \r\n]+) HTTP/([0-9])\.([0-9])")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_COMMA = re.compile(rb"[ \t]*,[ \t]*")

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"proxy-authentication-info", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"content-length"}
    | {b"x-proxy-error"}
)
"""Fields for the next hop only. Framing is among them: each sender writes its own. So is X-Proxy-Error, which only
the proxy may send."""


class Malformed(Exception):
    """Not a valid HTTP message."""


class HeadTooLarge(Malformed):
    """The head of a message exceeds its limits."""


@dataclass(frozen=True, slots=True)
class Head:
    """The start line of a message and its header fields."""

    start: bytes
    fields: tuple[Field, ...]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field, by its name in lower case."""
        return [value for field, value in self.fields if field.lower() == name]

    def end_to_end(self) -> list[Field]:
        """The fields without hop-by-hop fields."""
        named = {name.lower() for value in self.all(b"connection") for name in _COMMA.split(value)}
        return [field for field in self.fields if field[0].lower() not in HOP_BY_HOP | named]


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request. Only an HTTP/1.1 client can get a chunked response."""

    method: str
    target: bytes
    head: Head
    is_http11: bool


async def read_head(reader: asyncio.StreamReader, limit: int = MAX_HEAD_BYTES, fields: int = MAX_FIELDS) -> Head | None:
    """Read a head; None at the end of the connection. Raises `Malformed`."""
    try:
        data = await reader.readuntil(_END)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Malformed("The connection ended before the head was complete.") from None
    except asyncio.LimitOverrunError:
        raise HeadTooLarge(f"The head has more than {limit:,} bytes.") from None
    if len(data) > limit:
        raise HeadTooLarge(f"The head has more than {limit:,} bytes.")
    start, *lines = data[: -len(_END)].split(b"\r\n")
    if len(lines) > fields:
        raise HeadTooLarge(f"The head has more than {fields} fields.")
    return Head(start, tuple(_field(line) for line in lines))


def to_request(head: Head) -> Request:
    """Raises `Malformed`."""
    found = _REQUEST.fullmatch(head.start)
    if found is None:
        raise Malformed("Invalid request line; expected GET http://example.com/ HTTP/1.1 or similar.")
    if found[3] != b"1" or found[4] not in (b"0", b"1"):
        raise Malformed("Only HTTP/1.1 and HTTP/1.0 are supported.")
    if len(head.all(b"host")) > 1:
        raise Malformed("The request has more than one Host.")
    return Request(found[1].decode(), found[2], head, is_http11=found[4] == b"1")


def status_of(head: Head) -> int:
    """The status code of a response. Raises `Malformed`."""
    found = _STATUS.fullmatch(head.start)
    if found is None:
        raise Malformed("Invalid status line.")
    return int(found[1])


def write_head(start: bytes, fields: list[Field]) -> bytes:
    return b"\r\n".join([start, *(name + b": " + value for name, value in fields), b"", b""])


def _field(line: bytes) -> Field:
    """Refuses obsolete line folding, which parsers treat differently."""
    found = _FIELD.fullmatch(line)
    if found is None:
        raise Malformed("Invalid header: expected a name, a colon, and text without control characters.")
    return found[1], found[2].strip(b" \t")


_EARLY = "The connection ended before the body was complete."
_LENGTH = re.compile(rb"[0-9]{1,15}")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})\r\n")
_SIZE_WITH_EXTENSION = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]{0,200})?\r\n")


@dataclass(frozen=True, slots=True)
class Framing:
    """Where a body ends: after `length` bytes, with the last chunk, or else at the end of the connection."""

    length: int | None = None
    is_chunked: bool = False

    @property
    def is_empty(self) -> bool:
        return self.length == 0


EMPTY = Framing(length=0)
CHUNKED = Framing(is_chunked=True)
UNTIL_CLOSE = Framing()


def request_framing(request: Request) -> Framing:
    """Raises `Malformed`."""
    framing = _framing(request.head)
    if framing.is_chunked and not request.is_http11:
        raise Malformed("HTTP/1.0 has no Transfer-Encoding.")
    return EMPTY if framing == UNTIL_CLOSE else framing


def response_framing(head: Head, method: str, status: int) -> Framing:
    """Raises `Malformed`."""
    framing = _framing(head)
    return EMPTY if method == "HEAD" or status in (204, 304) else framing


class Body:
    """Reads a body. `allows_extensions`: chunks may have extensions, as some servers send them."""

    def __init__(self, reader: asyncio.StreamReader, framing: Framing, *, allows_extensions: bool = False) -> None:
        self.is_chunked = framing.is_chunked
        self._reader = reader
        self._size = (_SIZE_WITH_EXTENSION if allows_extensions else _SIZE) if framing.is_chunked else None
        self._left = 0 if framing.is_chunked else framing.length

    async def read(self) -> bytes:
        """The next bytes; empty at the end, after which it must not be called again. Raises `Malformed`."""
        if self._left is None:
            return await self._reader.read(READ_BYTES)
        if not self._left and self._size is not None:
            self._left = await self._next_size(self._size)
        if not self._left:
            return b""
        data = await self._reader.read(min(READ_BYTES, self._left))
        if not data:
            raise Malformed(_EARLY)
        self._left -= len(data)
        if not self._left and self._size is not None and await self._line() != b"\r\n":
            raise Malformed("A chunk is longer than its size.")
        return data

    async def _next_size(self, pattern: re.Pattern[bytes]) -> int:
        found = pattern.fullmatch(await self._line())
        if found is None:
            raise Malformed("Invalid chunk size.")
        if size := int(found[1], 16):
            return size
        left = MAX_TRAILER_BYTES
        while (line := await self._line()) != b"\r\n":  # trailer fields are dropped
            left -= len(line)
            if left < 0:
                raise Malformed(f"The trailer has more than {MAX_TRAILER_BYTES:,} bytes.")
        return 0

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            raise Malformed(_EARLY) from None
        except asyncio.LimitOverrunError:
            raise Malformed("A line between chunks is too long.") from None


def chunk(data: bytes) -> bytes:
    """Encode a chunk; empty data gives no chunk, since that would be the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _framing(head: Head) -> Framing:
    lengths, encodings = head.all(b"content-length"), head.all(b"transfer-encoding")
    if encodings and lengths:
        raise Malformed("Content-Length and Transfer-Encoding must not be combined.")
    if len(lengths) > 1 or len(encodings) > 1:
        raise Malformed("The length of the body is given twice.")
    if encodings:
        if encodings[0].lower() != b"chunked":
            raise Malformed("The only supported Transfer-Encoding is `chunked`.")
        return CHUNKED
    if not lengths:
        return UNTIL_CLOSE
    if not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("Content-Length is not a number.")
    return Framing(length=int(lengths[0]))
