"""Content-Encoding of response bodies, decoded only up to a limit."""

import zlib
from typing import Protocol

ACCEPTED = "gzip, deflate"
GZIP = zlib.MAX_WBITS | 16


class Broken(Exception):
    """The body does not match its Content-Encoding."""


class Decoder(Protocol):
    """Decodes a body chunk by chunk."""

    def feed(self, data: bytes, room: int) -> bytes:
        """Decode a chunk, to at most `room` bytes."""
        ...

    def finish(self) -> None:
        """End the body. Raises `Broken` when it is incomplete."""
        ...


class Plain:
    """The identity encoding."""

    def feed(self, data: bytes, room: int) -> bytes:
        return data[:room]

    def finish(self) -> None:
        pass


class Inflater:
    """gzip, also with several members, and deflate with or without its zlib header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._zlib = zlib.decompressobj(GZIP) if is_gzip else None
        self._is_complete = True

    def feed(self, data: bytes, room: int) -> bytes:
        decoded = []
        try:
            while data and room > 0 and (engine := self._engine_for(data)) is not None:
                decoded.append(engine.decompress(data, room))
                room -= len(decoded[-1])
                self._is_complete = engine.eof
                data = engine.unused_data if engine.eof else engine.unconsumed_tail
        except zlib.error:
            raise Broken from None
        return b"".join(decoded)

    def finish(self) -> None:
        if not self._is_complete:
            raise Broken

    def _engine_for(self, data: bytes) -> "zlib._Decompress | None":
        """The decompressor for these bytes; None for bytes after the end."""
        if self._zlib is None:
            # The zlib header has the method 8; some servers omit the header.
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        elif self._zlib.eof:
            if not self._is_gzip or data[0] != 0x1F:
                return None
            self._zlib = zlib.decompressobj(GZIP)
        return self._zlib


def decoder_of(encoding: str) -> Decoder | None:
    """The decoder for a Content-Encoding; None for one that was not requested."""
    match encoding.strip().lower():
        case "" | "identity":
            return Plain()
        case "gzip" | "x-gzip":
            return Inflater(is_gzip=True)
        case "deflate":
            return Inflater(is_gzip=False)
        case _:
            return None
