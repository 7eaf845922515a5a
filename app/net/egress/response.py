"""Answers of hosts on their way back to a caller.

Echoes: an answer that repeats a secret is told with its placeholder instead, also where pieces meet.
"""

import asyncio
import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from app.core.redaction import LEAST, forms_of
from app.net.decompress import Broken, Decoder, decoder_of
from app.net.egress.errors import failed, status_line
from app.net.egress.http1 import (
    LAST_CHUNK,
    Body,
    Field,
    Framing,
    Head,
    Malformed,
    Request,
    chunk,
    framing_of_answer,
    read_head,
    status_of,
    write_head,
)
from app.net.egress.limits import ByteMeter
from app.net.egress.proxy_client import ProxyClient
from app.net.egress.secret_hosts import SecretHost


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


MAX_HEAD = 64 * 1024
MAX_FIELDS = 200
INTERIM = 16
"""Answers before the answer."""
SLICE = 4 * 1024
ROOM = 8 * 1024 * 1024
"""More than a slice can hold by any means of zlib, so that nothing of it is left over."""
_BROKEN = "The body is not what its encoding says."


class Relay:
    """Hands one answer back. With a scrubber no value of a secret is in it, and its framing is our own."""

    def __init__(
        self, caller: ProxyClient, request: Request, scrubber: Scrubber | None, alias: SecretHost | None, port: int
    ) -> None:
        self._caller = caller
        self._request = request
        self._scrubber = scrubber
        self._alias = alias
        self._port = port

    async def run(self, reader: asyncio.StreamReader, meter: ByteMeter) -> None:
        """Raises `Refused`, `OverLimit`; after the head was sent also `Malformed` and `OSError`."""
        try:
            head, status, framing = await self._read(reader)
        except (Malformed, OSError):
            raise failed("upstream-broken", "The host ended the connection early, or does not speak HTTP.") from None
        decoder = self._decoder(head)
        is_chunked = self._is_chunked(framing)
        fields = self._fields(head, framing, is_chunked)
        self._caller.has_answered = True
        await self._caller.send(write_head(status_line(status), fields))
        body = Body(reader, framing, is_loose=True)
        while piece := await body.read():
            for part in _decoded(decoder, piece):
                meter.add(len(part))
                await self._hand_on(part if self._scrubber is None else self._scrubber.feed(part), is_chunked)
        _finish(decoder)
        if self._scrubber is not None:
            await self._hand_on(self._scrubber.finish(), is_chunked)
        if is_chunked:
            await self._caller.send(LAST_CHUNK)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Head, int, Framing]:
        for _ in range(INTERIM):
            head = await read_head(reader, MAX_HEAD, MAX_FIELDS)
            if head is None:
                raise Malformed("There is no answer.")
            status = status_of(head)
            if status >= 200:
                return head, status, framing_of_answer(head, self._request.method, status)
        raise Malformed("The answer does not come.")

    def _decoder(self, head: Head) -> Decoder | None:
        """What a host compressed without being asked is read here: secrets would not be seen in it."""
        encodings = head.all(b"content-encoding")
        if self._scrubber is None or not encodings:
            return None
        decoder = decoder_of(b",".join(encodings).decode("latin-1"))
        if decoder is None:
            raise failed("upstream-broken", "The host answers in an encoding that was not asked for.")
        return decoder

    def _is_chunked(self, framing: Framing) -> bool:
        is_known = framing.length is not None and self._scrubber is None
        return not is_known and not framing.is_empty and self._request.is_modern

    def _fields(self, head: Head, framing: Framing, is_chunked: bool) -> list[Field]:
        fields = head.onward()
        if self._scrubber is not None:
            fields = [field for field in fields if field[0].lower() != b"content-encoding"]
            fields = [(self._scrubber.whole(name), self._scrubber.whole(value)) for name, value in fields]
        if self._alias is not None:
            fields = [self._relocated(*field) for field in fields]
        if is_chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        elif self._scrubber is None or framing.is_empty:
            fields += [(b"Content-Length", length) for length in head.all(b"content-length")]
        return [*fields, (b"Connection", b"close")]

    def _relocated(self, name: bytes, value: bytes) -> Field:
        if self._alias is None or name.lower() != b"location":
            return name, value
        location = self._alias.rewrite(value.decode("utf-8", "replace"), self._port)
        return name, location.encode()

    async def _hand_on(self, data: bytes, is_chunked: bool) -> None:
        await self._caller.send(chunk(data) if is_chunked else data)


def _decoded(decoder: Decoder | None, piece: bytes) -> Iterator[bytes]:
    """Slice by slice: never all of what a small piece can become."""
    if decoder is None:
        yield piece
        return
    try:
        for at in range(0, len(piece), SLICE):
            yield decoder.feed(piece[at : at + SLICE], ROOM)
    except Broken:
        raise Malformed(_BROKEN) from None


def _finish(decoder: Decoder | None) -> None:
    try:
        if decoder is not None:
            decoder.finish()
    except Broken:
        raise Malformed(_BROKEN) from None
