"""Output cut to so many tokens: its beginning and its end, with what is missing between them."""

from app.core.ends import encoded, whole_characters

BYTES_A_TOKEN = 4


def tokens(size: int) -> int:
    """How many tokens so many bytes are about."""
    return -(-size // BYTES_A_TOKEN)


def cut(text: str, limit: int, *, omitted: int = 0) -> str:
    """At most about `limit` tokens of it, half from the beginning and half from the end; whole if it is short enough.

    Without room for anything only the mark is left. `omitted` are bytes that are missing in its middle already.
    """
    data = encoded(text)
    room = max(limit, 0) * BYTES_A_TOKEN
    if len(data) <= room:
        return text
    head = whole_characters(data, room // 2)
    tail = len(data) - (room - room // 2)
    while tail < len(data) and data[tail] & 0xC0 == 0x80:
        tail += 1
    missing = tokens(tail - head + omitted)
    return f"{data[:head].decode()}…{missing} tokens truncated…{data[tail:].decode()}"
