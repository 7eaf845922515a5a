"""Media types by content. A type that a browser would run is never said: HTML and SVG are plain text here."""

import codecs

HEAD = 8192
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)


def mime_of(head: bytes) -> str:
    """What a file is that begins with this: as much of it as `HEAD`, or all."""
    for magic, mime in MAGIC:
        if head.startswith(magic):
            return mime
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return TEXT if _is_text(head) else BINARY


def _is_text(head: bytes) -> bool:
    """Where a file goes on, a character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
