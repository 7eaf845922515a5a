"""Finds lines in a file by four passes from strict to lenient, each over the whole rest of the file.

A pass searches a view of the file: the text itself, without trailing white space, stripped on both sides, and with
ASCII typography. Views are made once, when needed, and searched as one text, so a search costs one scan of the text,
however many lines are searched and however often they nearly match. The first few searches that fail exactly need no
views: they go by a piece that is the same in every pass and occurs at few places.
"""

import re
import secrets
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

TYPOGRAPHY = (
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)
_CHANGED = re.compile(r"[-'\"\s]+")
"""What a pass may change; the pieces between are the same in all of them."""
MAX_PIECE_SEARCHES = 8
MAX_PIECES = 3
MAX_PLACES = 16
"""How often a piece that no pass changes is searched before views are made; of how many of the wanted lines, and at how
many places it may occur."""
NEAR = 64
"""Lines that are walked one by one from a known offset; farther ones are found in an index of all lines."""
FAILED_BEFORE_SET = 4
FAILED_BEFORE_WINDOWS = 32
"""How often the whole text is searched without success before a search first checks a set of all lines, and before it
uses an index of windows."""
_PRIME = 2**61 - 1


def fold(text: str) -> str:
    """Dashes, quotes and spaces as ASCII characters."""
    if text.isascii():
        return text
    for fancy, plain in TYPOGRAPHY.items():
        text = text.replace(fancy, plain)
    return text


@dataclass(frozen=True, slots=True)
class Match:
    """The line (from 0) at which lines were found; `is_stripped`: their indentation may differ."""

    line: int
    is_stripped: bool


