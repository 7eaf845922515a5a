"""Paths as text that rules match and people and models read."""

import os


def printable(path: str) -> str:
    """Bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def one_line(name: str) -> str:
    """Line breaks and control characters are escaped, so that one name never looks like two."""
    return "".join(repr(char)[1:-1] if ord(char) < 32 or char in "\x7f\x85\u2028\u2029" else char for char in name)
