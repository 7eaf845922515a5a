"""Bodies of HTTP/1 messages: where they end, read piece by piece. Two ways to say it that differ are none.

Heads of HTTP/1 messages, read strictly: what two readers could understand differently is refused.
"""

import asyncio
import re
from dataclasses import dataclass

MAX_HEAD = 16 * 1024
MAX_FIELDS = 100

Field = tuple[bytes, bytes]

_END = b"\r\n\r\n"
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):([\t\x20-\x7e\x80-\xff]*)")
_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([^ \r\n]+) HTTP/([0-9])\.([0-9])")
_ANSWER = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_LISTED = re.compile(rb"[ \t]*,[ \t]*")

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"proxy-authentication-info", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"content-length"}
    | {b"x-proxy-error"}
)
"""What is said to the next on the way only. The framing of a message is among it: whoever sends one writes its own.
So is our own word for why something did not go out, which no host should say in our place."""


class Malformed(Exception):
    """What is no HTTP message, in a sentence."""


class HeadTooLarge(Malformed):
    """A head over its limits."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a message and its fields, in their order."""

    start: bytes
    fields: tuple[Field, ...]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field, by its name in lower case."""
        return [value for given, value in self.fields if given.lower() == name]

    def onward(self) -> list[Field]:
        """The fields that are not only for the next on the way."""
        named = {name.lower() for value in self.all(b"connection") for name in _LISTED.split(value)}
        return [field for field in self.fields if field[0].lower() not in HOP_BY_HOP | named]


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was asked. `is_modern`: by HTTP/1.1, so that the answer can come in chunks."""

    method: str
    target: bytes
    head: Head
    is_modern: bool


async def read_head(reader: asyncio.StreamReader, limit: int = MAX_HEAD, fields: int = MAX_FIELDS) -> Head | None:
    """The next head; None when nothing more comes. Raises `Malformed`."""
    try:
        data = await reader.readuntil(_END)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Malformed("The connection ended before its head was whole.") from None
    except asyncio.LimitOverrunError:
        raise HeadTooLarge(f"A head has at most {limit:,} bytes.") from None
    if len(data) > limit:
        raise HeadTooLarge(f"A head has at most {limit:,} bytes.")
    start, *lines = data[: -len(_END)].split(b"\r\n")
    if len(lines) > fields:
        raise HeadTooLarge(f"A head has at most {fields} fields.")
    return Head(start, tuple(_field(line) for line in lines))


def to_request(head: Head) -> Request:
    """Raises `Malformed`."""
    found = _REQUEST.fullmatch(head.start)
    if found is None:
        raise Malformed("The request line cannot be read; like GET http://example.com/ HTTP/1.1.")
    if found[3] != b"1" or found[4] not in (b"0", b"1"):
        raise Malformed("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if len(head.all(b"host")) > 1:
        raise Malformed("A request has one Host.")
    return Request(found[1].decode(), found[2], head, is_modern=found[4] == b"1")


def status_of(head: Head) -> int:
    """What an answer says. Raises `Malformed`."""
    found = _ANSWER.fullmatch(head.start)
    if found is None:
        raise Malformed("The status line cannot be read.")
    return int(found[1])


def write_head(start: bytes, fields: list[Field]) -> bytes:
    return b"\r\n".join([start, *(name + b": " + value for name, value in fields), b"", b""])


def _field(line: bytes) -> Field:
    """A line that begins with a blank would go on with the one before; some read it so and some do not."""
    found = _FIELD.fullmatch(line)
    if found is None:
        raise Malformed("A header cannot be read: a name, a colon and text without control characters are needed.")
    return found[1], found[2].strip(b" \t")


PIECE = 64 * 1024
MAX_TRAILER = 8 * 1024
LAST_CHUNK = b"0\r\n\r\n"

_EARLY = "The connection ended before the body was whole."
_LENGTH = re.compile(rb"[0-9]{1,15}")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})\r\n")
_LOOSE_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]{0,200})?\r\n")


@dataclass(frozen=True, slots=True)
class Framing:
    """Where a body ends: after `length` bytes, with its last chunk, or (neither) with the connection."""

    length: int | None = None
    is_chunked: bool = False

    @property
    def is_empty(self) -> bool:
        return self.length == 0


EMPTY = Framing(length=0)
CHUNKED = Framing(is_chunked=True)
TO_THE_END = Framing()


def framing_of_request(head: Head, *, is_modern: bool) -> Framing:
    """Raises `Malformed`."""
    framing = _framing(head)
    if framing.is_chunked and not is_modern:
        raise Malformed("HTTP/1.0 knows no Transfer-Encoding.")
    return EMPTY if framing == TO_THE_END else framing


def framing_of_answer(head: Head, method: str, status: int) -> Framing:
    """Raises `Malformed`."""
    framing = _framing(head)
    return EMPTY if method == "HEAD" or status in (204, 304) else framing


class Body:
    """A body as it comes. `is_loose`: chunks may have extensions, as servers send them."""

    def __init__(self, reader: asyncio.StreamReader, framing: Framing, *, is_loose: bool = False) -> None:
        self._reader = reader
        self._size = (_LOOSE_SIZE if is_loose else _SIZE) if framing.is_chunked else None
        self._left = 0 if framing.is_chunked else framing.length

    async def read(self) -> bytes:
        """The next piece; empty at the end, and then not to be asked again. Raises `Malformed`."""
        if self._left is None:
            return await self._reader.read(PIECE)
        if not self._left and self._size is not None:
            self._left = await self._next_size(self._size)
        if not self._left:
            return b""
        piece = await self._reader.read(min(PIECE, self._left))
        if not piece:
            raise Malformed(_EARLY)
        self._left -= len(piece)
        if not self._left and self._size is not None and await self._line() != b"\r\n":
            raise Malformed("A chunk is longer than it says.")
        return piece

    async def _next_size(self, pattern: re.Pattern[bytes]) -> int:
        found = pattern.fullmatch(await self._line())
        if found is None:
            raise Malformed("The size of a chunk cannot be read.")
        size = int(found[1], 16)
        if not size:
            await self._skip_trailer()
        return size

    async def _skip_trailer(self) -> None:
        """Fields behind the body are left out."""
        left = MAX_TRAILER
        while (line := await self._line()) != b"\r\n":
            left -= len(line)
            if left < 0:
                raise Malformed(f"Behind the last chunk come more than {MAX_TRAILER:,} bytes.")

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            raise Malformed(_EARLY) from None
        except asyncio.LimitOverrunError:
            raise Malformed("A line between chunks does not end.") from None


def chunk(data: bytes) -> bytes:
    """One chunk; empty data is none, since that would be the last."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _framing(head: Head) -> Framing:
    lengths, encodings = head.all(b"content-length"), head.all(b"transfer-encoding")
    if encodings and lengths:
        raise Malformed("Content-Length and Transfer-Encoding cannot stand together.")
    if len(lengths) > 1 or len(encodings) > 1:
        raise Malformed("The length of the body is said twice.")
    if encodings:
        if encodings[0].lower() != b"chunked":
            raise Malformed("Only `chunked` is understood as Transfer-Encoding.")
        return CHUNKED
    if not lengths:
        return TO_THE_END
    if not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("Content-Length is not a number.")
    return Framing(length=int(lengths[0]))
