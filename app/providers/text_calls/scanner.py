"""A model's text while it is searched for calls, with its code fences and inline code.

All of it takes linear time. `ScannedText.steps` counts the characters looked at, so that this can be tested; searches
are cached.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from app.core.runs import Known, ModelCall, ToolOffer
from app.providers.text_calls.json_repair import Extent, extent

MAX_NAME_LENGTH = 256
MAX_INDENT = 64
Span = tuple[int, int]

FENCE = r"^[ \t]*+(?:`{3,}+[^`\n]*+|~{3,}+[^\n]*+)$"
_SPACE = re.compile(r"\s*+")
_FENCE_END = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t\r]*+$", re.MULTILINE)
_TICKS = re.compile(rf"(?P<paragraph>\n[ \t\r]*+(?=\n)|{FENCE})|`++", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FoundCall:
    """What a format found: calls, their spans, and where the search continues.

    Without calls it is of that format, but not a call of a known tool; its inside is not searched.
    """

    end: int
    calls: tuple[ModelCall, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced code block. An unclosed one extends to the end."""

    inside: Span
    end: int
    is_closed: bool = True


class ScannedText:
    """The text, and the tools that can be called from it."""

    def __init__(self, text: str, known: Known) -> None:
        self.text = text
        self.steps = 0
        self.wasted = 0
        """Characters that have to be scanned again."""
        self._known = known
        self._offers: dict[str, ToolOffer | None] = {}
        self._searches: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}
        self._code_ends: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.text)

    def offer(self, name: object) -> ToolOffer | None:
        """The tool of that name, asked for once."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
            return None
        if name not in self._offers:
            self._offers[name] = self._known(name)
        return self._offers[name]

    def inner(self, start: int, end: int) -> "ScannedText":
        """A part of the text as a text of its own."""
        return ScannedText(self.cut(start, end), self.offer)

    def find(self, words: str, start: int) -> int | None:
        """The next position of the words."""
        found = self.search(_literal(words), start)
        return found.start() if found else None

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The next match, cached."""
        since, found = self._searches.get(pattern, (len(self) + 1, None))
        if not (since <= start and (found is None or start <= found.start())):
            found = pattern.search(self.text, start)
            self.steps += (found.end() if found else len(self)) - start
            self._searches[pattern] = (start, found)
        return found

    def match(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """For patterns that fail after a bounded number of characters."""
        found = pattern.match(self.text, start)
        self.steps += found.end() - start if found else 1
        return found

    def skip(self, start: int) -> int:
        """The next character that is no space."""
        end = start if (found := _SPACE.match(self.text, start)) is None else found.end()
        self.steps += end - start + 1
        return end

    def begins_line(self, place: int) -> bool:
        """Whether only a few spaces stand before it on its line."""
        before = self.text[max(0, place - MAX_INDENT) : place].rstrip(" \t")
        return before.endswith("\n") or (place <= MAX_INDENT and not before)

    def has(self, words: str, place: int) -> bool:
        return self.text.startswith(words, place)

    def cut(self, start: int, end: int) -> str:
        self.steps += end - start
        return self.text[start:end]

    def extent(self, start: int) -> Extent:
        """The extent of the object or list that opens here."""
        found = extent(self.text, start)
        self.steps += found.seen - start
        return found

    def fence(self, opening: re.Match[str]) -> Fence:
        """The block after an opening fence: up to a line of at least as many of the same marks."""
        marks = opening[0].strip()
        count = len(marks) - len(marks.lstrip(marks[0]))
        inside = min(opening.end() + 1, len(self))
        place = inside
        while closing := self.search(_FENCE_END, place):
            if closing[1][0] == marks[0] and len(closing[1]) >= count:
                return Fence((inside, max(inside, closing.start() - 1)), closing.end())
            place = closing.end()
        return Fence((inside, len(self)), len(self), is_closed=False)

    def code_end(self, start: int) -> int | None:
        """The end of the inline code that these backticks open: as many of them again, in the same paragraph."""
        if self._code_ends is None:
            self.steps += len(self)
            self._code_ends = _code_ends(self.text)
        return self._code_ends.get(start)


Opens = Callable[[ScannedText, int], FoundCall | None]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way to write calls in text.

    `opening`, without named groups, matches where a call may begin; `read` returns None when there is none.
    """

    name: str
    opening: str
    read: Opens


def without(text: str, spans: list[Span]) -> str:
    """The text without the spans."""
    pieces, place = [], 0
    for start, end in sorted(spans):
        pieces.append(text[place:start])
        place = max(place, end)
    return "".join([*pieces, text[place:]])


@cache
def _literal(words: str) -> re.Pattern[str]:
    """For the few tags that are looked for."""
    return re.compile(re.escape(words))


def _code_ends(text: str) -> dict[int, int]:
    ends: dict[int, int] = {}
    last: dict[int, int] = {}
    for found in _TICKS.finditer(text):
        if found["paragraph"] is not None:
            last.clear()
            continue
        count = found.end() - found.start()
        if count in last:
            ends[last[count]] = found.end()
        last[count] = found.start()
    return ends
