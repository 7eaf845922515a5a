"""Relays the response of a host to the client, with values of secrets replaced by their placeholders."""

import asyncio
import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from app.core.redaction import MIN_FORM, forms_of
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
    read_head,
    response_framing,
    status_of,
    write_head,
)
from app.net.egress.proxy_client import ByteMeter, ProxyClient
from app.net.egress.secret_hosts import SecretHost

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 200
MAX_INTERIM = 16
"""Interim (1xx) responses before the final one."""
SLICE_BYTES = 4 * 1024
MAX_SLICE_DECODED = 8 * 1024 * 1024
"""More than zlib can make of a slice, so that a slice is always decoded completely."""
_BROKEN = "The body does not match its Content-Encoding."


class Scrubber:
    """Replaces values in a stream of chunks; the end of a chunk is held back while a value may start there."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """`values` by their placeholders."""
        self._placeholders = {
            form: placeholder.encode() for placeholder, value in values.items() for form in _forms(value)
        }
        self._sorted = sorted(self._placeholders)
        self._max_length = max(map(len, self._sorted))
        self._pattern = re.compile(b"|".join(map(re.escape, sorted(self._placeholders, key=len, reverse=True))))
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Replace values in a complete text."""
        if not self._contains_value(data):
            return data
        return self._pattern.sub(lambda match: self._placeholders[match[0]], data)

    def feed(self, data: bytes) -> bytes:
        """Add a chunk; returns what can be sent now."""
        data = self._held + data
        end = self._safe_end(data)
        self._held = data[end:]
        return self.whole(data[:end])

    def finish(self) -> bytes:
        """The rest that was held back."""
        held, self._held = self._held, b""
        return self.whole(held)

    def _safe_end(self, data: bytes) -> int:
        """Where to cut, so that no value crosses the cut."""
        starts = range(max(0, len(data) - self._max_length + 1), len(data))
        end = next((start for start in starts if self._is_prefix(data[start:])), len(data))
        if end == len(data) or not self._contains_value(data):
            return end
        for match in self._pattern.finditer(data):
            if match.start() < end < match.end():
                return match.start()
        return end

    def _contains_value(self, data: bytes) -> bool:
        """Substring searches are much faster than the pattern."""
        return any(form in data for form in self._sorted)

    def _is_prefix(self, tail: bytes) -> bool:
        """Whether a longer form of a value starts with this."""
        index = bisect_right(self._sorted, tail)
        return index < len(self._sorted) and self._sorted[index].startswith(tail)


def _forms(value: str) -> Iterator[bytes]:
    """The encodings that are redacted everywhere, and those that servers make of a header."""
    yield from (form.encode("utf-8", "replace") for form in forms_of(value))
    plain = value.encode()
    others: Iterable[bytes] = {
        plain.hex().encode(),
        plain.hex().upper().encode(),
        html.escape(value).encode(),
        plain.decode("latin-1").encode(),  # UTF-8 decoded as Latin-1
    }
    yield from (form for form in others if len(form) >= MIN_FORM)


class Relay:
    """Relays one response. With a scrubber it contains no value of a secret, and gets a new framing."""

    def __init__(
        self,
        client: ProxyClient,
        request: Request,
        scrubber: Scrubber | None,
        secret_host: SecretHost | None,
        port: int,
    ) -> None:
        self._client = client
        self._request = request
        self._scrubber = scrubber
        self._secret_host = secret_host
        self._port = port

    async def run(self, reader: asyncio.StreamReader, meter: ByteMeter) -> None:
        """Raises `Refused`, `OverLimit`; after the head was sent also `Malformed` and `OSError`."""
        try:
            head, status, framing = await self._read(reader)
        except (Malformed, OSError):
            raise failed(
                "upstream-broken", "The host closed the connection early, or its response is not HTTP."
            ) from None
        decoder = self._decoder(head)
        has_length = framing.length is not None and self._scrubber is None
        is_chunked = not has_length and not framing.is_empty and self._request.is_http11
        fields = self._fields(head, framing, is_chunked)
        self._client.has_response = True
        await self._client.send(write_head(status_line(status), fields))
        body = Body(reader, framing, allows_extensions=True)
        while data := await body.read():
            for part in _decode(decoder, data):
                meter.add(len(part))
                await self._send(part if self._scrubber is None else self._scrubber.feed(part), is_chunked)
        _finish(decoder)
        if self._scrubber is not None:
            await self._send(self._scrubber.finish(), is_chunked)
        if is_chunked:
            await self._client.send(LAST_CHUNK)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Head, int, Framing]:
        for _ in range(MAX_INTERIM):
            head = await read_head(reader, MAX_HEAD_BYTES, MAX_FIELDS)
            if head is None:
                raise Malformed("There is no response.")
            status = status_of(head)
            if status >= 200:
                return head, status, response_framing(head, self._request.method, status)
        raise Malformed("There are too many interim responses.")

    def _decoder(self, head: Head) -> Decoder | None:
        """Decodes a response that is compressed although not requested: secrets could not be found in it."""
        encodings = head.all(b"content-encoding")
        if self._scrubber is None or not encodings:
            return None
        decoder = decoder_of(b",".join(encodings).decode("latin-1"))
        if decoder is None:
            raise failed("upstream-broken", "The host responded in an encoding that was not requested.")
        return decoder

    def _fields(self, head: Head, framing: Framing, is_chunked: bool) -> list[Field]:
        fields = head.end_to_end()
        if self._scrubber is not None:
            fields = [field for field in fields if field[0].lower() != b"content-encoding"]
            fields = [(self._scrubber.whole(name), self._scrubber.whole(value)) for name, value in fields]
        if self._secret_host is not None:
            fields = [self._relocated(*field) for field in fields]
        if is_chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        elif self._scrubber is None or framing.is_empty:
            fields += [(b"Content-Length", length) for length in head.all(b"content-length")]
        return [*fields, (b"Connection", b"close")]

    def _relocated(self, name: bytes, value: bytes) -> Field:
        if self._secret_host is None or name.lower() != b"location":
            return name, value
        location = self._secret_host.rewrite(value.decode("utf-8", "replace"), self._port)
        return name, location.encode()

    async def _send(self, data: bytes, is_chunked: bool) -> None:
        await self._client.send(chunk(data) if is_chunked else data)


def _decode(decoder: Decoder | None, data: bytes) -> Iterator[bytes]:
    """Decode slice by slice, because a small chunk can become very large."""
    if decoder is None:
        yield data
        return
    try:
        for start in range(0, len(data), SLICE_BYTES):
            yield decoder.feed(data[start : start + SLICE_BYTES], MAX_SLICE_DECODED)
    except Broken:
        raise Malformed(_BROKEN) from None


def _finish(decoder: Decoder | None) -> None:
    try:
        if decoder is not None:
            decoder.finish()
    except Broken:
        raise Malformed(_BROKEN) from None
