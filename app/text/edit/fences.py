"""Fences and file names in a model's text, shared by the edit formats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.errors import InvalidArgs

TAGS = ("source", "code", "pre", "codeblock", "sourcecode")
SHELLS = frozenset(
    ("bash", "sh", "shell", "cmd", "batch", "powershell", "ps1", "zsh", "fish", "ksh", "csh", "tcsh"),
)
NAME_LINES = 3
MAX_NAME_LENGTH = 250
QUOTED_LINES = 12
"""Lines shown before a parse error."""

_TICKS = re.compile(r"(`{3,})([^`]*)$")
_TAG = re.compile(rf"<({'|'.join(TAGS)})>(.*)$")
_END_TAG = re.compile(rf"</({'|'.join(TAGS)})>$")
# ```python src/a.py and ```python:src/a.py; the language is no part of the name.
_LANGUAGE = re.compile(r"[\w+#-]+(?::|\s+)(?=\S)")
_EXTENSION = re.compile(r"\.\w+$")
_QUOTED_NAME = re.compile(r"`([^`\s]+)`")


@dataclass(frozen=True, slots=True)
class Fence:
    """An opening fence: the line that closes it, and the text beside it."""

    closing: str
    info: str

    @property
    def is_shell(self) -> bool:
        return self.closing.startswith("`") and (self.info.split() or [""])[0].lower() in SHELLS


def open_fence(line: str) -> Fence | None:
    if ticks := _TICKS.match(line):
        return Fence(ticks[1], ticks[2].strip())
    if tag := _TAG.match(line):
        return Fence(f"</{tag[1]}>", tag[2].strip())
    return None


def is_fence(line: str) -> bool:
    """Whether a line opens or closes a fence, at any indentation."""
    return open_fence(line.strip()) is not None or _END_TAG.match(line.strip()) is not None


def name_on(line: str) -> str | None:
    """The file that a line names: alone, marked up as models do, or beside a fence."""
    text = line.strip()
    if fence := open_fence(text):
        name = _LANGUAGE.sub("", fence.info, count=1)
        return name if "." in name or "/" in name else None
    if _END_TAG.match(text):
        return None
    name = text.rstrip(":").lstrip("#").strip().strip("`*").rstrip(":").strip()
    quoted = _QUOTED_NAME.findall(text)
    if len(quoted) == 1 and len(name.split()) > 1:
        name = quoted[0]
    return name if _may_be_name(name) else None


def name_before(lines: Sequence[str]) -> str | None:
    """The file named by the last of these lines that is not a fence, or beside a fence behind it."""
    names = list[str]()
    for line in reversed(lines):
        if name := name_on(line):
            names.append(name)
        if not is_fence(line):
            break
    return next((name for name in names if "." in name), names[0] if names else None)


def parse_error(format: str, lines: Sequence[str], at: int, expected: str) -> InvalidArgs:
    """The error with the lines up to the one at fault, and what was expected there."""
    shown = [line[:MAX_NAME_LENGTH] for line in lines[max(0, at + 1 - QUOTED_LINES) : at + 1]]
    head = f"The content cannot be read as {format}, see its line {at + 1}:"
    return InvalidArgs("\n".join([head, *shown, f"^^^ {expected}"]), details={"line": at + 1})


def _may_be_name(name: str) -> bool:
    """Whether this can be a file name and not a sentence: one with blanks needs an extension."""
    if not name or len(name) > MAX_NAME_LENGTH or not re.search(r"\w", name):
        return False
    return len(name.split()) == 1 or _EXTENSION.search(name) is not None