class SeekableText:
    """A text with LF line ends, and its views."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.ends = text.count("\n")
        self.count = self.ends + (not text.endswith("\n") and text != "")
        self.exact = View(text, self.count)
        self._piece_searches = 0

    def seek(self, wanted: Sequence[str], start: int, *, is_at_end: bool = False) -> Match | None:
        """The first place from line `start` on that has these lines, in the strictest pass that finds one."""
        if not wanted:
            return Match(start, is_stripped=False)
        start = max(start, self.count - len(wanted)) if is_at_end else start
        if start + len(wanted) > self.count:
            return None
        if is_at_end:
            return self._strictest_match(wanted, [start])
        exact = self.exact.find(list(wanted), start)
        if exact is not None:
            return Match(exact, is_stripped=False)
        places = self._places(wanted, start)
        return self._by_views(wanted, start) if places is None else self._strictest_match(wanted, places)

    def _strictest_match(self, wanted: Sequence[str], places: Iterable[int]) -> Match | None:
        """The first of these places that matches in the strictest pass."""
        best: tuple[int, int] | None = None
        for line in places:
            there = self.lines(line, line + len(wanted))
            fitting = (number for number, key in enumerate(_KEYS) if [*map(key, there)] == [*map(key, wanted)])
            found = (next(fitting, len(_KEYS)), line)
            if found[0] < len(_KEYS) and (best is None or found < best):
                best = found
        return None if best is None else Match(best[1], is_stripped=best[0] > 1)

    def _places(self, wanted: Sequence[str], start: int) -> list[int] | None:
        """Where the lines can begin, by a long piece that no pass changes; None if no piece is rare enough."""
        pieces = sorted(enumerate(map(self._unchanged, wanted)), key=lambda numbered: len(numbered[1]), reverse=True)
        for place, piece in pieces[:MAX_PIECES]:
            lines = self._lines_with(piece, start) if piece and self._piece_searches < MAX_PIECE_SEARCHES else None
            if lines is not None:
                return [line - place for line in lines if start <= line - place <= self.count - len(wanted)]
        return None

    def _unchanged(self, line: str) -> str:
        """The piece of a line that the file must have if any pass matches; in an ASCII text all but the ends."""
        return _folded(line) if self.text.isascii() else max(_CHANGED.split(fold(line)), key=len)

    def _lines_with(self, piece: str, start: int) -> list[int] | None:
        """The lines from `start` on that contain a piece; None if they are many."""
        self._piece_searches += 1
        lines, begin = list[int](), self.exact.offset(start)
        at = self.text.find(piece, begin)
        while at >= 0 and len(lines) <= MAX_PLACES:
            lines.append(self.exact.line(self.text.rfind("\n", 0, at) + 1))
            at = self.text.find(piece, self.exact.offset(lines[-1] + 1))
        self.exact.searched += (len(self.text) if at < 0 else at) - begin
        return lines if at < 0 else None

    def _by_views(self, wanted: Sequence[str], start: int) -> Match | None:
        def find(view: View, key: Callable[[str], str]) -> int | None:
            return view.find([*map(key, wanted)], start)

        # If the most lenient pass finds nothing, none does.
        loose = find(self.folded, _folded)
        if loose is None:
            return None
        right = find(self.right_stripped, str.rstrip)
        if right is not None:
            return Match(right, is_stripped=False)
        stripped = find(self.stripped, str.strip)
        return Match(loose if stripped is None else stripped, is_stripped=True)

    def piece(self, start: int, end: int) -> str:
        """The text from line `start` to before line `end`."""
        return self.text[self.exact.offset(start) : self.exact.offset(end)]

    def lines(self, start: int, end: int) -> list[str]:
        """The same as lines without their ends."""
        return self.piece(start, end).removesuffix("\n").split("\n") if start < end else []

    @cached_property
    def right_stripped(self) -> "View":
        return View.of(list(map(str.rstrip, self.exact.lines)))

    @cached_property
    def stripped(self) -> "View":
        return View.of(list(map(str.strip, self.exact.lines)))

    @cached_property
    def folded(self) -> "View":
        text = fold(self.stripped.text)
        return self.stripped if text is self.stripped.text else View(text, self.count)


def _offset(mark: tuple[int, int]) -> int:
    return mark[1]


def _exact(line: str) -> str:
    return line


def _folded(line: str) -> str:
    return fold(line.strip())


_KEYS: tuple[Callable[[str], str], ...] = (_exact, str.rstrip, str.strip, _folded)
"""The key by which each pass compares lines."""


class View:
    """A text of `count` lines as one pass compares it. `searched` counts the characters scanned by searches."""

    def __init__(self, text: str, count: int) -> None:
        self.text = text
        self.searched = 0
        self._failed = 0
        self._offsets = {0: 0, count: len(text)}
        self._marks = sorted(self._offsets.items())

    @classmethod
    def of(cls, lines: list[str]) -> "View":
        """Each line gets a line end here, or a stripped blank last line would vanish."""
        view = cls("\n".join([*lines, ""]), len(lines))
        view.__dict__["lines"] = lines
        return view

    def find(self, wanted: list[str], start: int) -> int | None:
        """The first line at or after `start` where these lines are."""
        if self._failed > FAILED_BEFORE_SET * len(self.text) and not self._known.issuperset(wanted):
            return None
        if self._failed > FAILED_BEFORE_WINDOWS * len(self.text):
            return self._windows.find(wanted, start)
        begin = self.offset(start)
        found = self._search("\n".join(wanted), begin)
        over = (len(self.text) if found is None else found) - begin
        self.searched += over
        if found is None:
            self._failed += over
            return None
        return self.line(found)

    def offset(self, line: int) -> int:
        """Where a line begins; the line after the last begins at the end."""
        known = self._offsets.get(line)
        if known is not None:
            return known
        at = bisect_right(self._marks, (line, 0))
        near, after = self._marks[at - 1], self._marks[at]
        if after[0] - line < line - near[0]:
            near = after
        if abs(near[0] - line) > NEAR:
            offset = min(self._lengths[line] + line, len(self.text))
        else:
            offset = self._walk_to(near, line)
        self._mark(line, offset)
        return offset

    def line(self, offset: int) -> int:
        """The line that begins here, counted from the nearest known offset before it."""
        line, known = self._marks[bisect_right(self._marks, offset, key=_offset) - 1]
        line += self.text.count("\n", known, offset)
        self._mark(line, offset)
        return line

    @cached_property
    def lines(self) -> list[str]:
        lines = self.text.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @cached_property
    def _lengths(self) -> list[int]:
        """The characters before each line, without line ends."""
        return list(accumulate(map(len, self.lines), initial=0))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.lines)

    @cached_property
    def _windows(self) -> "Windows":
        return Windows(self.lines)

    def _search(self, needle: str, begin: int) -> int | None:
        text = self.text
        if begin == 0 and (text.startswith(f"{needle}\n") or text == needle):
            return 0
        found = text.find(f"\n{needle}\n", max(begin - 1, 0))
        if found >= 0:
            return found + 1
        last = len(text) - len(needle)
        return last if last >= begin and not text.endswith("\n") and text.endswith(f"\n{needle}") else None

    def _walk_to(self, near: tuple[int, int], line: int) -> int:
        here, offset = near
        for _ in range(here, line):
            offset = self.text.find("\n", offset) + 1 or len(self.text)
        for _ in range(line, here):
            offset = self.text.rfind("\n", 0, offset - 1) + 1
        return offset

    def _mark(self, line: int, offset: int) -> None:
        if line not in self._offsets:
            self._offsets[line] = offset
            insort(self._marks, (line, offset))


class Windows:
    """Every run of lines of one size by its rolling hash, for when searches of the text have failed too often."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._ids = {line: number for number, line in enumerate(dict.fromkeys(lines), 1)}
        # Random, so that lines with colliding hashes cannot be crafted.
        self._base = secrets.randbelow(_PRIME // 2) + _PRIME // 4
        self._hashes = self._prefix_hashes(self._ids[line] for line in lines)
        self._tables: dict[int, dict[int, list[int]]] = {}

    def find(self, wanted: list[str], start: int) -> int | None:
        size = len(wanted)
        if size not in self._tables:
            self._tables[size] = self._table(size)
        places = self._tables[size].get(self._prefix_hashes(self._ids.get(line, 0) for line in wanted)[-1], [])
        for at in range(bisect_left(places, start), len(places)):
            if self._lines[places[at] : places[at] + size] == wanted:
                return places[at]
        return None

    def _table(self, size: int) -> dict[int, list[int]]:
        table = dict[int, list[int]]()
        power = pow(self._base, size, _PRIME)
        for place, (before, after) in enumerate(zip(self._hashes, self._hashes[size:], strict=False)):
            table.setdefault((after - before * power) % _PRIME, []).append(place)
        return table

    def _prefix_hashes(self, ids: Iterable[int]) -> list[int]:
        return list(accumulate(ids, lambda total, id: (total * self._base + id) % _PRIME, initial=0))
