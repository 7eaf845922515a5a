"""Listings: how a model's text names a file and fences what belongs to it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TAGS = ("source", "code", "pre", "codeblock", "sourcecode")
SHELLS = frozenset(
    ("bash", "sh", "shell", "cmd", "batch", "powershell", "ps1", "zsh", "fish", "ksh", "csh", "tcsh"),
)
LOOKED_BACK = 3
LONGEST_NAME = 250
QUOTED = 12
"""Lines that are shown of a text that cannot be read."""

_TICKS = re.compile(r"(`{3,})([^`]*)$")
_TAG = re.compile(rf"<({'|'.join(TAGS)})>(.*)$")
_END_TAG = re.compile(rf"</({'|'.join(TAGS)})>$")
# ```python src/a.py and ```python:src/a.py; the language is no part of the name.
_LANGUAGE = re.compile(r"[\w+#-]+(?::|\s+)(?=\S)")
_EXTENSION = re.compile(r"\.\w+$")
_QUOTED_NAME = re.compile(r"`([^`\s]+)`")


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that opens a listing: what closes it, and what is said beside it."""

    closing: str
    said: str

    @property
    def is_shell(self) -> bool:
        return self.closing.startswith("`") and (self.said.split() or [""])[0].lower() in SHELLS


def opening(line: str) -> Fence | None:
    if ticks := _TICKS.match(line):
        return Fence(ticks[1], ticks[2].strip())
    if tag := _TAG.match(line):
        return Fence(f"</{tag[1]}>", tag[2].strip())
    return None


def is_fence(line: str) -> bool:
    """Whether a line opens or closes a listing, however far it is indented."""
    return opening(line.strip()) is not None or _END_TAG.match(line.strip()) is not None


def name_on(line: str) -> str | None:
    """The file a line names: alone, or marked up as models do, or beside a fence."""
    text = line.strip()
    if fence := opening(text):
        said = _LANGUAGE.sub("", fence.said, count=1)
        return said if "." in said or "/" in said else None
    if _END_TAG.match(text):
        return None
    name = text.rstrip(":").lstrip("#").strip().strip("`*").rstrip(":").strip()
    quoted = _QUOTED_NAME.findall(text)
    if len(quoted) == 1 and len(name.split()) > 1:
        name = quoted[0]
    return name if _may_be_name(name) else None


def name_before(lines: Sequence[str]) -> str | None:
    """The file that the last of these lines name; one before the last is only looked at through lines of fences."""
    names = list[str]()
    for line in reversed(lines):
        if name := name_on(line):
            names.append(name)
        if not is_fence(line):
            break
    return next((name for name in names if "." in name), names[0] if names else None)


def quote(lines: Sequence[str], at: int, expected: str) -> str:
    """What was read up to a line, and what was expected there."""
    shown = lines[max(0, at + 1 - QUOTED) : at + 1]
    return "\n".join([*(line[:LONGEST_NAME] for line in shown), f"^^^ {expected}"])


def _may_be_name(name: str) -> bool:
    """Whether this can be a file and not a sentence: a name with blanks in it needs an extension."""
    if not name or len(name) > LONGEST_NAME or not re.search(r"\w", name):
        return False
    return len(name.split()) == 1 or _EXTENSION.search(name) is not None
