"""Bodies of HTTP/1 messages: where they end, read piece by piece. Two ways to say it that differ are none."""

import asyncio
import re
from dataclasses import dataclass

from app.net.heads import Head, Malformed

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
