"""Bodies as they come over the wire, decompressed no further than wanted."""

import zlib
from typing import Protocol

ACCEPTED = "gzip, deflate"
GZIP = zlib.MAX_WBITS | 16


class Broken(Exception):
    """What came is not what its encoding says."""


class Decoder(Protocol):
    """Decodes a body piece by piece."""

    def feed(self, data: bytes, room: int) -> bytes:
        """What the piece says, at most `room` bytes of it."""
        ...

    def finish(self) -> None:
        """Nothing more comes. Raises `Broken` when something should have."""
        ...


class Plain:
    """No encoding at all."""

    def feed(self, data: bytes, room: int) -> bytes:
        return data[:room]

    def finish(self) -> None:
        pass


class Inflater:
    """gzip, also of several members, and deflate with or without its header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._zlib = zlib.decompressobj(GZIP) if is_gzip else None
        self._is_whole = True

    def feed(self, data: bytes, room: int) -> bytes:
        found = []
        try:
            while data and room > 0:
                piece, data = self._step(data, room)
                found.append(piece)
                room -= len(piece)
        except zlib.error:
            raise Broken from None
        return b"".join(found)

    def finish(self) -> None:
        if not self._is_whole:
            raise Broken

    def _step(self, data: bytes, room: int) -> tuple[bytes, bytes]:
        engine = self._engine_for(data)
        if engine is None:
            return b"", b""
        piece = engine.decompress(data, room)
        self._is_whole = engine.eof
        return piece, engine.unused_data if engine.eof else engine.unconsumed_tail

    def _engine_for(self, data: bytes) -> "zlib._Decompress | None":
        """The engine these bytes belong to; none for what stands behind the end."""
        if self._zlib is None:
            # A header of zlib's says the method 8; some servers leave it out.
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        elif self._zlib.eof:
            if not self._is_gzip or data[0] != 0x1F:
                return None
            self._zlib = zlib.decompressobj(GZIP)
        return self._zlib


def decoder_of(encoding: str) -> Decoder | None:
    """The decoder for a Content-Encoding; None for one that was not asked for."""
    match encoding.strip().lower():
        case "" | "identity":
            return Plain()
        case "gzip" | "x-gzip":
            return Inflater(is_gzip=True)
        case "deflate":
            return Inflater(is_gzip=False)
        case _:
            return None
